"""What callers give, checked against the engine's inputs.

Input -> Output: arrays by name -> contiguous arrays and the value of every symbol in the declared
shapes.
Guarantees: name, dtype, rank, every fixed dim, equal symbols and declared ranges are checked; an
error says expected and given, whatever was given; text is ``str``, and bytes are read as UTF-8.  A
dtype is never converted silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.check_option import shown
from tilewright.core.dtypes import STRING, DType, from_numpy
from tilewright.core.errors import ShapeMismatch
from tilewright.core.plural import listed
from tilewright.core.shape import shape_text
from tilewright.runtime.cpu.allocator import check_fits, empty, refused
from tilewright.runtime.cuda.arrays import DeviceArray
from tilewright.runtime.program import TensorSpec

Array = npt.NDArray[Any]
Range = tuple[int | None, int | None]
_INNER = "check the sizes of the inputs: values inside of the network do not fit together"


def by_name(
    feeds: Mapping[str, Any] | None, inputs: Mapping[str, Any], specs: Sequence[TensorSpec]
) -> dict[str, Any]:
    """Feeds that were given as a mapping and as keywords, together.

    Raises:
        ShapeMismatch: ``feeds`` is no mapping, an array for example, or a name is in both.
    """
    if feeds is None:
        return dict(inputs)
    if not isinstance(feeds, Mapping):
        names = ", ".join(f"{spec.name!r}: ..." for spec in specs)
        raise ShapeMismatch(
            f"expected a mapping of input names to arrays, given {type(feeds).__name__}",
            remedy=f"give a mapping of input names: {{{names}}}",
        )
    twice = sorted(inputs.keys() & feeds.keys())
    if twice:
        raise ShapeMismatch(
            f"expected each input once, given {listed(twice)} in the mapping and as keywords",
            remedy="give each input in one of the two ways",
        )
    return {**feeds, **inputs}


def check_feeds(
    feeds: Mapping[str, Any],
    specs: Sequence[TensorSpec],
    ranges: Mapping[str, Range],
) -> tuple[dict[str, Any], dict[str, int]]:
    """Validates feeds (see the module's docstring).

    Raises:
        ShapeMismatch: something does not fit.
        OutOfMemory: rows of an input that is not row-major do not fit into this machine.
    """
    known = {spec.name for spec in specs}
    unknown = [name for name in feeds if name not in known]
    missing = [
        spec.name for spec in specs if spec.name not in feeds and spec.container != "optional"
    ]
    if unknown or missing:
        raise ShapeMismatch(
            f"expected inputs {listed(sorted(known))}, given {listed(sorted(map(str, feeds)))}"
            + (f"; missing {listed(missing)}" if missing else "")
            + (f"; unknown {listed(unknown)}" if unknown else ""),
            remedy=f"give {', '.join(map(str, specs)) or 'nothing'}: by name in Python; by "
            "--npz FILE, --input NAME=FILE or --random on the command line",
        )
    values: dict[str, Any] = {}
    symbols: dict[str, int] = {}
    for spec in specs:
        if spec.container != "tensor":
            values[spec.name] = _container(spec, feeds.get(spec.name))
            continue
        array = _typed(feeds[spec.name], spec)
        bind_shape(spec, array, symbols, fed=True)
        values[spec.name] = _rows(array, spec)
    for name, (low, high) in ranges.items():
        size = symbols.get(name)
        if size is not None and (
            (low is not None and size < low) or (high is not None and size > high)
        ):
            raise ShapeMismatch(
                f"dim {name} is {size}, outside of its declared range {_text(low, high)}",
                remedy="feed a size inside the range, or compile again with a wider one",
            )
    return values, symbols


def _feed_remedy(spec: TensorSpec) -> str:
    fixed = all(dim.is_const for dim in spec.shape or ())
    same = "" if fixed else "; a name stands for one size wherever it occurs"
    return f"feed {spec.name} as {_shape(spec)}{same}"


def _shape(spec: TensorSpec) -> str:
    return shape_text(spec.shape or ()).replace("`", "")


def _text(low: int | None, high: int | None) -> str:
    return f"{'' if low is None else low}..{'' if high is None else high}"


def _container(spec: TensorSpec, value: Any) -> Any:
    if value is None and spec.container == "optional":
        return None
    if spec.container == "sequence" and not isinstance(value, list | tuple):
        raise ShapeMismatch(
            f"input {spec.name}: expected a list of arrays, given {type(value).__name__}",
            remedy="give a list, even of one array",
        )
    if isinstance(value, list | tuple):
        return [as_array(part, spec) for part in value]
    return as_array(value, spec)


def as_array(value: Any, spec: TensorSpec) -> Array:
    """A row-major, aligned NumPy array of the declared type.

    Raises:
        ShapeMismatch: it has another type.
        OutOfMemory: its rows do not fit into this machine.
    """
    rows: Array = _rows(_typed(value, spec), spec)
    return rows


def _typed(value: Any, spec: TensorSpec) -> Array:
    """An array of the declared type, however it lies in memory."""
    is_ready = type(value) is np.ndarray or isinstance(value, DeviceArray)
    array = value if is_ready else _convert(value, spec)
    if spec.dtype is STRING:
        return _texts(array, spec)
    try:
        given: DType | None = from_numpy(array.dtype)
    except KeyError:
        given = None
    if given is spec.dtype:
        return array
    if array.dtype == object and not isinstance(value, np.ndarray):
        raise ShapeMismatch(
            f"input {spec.name}: expected {spec.dtype.name}, given {shown(value)} "
            f"({type(value).__name__})",
            remedy=f"give an array of {spec.dtype.name}, or numbers that it holds",
        )
    raise ShapeMismatch(
        f"input {spec.name}: expected {spec.dtype.name}, given {array.dtype}",
        remedy=f"convert it with array.astype({spec.dtype.name!r})",
    )


def _rows(array: Any, spec: TensorSpec) -> Any:
    """Kernels read rows of aligned elements in the machine's byte order."""
    if isinstance(array, DeviceArray):
        return array
    native = array.dtype.isnative
    if array.flags.c_contiguous and array.flags.aligned and native:
        return array
    dtype = array.dtype if native else array.dtype.newbyteorder("=")
    rows = empty(array.shape, dtype, f"input {spec.name}")
    rows[...] = array
    return rows


def _texts(array: Array, spec: TensorSpec) -> Array:
    if array.dtype.kind not in "OUST":
        raise ShapeMismatch(
            f"input {spec.name}: expected strings, given {array.dtype}",
            remedy="give an array of str",
        )
    check_fits(array.size * np.dtype(object).itemsize, f"input {spec.name}")
    texts = (_decoded(part, spec) for part in array.reshape(-1).tolist())
    return np.fromiter(texts, object, array.size).reshape(array.shape)


def _decoded(part: Any, spec: TensorSpec) -> str:
    if isinstance(part, str):
        return part
    try:
        return bytes.decode(part)  # of bytes, and of nothing else
    except (TypeError, UnicodeDecodeError) as error:
        raise ShapeMismatch(
            f"input {spec.name}: expected strings, given {shown(part)} ({type(part).__name__})",
            remedy="give an array of str",
        ) from error


def _convert(value: Any, spec: TensorSpec) -> Array:
    """An array of what is none, or of a subclass whose arithmetic may be another."""
    if isinstance(value, np.ndarray) and np.any(getattr(value, "mask", False)):
        raise ShapeMismatch(
            f"input {spec.name}: expected an array without holes, given {type(value).__name__} "
            "with masked elements",
            remedy="fill them with array.filled(number)",
        )
    array, is_plain = _made_of(value, spec)
    # Plain Python numbers carry no type of their own, so they take the declared one if it holds
    # them.
    if is_plain and spec.dtype is not STRING and array.dtype.kind in "biuf":
        with np.errstate(over="ignore", invalid="ignore"):
            typed = array.astype(spec.dtype.numpy)
        if _holds(typed, array):
            return typed
        if array.dtype.kind != "f" or spec.dtype.is_float:
            raise ShapeMismatch(
                f"input {spec.name}: {spec.dtype.name} does not hold these numbers: {shown(value)}",
                remedy=f"give numbers that fit into {spec.dtype.name}",
            )
    return array


def _made_of(value: Any, spec: TensorSpec) -> tuple[Array, bool]:
    """The array, and whether NumPy chose its type."""
    try:
        if hasattr(value, "__array__"):
            return np.asarray(value), False
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value), False
        return np.asarray(value, object if spec.dtype is STRING else None), True
    except MemoryError as error:
        raise refused(error, f"input {spec.name}") from error
    except Exception as error:  # code of the caller's runs here, and may raise anything
        raise ShapeMismatch(
            f"input {spec.name}: expected {spec.dtype.name}, given {type(value).__name__}, "
            f"of which no array can be made: {error}",
            remedy="give a NumPy array, or lists of equal length",
        ) from error


def _holds(typed: Array, array: Array) -> bool:
    """Whether whole numbers are the same in another type, and real ones are rounded only."""
    if array.dtype.kind == "f":
        return from_numpy(typed.dtype).is_float and bool(
            np.array_equal(np.isfinite(typed.astype(np.float64)), np.isfinite(array))
        )
    return bool(np.array_equal(typed.astype(array.dtype), array))


def bind_shape(
    spec: TensorSpec, array: Array, symbols: dict[str, int], *, fed: bool = False
) -> None:
    """Checks a shape against its spec and sets the symbols that are not known yet.

    Args:
        fed: whether the caller of the engine gave the array.

    Raises:
        ShapeMismatch: rank, a fixed dim or an equal symbol differ.
    """
    if spec.shape is None:
        return
    if len(array.shape) != len(spec.shape):
        raise ShapeMismatch(
            f"{spec.name}: expected rank {len(spec.shape)} {_shape(spec)}, "
            f"given rank {len(array.shape)} {list(array.shape)}",
            remedy=_feed_remedy(spec) if fed else _INNER,
        )
    later = []
    for axis, (dim, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
        name = dim.as_symbol()
        if name is not None and name not in symbols:
            symbols[name] = size
        else:
            later.append((axis, dim, size))
    wrong = []
    for axis, dim, size in later:
        expected = dim.evaluate(symbols) if dim.symbols <= symbols.keys() else None
        if expected is not None and expected != size:
            named = "" if dim.is_const else f" ({dim})".replace("`", "")
            wrong.append(f"axis {axis}{named} is {size}, expected {expected}")
    if wrong:
        raise ShapeMismatch(
            f"{spec.name}: {'; '.join(wrong)}: the shape is {_shape(spec)}, "
            f"given {list(array.shape)}",
            remedy=_feed_remedy(spec) if fed else _INNER,
        )
