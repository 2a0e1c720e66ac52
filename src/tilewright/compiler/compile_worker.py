"""A process that compiles modules: reads ``[folder, keys, target]``, writes ``KEY.o`` beside
``KEY.ll``.

Guarantees: an object file appears under its name only when it is complete.
Not here: which modules are compiled (compiler.object_cache).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget


def main() -> None:
    """Compiles what standard input names."""
    folder, keys, target = json.load(sys.stdin)
    for key in keys:
        text = (Path(folder) / f"{key}.ll").read_text()
        scratch = Path(folder) / f"{key}.part"
        scratch.write_bytes(compile_module(text, CpuTarget(**target)))
        os.replace(scratch, scratch.with_suffix(".o"))


if __name__ == "__main__":
    main()
