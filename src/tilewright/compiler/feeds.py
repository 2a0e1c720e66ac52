"""Makes the arrays that a model is fed with: from files, or random from a seed.

Input specs (name, dtype, shape with symbolic dims) -> arrays by input name.
Guarantees: the same specs, sizes and seed give the same arrays.
Not here: whether the arrays fit a model, which the engine checks itself.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core import dtypes
from tilewright.core.errors import BadOption, OutOfMemory, UserError
from tilewright.core.plural import listed
from tilewright.core.shape import Dim
from tilewright.runtime.program import TensorSpec

Arrays = dict[str, npt.NDArray[Any]]

_MAX_ELEMENTS = 2**48
_ARCHIVE = b"PK"  # how a zip begins
MAX_RANDOM_INTEGER = 2  # exclusive: 0 and 1 are valid as ids, masks and flags alike


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """An input: its name, its dtype's name in ``core.dtypes``, its dims, symbolic ones as names."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @staticmethod
    def of(name: str, dtype: object, shape: Iterable[object]) -> "InputSpec":
        """Makes a spec of dims that are integers, text, or ``None`` or -1 where they have no name.

        A dim without a name gets one from the input and the axis, ``x.0``.
        """
        dims: list[int | str] = []
        for axis, dim in enumerate(shape):
            text = "" if dim is None else size_name(dim)
            unnamed = text in ("", "?", "-1")
            dims.append(f"{name}.{axis}" if unnamed else int(text) if text.isdecimal() else text)
        return InputSpec(name=name, dtype=str(dtype), shape=tuple(dims))


def size_name(dim: object) -> str:
    """What a size is given by: the bare name of a dim that is just a name, else its text."""
    return (dim.as_symbol() if isinstance(dim, Dim) else None) or str(dim)


def load_npz(path: Path) -> Arrays:
    """Returns the arrays of an ``.npz`` file by name.

    Raises:
        UserError: there is no such file, or it is none that NumPy reads without pickle.
        OutOfMemory: an array does not fit into memory.
    """
    with _reading(path, "an .npz file", "numpy.savez"), path.open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise UserError("holds one array", file=str(path), remedy="use --input NAME=FILE")
        with arrays:
            return {name: arrays[name] for name in arrays}


def load_npy(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """Returns the array of an ``.npy`` file.

    Args:
        mapped: leave the numbers in the file until they are used.

    Raises:
        UserError: there is no such file, or it is none that NumPy reads without pickle.
        OutOfMemory: the array does not fit into memory.
    """
    with _reading(path, "an .npy file", "numpy.save"):
        with path.open("rb") as file:
            begin = file.read(len(_ARCHIVE))
        if begin == _ARCHIVE:
            raise UserError(
                "holds arrays by name, as .npz files do",
                file=str(path),
                remedy="use --npz FILE, or name it .npz",
            )
        array: npt.NDArray[Any] = np.load(
            path, mmap_mode="r" if mapped else None, allow_pickle=False
        )
        return array


@contextmanager
def _reading(path: Path, what: str, function: str) -> Iterator[None]:
    """Says what keeps NumPy from reading a file, whichever library below it notices."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError("no such file", file=str(path), remedy="check the path") from None
    except MemoryError as error:
        raise OutOfMemory(
            f"does not fit into memory: {error}",
            file=str(path),
            remedy="give fewer or smaller arrays",
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror or error}", file=str(path), remedy="check the path"
        ) from error
    except Exception as error:  # of archives, of each way to pack them, of Python's own parser
        raise UserError(
            f"not {what}: {_reason(str(error))}",
            file=str(path),
            remedy=f"write arrays of numbers or text with {function}",
        ) from error


def _reason(message: str) -> str:
    """NumPy's reason without its advice to trust the file, which would let it run anything."""
    if message.startswith(("Object arrays", "Array can't be memory-mapped")):
        return "it holds Python objects, which are never read"
    # What NumPy does not know may be pickled to it.
    return "it does not begin as one" if "pickle" in message else message


def from_files(feeds: Arrays, specs: Iterable[TensorSpec]) -> tuple[Arrays, list[str]]:
    """Returns arrays that were read from files in types that files cannot hold, where wanted.

    NumPy's files have no bfloat16, float8 or int4; such inputs are given in wider types.

    Args:
        feeds: arrays by input name.
        specs: the engine's inputs.

    Returns:
        The arrays, and a note on each that was converted.
    """
    result, notes = dict(feeds), []
    for spec in specs:
        array = feeds.get(spec.name)
        if array is None or spec.dtype.numpy.kind != "V" or array.dtype.kind not in "fiu":
            continue
        result[spec.name] = array.astype(spec.dtype.numpy)
        notes.append(f"input {spec.name}: {array.dtype} of the file converted to {spec.dtype}")
    return result, notes


def to_files(values: Mapping[str, Any]) -> tuple[Arrays, list[str]]:
    """Returns outputs as arrays that NumPy's files hold without pickle, exactly.

    Args:
        values: arrays; lists for sequences; None for optionals that are empty.

    Returns:
        The arrays (parts of a sequence as ``name.0``, ``name.1`` ...), and a note on each change.
    """
    arrays: Arrays = {}
    notes: list[str] = []
    for name, value in values.items():
        if value is None:
            notes.append(f"output {name} is empty and not written")
        elif isinstance(value, list):
            parts, more = to_files({f"{name}.{k}": part for k, part in enumerate(value)})
            arrays.update(parts)
            notes.extend(more)
        elif value.dtype == object:
            arrays[name] = value.astype(np.str_)
        elif value.dtype.kind == "V":
            dtype = dtypes.from_numpy(value.dtype)
            wider = np.float32 if dtype.is_float else np.int8 if dtype.is_signed else np.uint8
            arrays[name] = value.astype(wider)
            notes.append(f"output {name}: {dtype} written as {arrays[name].dtype}")
        else:
            arrays[name] = value
    return arrays, notes


def check_sizes(dims: Collection[str], sizes: Mapping[str, int]) -> None:
    """Sees that every symbolic dim has a size.

    Raises:
        BadOption: one has none.
    """
    if missing := sorted(set(dims) - set(sizes)):
        remedy = " ".join(f"--dim {name}=SIZE" for name in missing)
        raise BadOption(f"no size for the symbolic dims {listed(missing)}", remedy=f"give {remedy}")


def random_feeds(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Returns random arrays: standard normal numbers, or 0 and 1 where the dtype is no float.

    Args:
        specs: the inputs.
        sizes: the size of each symbolic dim.
        seed: of the random numbers.

    Raises:
        BadOption: a symbolic dim has no size, or a size is for a dim that no input has.
        OutOfMemory: an array would be larger than any memory.
    """
    dims = {dim for spec in specs for dim in spec.shape if isinstance(dim, str)}
    check_sizes(dims, sizes)
    if unknown := sorted(set(sizes) - dims):
        raise BadOption(
            f"no input has a dim {listed(unknown)}", remedy=f"the dims are {listed(sorted(dims))}"
        )
    rng = np.random.default_rng(seed)
    feeds: Arrays = {}
    for spec in specs:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        dtype = dtypes.BY_NAME[spec.dtype]
        if math.prod(shape) > _MAX_ELEMENTS:
            message = f"input {spec.name} would have the shape {shape}"
            raise OutOfMemory(message, remedy="give smaller sizes in --dim")
        if dtype.kind in (dtypes.Kind.STRING, dtypes.Kind.COMPLEX):
            message = f"input {spec.name} is {dtype}, which cannot be random"
            raise BadOption(message, remedy="give it in a file")
        if dtype.is_float:
            feeds[spec.name] = rng.standard_normal(shape, np.float32).astype(dtype.numpy)
        else:
            feeds[spec.name] = rng.integers(0, MAX_RANDOM_INTEGER, shape).astype(dtype.numpy)
    return feeds
