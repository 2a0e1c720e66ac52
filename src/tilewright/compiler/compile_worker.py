"""A process that compiles modules: reads ``[folder, keys, target]``, writes ``KEY.o`` beside
``KEY.ll``.

Guarantees: an object file appears under its name only when it is complete; the process ends when
the one that started it does, however that ends.
Not here: which modules are compiled (compiler.object_cache).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget

CANNOT_WRITE = 74  # exit code: the folder cannot be written, stderr says why


def main() -> int:
    """Compiles what the first line of standard input names; returns the exit code."""
    folder, keys, target = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _end_with_parent() -> None:
    """The other end of standard input stays open for as long as the parent lives."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
