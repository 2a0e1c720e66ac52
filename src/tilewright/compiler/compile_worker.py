"""A process that compiles modules: reads ``[folder, keys, target]``, writes ``KEY.o`` beside
``KEY.ll``.

Guarantees: an object file appears under its name only when it is complete.
Not here: which modules are compiled (compiler.object_cache).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget

CANNOT_WRITE = 74  # exit code: the folder cannot be written, stderr says why


def main() -> int:
    """Compiles what standard input names; returns the exit code."""
    folder, keys, target = json.load(sys.stdin)
    try:
        for key in keys:
            text = (Path(folder) / f"{key}.ll").read_text()
            scratch = Path(folder) / f"{key}.part"
            scratch.write_bytes(compile_module(text, CpuTarget(**target)))
            scratch.replace(scratch.with_suffix(".o"))
    except OSError as error:
        sys.stderr.write(f"cannot write to {folder}: {error.strerror}")
        return CANNOT_WRITE
    return 0


if __name__ == "__main__":
    sys.exit(main())
