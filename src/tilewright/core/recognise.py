"""Which files are engines, by what they begin with: their names are the user's.

Input -> Output: a path -> whether an engine file is there, or a ``.tw`` that is to be one.
Not here: reading engines (runtime.engine_file), which says what is wrong with them.
"""

from __future__ import annotations

from pathlib import Path

WEIGHTS = "weights.safetensors"  # the first member of every engine
_SIGNATURE = b"PK\x03\x04"  # of the archive; the name of its first member follows
_NAME_AT = 30


def is_engine(path: Path) -> bool:
    """Whether to load a file; anything else is compiled, or is refused as no model."""
    if path.suffix == ".tw":
        return True
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            begin = file.read(_NAME_AT + len(WEIGHTS))
    except OSError:
        return False
    return begin.startswith(_SIGNATURE) and begin[_NAME_AT:] == WEIGHTS.encode()
