"""Whole engines on disk: a model that was compiled before is loaded instead.

Input -> Output: a model file and what is asked for -> a key; a key -> the parts of its engine.
Guarantees: a key depends on all that the engine does: the bytes and the name of the file, options,
inputs of the verification, timings, the processor, this package's own source and the versions of
its libraries. A damaged entry is no entry, nor is one that lies under another name. The folder
keeps at most ``MOST_BYTES``: what was used least recently goes first.
Not here: kernels that several engines share (object_cache).
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.codegen.cpu.target import named_target
from tilewright.compiler.options import CompileOptions, Wishes
from tilewright.core.cache_folder import make_room, most_bytes
from tilewright.core.errors import CacheError, CorruptEngine, UserError
from tilewright.core.whole_file import drop_unfinished
from tilewright.runtime import engine_file
from tilewright.runtime.engine_file import EngineParts

MOST_BYTES = 4 << 30
MOST_ENGINE_BYTES = 1 << 30
_MOST_MODEL_BYTES = 2**31 - 1  # of protobuf
_KEY = "cache_key"  # among the facts of an engine that is kept
_EXTERNAL = b"location"  # the key by which ONNX names files beside the model
_LIBRARIES = ("numpy", "onnx", "onnx-ir", "llvmlite", "ml_dtypes")


class EngineCache:
    """A folder of engines.

    Args:
        folder: made when the first engine is kept; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, key: str | None) -> EngineParts | None:
        """The engine of a key."""
        if self._folder is None or key is None:
            return None
        start = time.perf_counter()
        path = self._folder / f"{key}.tw"
        try:
            parts = engine_file.load_parts(path)
            if parts.info.pop(_KEY, None) != key:
                return None
            os.utime(path)  # used just now
        except (UserError, CorruptEngine, OSError):
            return None
        parts.times["seconds"] = {"load from the cache": round(time.perf_counter() - start, 4)}
        parts.times["notes"] = ["taken whole from the cache, as it was built before"]
        return parts

    def keep(self, key: str | None, parts: EngineParts) -> None:
        """Keeps an engine; where that cannot be, the next build takes longer."""
        size = sum(array.nbytes for array in parts.constants.values())
        if self._folder is None or key is None or size > MOST_ENGINE_BYTES:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            drop_unfinished(self._folder)
            tied = replace(parts, info={**parts.info, _KEY: key})
            engine_file.save(tied, self._folder / f"{key}.tw")
            make_room(self._folder, "*.tw", most_bytes(MOST_BYTES))
        except (CacheError, OSError) as error:
            reason = error.message if isinstance(error, CacheError) else error.strerror
            if not parts.times["notes"]:  # else they say so of the kernels
                parts.times["notes"].append(f"the engine is not kept in the cache: {reason}")


def key_of(model: Any, options: CompileOptions, wishes: Wishes) -> str | None:
    """What an engine is kept under; None where it must be built.

    That is where more than the engine is asked for (dumps, checks of passes, a search of
    schedules), where the model is no single file, and for GPUs, whose compiler is not in the key.
    """
    searches = wishes.tuning is not None and wishes.tuning.search
    more = (wishes.verify_passes, wishes.dump_graph, wishes.dump_kernels, searches)
    if any(more) or options.target != "cpu" or not isinstance(model, str | os.PathLike):
        return None
    path = Path(os.fsdecode(model))
    content = _content(path)
    if _EXTERNAL in content:
        return None
    found = hashlib.sha256()
    for part in (hashlib.sha256(content).hexdigest(), path.name, repr(options), _surroundings()):
        found.update(os.fsencode(part) + b"\0")
    found.update(repr((named_target(options.cpu or "host"), wishes.verify)).encode())
    try:
        for name, value in sorted((wishes.verify_feeds or {}).items()):
            _update(found, name)
            _update(found, value)
    except (TypeError, RecursionError):
        return None
    if wishes.tuning is not None and wishes.tuning.store is not None:
        try:
            found.update(wishes.tuning.store.read_bytes())
        except OSError:
            return None  # the build says what it makes of that
    return found.hexdigest()


def _content(path: Path) -> bytes:
    """The bytes of a file; of what is none, or too large for a model, what gives no key."""
    try:
        is_small = path.is_file() and path.stat().st_size <= _MOST_MODEL_BYTES
        return path.read_bytes() if is_small else _EXTERNAL
    except (OSError, ValueError):
        return _EXTERNAL  # the import says why


def _update(found: Any, value: Any) -> None:
    """Takes in an array, a sequence, text or a number.

    Raises:
        TypeError: it is something else, whose content only code of the caller's tells.
    """
    if type(value) is np.ndarray and value.dtype != object:
        found.update(f"{value.dtype}\0{value.shape}\0".encode())
        found.update(value.tobytes())
    elif type(value) is np.ndarray or isinstance(value, list | tuple):
        parts = value.reshape(-1) if isinstance(value, np.ndarray) else value
        shape = value.shape if isinstance(value, np.ndarray) else len(value)
        found.update(f"{type(value).__name__}{shape}\0".encode())
        for part in parts:
            _update(found, part)
    elif value is None or isinstance(value, str | bytes | int | float | np.generic):
        found.update(f"{type(value).__name__}{value!r}\0".encode())
    else:
        raise TypeError


_CODE = (".py", ".cuh")


@cache
def _surroundings() -> str:
    """This package's files as they are now, and the versions of its libraries."""
    folder = Path(tilewright.__file__).parent
    code = (path for path in folder.rglob("*") if path.suffix in _CODE)
    files = sorted((str(path), path.stat()) for path in code)
    source = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    return repr((source, [(name, version(name)) for name in _LIBRARIES]))
