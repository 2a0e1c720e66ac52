"""Calibration and evaluation data: files, folders, iterables and functions as batches of feeds.

Input -> Output: what a caller calls data, and a model's inputs -> ``Batches``, which can be walked
several times.
Guarantees: one batch is in memory at a time; every batch is checked before it is used: names,
types, NaN and infinities.
Not here: pixels (pictures), labels and scores (score).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.feeds import load_npy, load_npz
from tilewright.compress.pictures import SUFFIXES, Preprocessing, read_picture
from tilewright.core.errors import BadOption, OutOfMemory, UserError
from tilewright.graph.view import ValueView

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

BATCH = 8  # pictures and rows at once, where the model leaves its first dim open
_ARRAYS = (".npy", ".npz")


class BadData(UserError):
    """Data that cannot be calibrated or evaluated with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches of feeds.

    Attributes:
        walk: gives the batches from the first on.
        name: of the data, for messages.
        again: whether ``walk`` gives them more than once.
        files: of each sample, in order, where samples are files.
        num_samples: None where only a walk tells.
    """

    walk: Callable[[], Iterator[Feeds]]
    name: str
    again: bool = True
    files: tuple[str, ...] | None = None
    num_samples: int | None = None

    def __iter__(self) -> Iterator[Feeds]:
        return self.walk()


def open_data(
    data: Any,
    inputs: Sequence[ValueView],
    *,
    preprocessing: Preprocessing | None = None,
    limit: int | None = None,
) -> Batches:
    """Says how to walk over data.

    Args:
        data: a folder of pictures or of ``.npy`` and ``.npz`` files; one such file, whose arrays
            have a sample a row; an iterable of feeds, or a function that returns one. Feeds are
            arrays by input name, or one array for a model of one input.
        inputs: of the model.
        preprocessing: what is done to pictures; needed for them, refused for the rest.
        limit: samples to use at most; a batch that the caller makes, or whose size the model
            fixes, stays whole.

    Raises:
        BadData: there is nothing at the path, or nothing that can be used.
        BadOption: it is none of these, or ``preprocessing`` contradicts it.
    """
    if isinstance(data, str | os.PathLike):
        return _from_path(Path(data), inputs, preprocessing, limit)
    if preprocessing is not None:
        raise BadOption(
            "preprocessing is for pictures", remedy="drop it, or give a folder of pictures"
        )
    make = data if callable(data) else None
    if make is None and not isinstance(data, Iterable):
        raise BadOption(
            f"data is {type(data).__name__}",
            remedy="give a folder, a file, a list of feeds, or a function that returns an iterator",
        )

    def walk() -> Iterator[Feeds]:
        given = make() if make is not None else data
        return _limited((as_feeds(item, inputs, "data") for item in given), limit)

    again = make is not None or iter(data) is not data
    return Batches(walk=walk, name="data", again=again)


def as_feeds(given: Any, inputs: Sequence[ValueView], name: str) -> Feeds:
    """Checks one batch.

    Raises:
        BadData: a missing or unknown input, a wrong type, NaN or infinities.
    """
    names = [value.name for value in inputs]
    if not isinstance(given, Mapping):
        if len(names) != 1:
            raise BadData(
                f"{name}: a batch is {type(given).__name__}, the model has inputs {names}",
                remedy="give each batch as a dict of arrays by input name",
            )
        given = {names[0]: given}
    if set(given) != set(names):
        raise BadData(
            f"{name}: a batch has {sorted(given)}, the model has inputs {names}",
            remedy="give an array for each input, by its name",
        )
    return {value.name: _checked(given[value.name], value, name) for value in inputs}


def _checked(given: Any, value: ValueView, name: str) -> Array:
    array = np.asarray(given)
    if value.dtype is not None and array.dtype != value.dtype.numpy:
        same_kind = array.dtype.kind == value.dtype.numpy.kind
        if not same_kind:
            raise BadData(
                f"{name}: {value.name} is {array.dtype}, the model takes {value.dtype.name}",
                remedy=f"convert it: array.astype({value.dtype.name!r})",
            )
        array = array.astype(value.dtype.numpy)
    if value.shape is not None and array.ndim != len(value.shape):
        raise BadData(
            f"{name}: {value.name} has shape {array.shape}, the model takes {len(value.shape)} "
            "dims",
            remedy="batches have the model's dims, the first of which counts samples",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadData(
            f"{name}: {value.name} holds NaN or infinities",
            remedy="leave these samples out, or mend what prepares them",
        )
    return array


# --- paths ----------------------------------------------------------------------------------------


def _from_path(
    path: Path,
    inputs: Sequence[ValueView],
    preprocessing: Preprocessing | None,
    limit: int | None,
) -> Batches:
    if path.is_file() and path.suffix in _ARRAYS:
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
    else:
        raise BadData(
            "no folder, .npy or .npz file", file=str(path), remedy="check the path of the data"
        )
    pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
    arrays = [file for file in files if file.suffix in _ARRAYS]
    if bool(pictures) == bool(arrays):
        found = "pictures and arrays" if pictures else "neither pictures nor .npy or .npz files"
        raise BadData(f"holds {found}", file=str(path), remedy="give a folder of one kind of file")
    if arrays:
        if preprocessing is not None:
            raise BadOption(
                "preprocessing is for pictures",
                file=str(path),
                remedy="drop it: arrays are used as they are",
            )
        return _of_arrays(path, arrays, inputs, limit)
    return _of_pictures(path, pictures[:limit], inputs, preprocessing)


def _of_arrays(
    path: Path, files: Sequence[Path], inputs: Sequence[ValueView], limit: int | None
) -> Batches:
    any_size = not any(value.shape[0].is_const for value in inputs if value.shape)

    def walk() -> Iterator[Feeds]:
        left = limit if any_size else None  # else the last batch stays whole
        for file in files:
            if left == 0:
                return
            feeds = as_feeds(_load(file, inputs), inputs, str(file))
            rows = num_rows(feeds)
            if left is not None:
                rows = min(rows, left)
                left -= rows
            step = _batch_size(inputs) or rows
            for start in range(0, rows, step):
                end = min(start + step, rows) if any_size else start + step
                yield {name: array[start:end] for name, array in feeds.items()}

    return Batches(walk=lambda: _limited(walk(), limit), name=str(path))


def _load(file: Path, inputs: Sequence[ValueView]) -> Feeds:
    """The arrays of a file; those of ``.npy`` are mapped, not read."""
    try:
        if file.suffix == ".npz":
            return load_npz(file)
        mapped = load_npy(file, mapped=True)
    except OutOfMemory:
        raise
    except UserError as error:
        raise BadData(error.message, file=error.file, remedy=error.remedy) from error
    if len(inputs) != 1:
        raise BadData(
            f"holds one array, the model has {len(inputs)} inputs",
            file=str(file),
            remedy="save them by name: numpy.savez(path, **feeds)",
        )
    return {inputs[0].name: mapped}


def _of_pictures(
    path: Path,
    files: Sequence[Path],
    inputs: Sequence[ValueView],
    preprocessing: Preprocessing | None,
) -> Batches:
    if len(inputs) != 1:
        raise BadData(
            f"holds pictures, the model has {len(inputs)} inputs",
            file=str(path),
            remedy="save the feeds by name: numpy.savez(path, **feeds)",
        )
    if preprocessing is None:
        raise BadOption(
            "holds pictures, and nothing says what the model expects of them",
            file=str(path),
            remedy="state it: preprocessing=Preprocessing(mean=..., std=...) (--mean, --std); for "
            "example --mean 127 --std 128",
        )
    spec = inputs[0]
    step = _batch_size(inputs) or BATCH

    def walk() -> Iterator[Feeds]:
        for start in range(0, len(files), step):
            chosen = [read_picture(file, spec, preprocessing) for file in files[start:][:step]]
            yield as_feeds({spec.name: np.stack(chosen)}, inputs, str(path))

    names = tuple(str(file.relative_to(path)) for file in files)
    return Batches(walk=walk, name=str(path), files=names, num_samples=len(names))


def _batch_size(inputs: Sequence[ValueView]) -> int | None:
    """Samples a batch; None: as given."""
    firsts = [value.shape[0] for value in inputs if value.shape]
    fixed = {dim.const for dim in firsts if dim.is_const}
    return fixed.pop() if len(fixed) == 1 else None if fixed else BATCH


def num_rows(feeds: Feeds) -> int:
    """Samples of a batch."""
    return max((array.shape[0] for array in feeds.values() if array.ndim), default=1)


def _limited(batches: Iterable[Feeds], limit: int | None) -> Iterator[Feeds]:
    seen = 0
    for feeds in batches:
        if limit is not None and seen >= limit:
            return
        seen += num_rows(feeds)
        yield feeds
