"""Where a resized axis reads its operand: positions and weights, as constants or as expressions.

Input -> Output: an ``AxisResize`` -> for each output position the taps' indices and weights.
Guarantees: float64 arithmetic in the order of the ONNX reference, so that ties fall alike; the same
formulas serve constants (NumPy) and run-time sizes (expressions); indices stay inside the axis.
Sources: the ONNX Resize specification; cubic kernel of R. Keys, doi 10.1109/TASSP.1981.1163711.
Not here: which axes are resized and the sum over taps (resize).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from tilewright.core.dtypes import FLOAT64, INT64
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, call, cast, constant, dim_value, reduce_over, select
from tilewright.lower.context import Unlowerable

Number = Any  # an Expr, or a NumPy number or array


class Arithmetic(Protocol):
    """What differs between NumPy and expressions; ``+ - * /`` and ``neg`` are shared."""

    def real(self, value: Number) -> Number: ...
    def whole(self, value: Number) -> Number: ...
    def apply(self, op: str, *args: Number) -> Number: ...
    def choose(self, condition: Number, then: Number, otherwise: Number) -> Number: ...


class Constants:
    """Formulas over NumPy arrays."""

    _OPS: ClassVar[dict[str, Callable[..., Number]]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "abs": np.abs,
        "min": np.minimum,
        "max": np.maximum,
        "lt": np.less,
        "le": np.less_equal,
        "eq": np.equal,
        "or": np.logical_or,
    }

    def real(self, value: Number) -> Number:
        return np.asarray(value, np.float64)

    def whole(self, value: Number) -> Number:
        return np.asarray(value).astype(np.int64)

    def apply(self, op: str, *args: Number) -> Number:
        return self._OPS[op](*args)

    def choose(self, condition: Number, then: Number, otherwise: Number) -> Number:
        return np.where(condition, then, otherwise)


class Expressions:
    """Formulas over kernel expressions."""

    def real(self, value: Number) -> Number:
        if isinstance(value, Dim):
            value = dim_value(value)
        return cast(value, FLOAT64) if isinstance(value, Expr) else constant(value, FLOAT64)

    def whole(self, value: Number) -> Number:
        return cast(value, INT64)

    def apply(self, op: str, *args: Number) -> Number:
        return call(op, *args)

    def choose(self, condition: Number, then: Number, otherwise: Number) -> Number:
        return select(condition, then, otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisResize:
    """One axis and how it is resized.

    Attributes:
        axis: position in the operand.
        size, length: elements of the operand and of the result.
        scale: result over operand; a float where known, else a float64 expression.
        roi: start and end of the region in units of the operand (tf_crop_and_resize), as ``scale``.
        mode: nearest, linear or cubic; ``nearest``: its rounding; ``transform``: coordinates.
        cubic: the kernel's coefficient.
        antialias: widens the kernel when shrinking.
        exclude: drops taps outside of the operand and renormalises.
    """

    axis: int
    size: Dim
    length: Dim
    scale: float | Expr
    roi: tuple[float | Expr, float | Expr] | None
    mode: str
    nearest: str
    transform: str
    cubic: float
    antialias: bool
    exclude: bool

    @property
    def is_constant(self) -> bool:
        """Whether positions and weights are known now."""
        numbers = (self.scale, *(self.roi or ()))
        known = all(isinstance(number, float) for number in numbers)
        return known and self.size.is_const and self.length.is_const

    @property
    def is_identity(self) -> bool:
        """Whether the axis is known to stay as it is."""
        whole = self.roi is None or self.roi == (0.0, 1.0)
        return whole and self.size == self.length and self.scale == 1.0

    @property
    def reach(self) -> Dim:
        """Taps on each side of a position, at least."""
        support = {"nearest": 0, "linear": 1, "cubic": 2}[self.mode]
        if not self.antialias:
            return Dim.of(support)
        if isinstance(self.scale, float):
            return Dim.of(int(np.ceil(support / max(min(self.scale, 1.0), 1e-6))))
        # The rule for result sizes rounds up by less than half: 1/scale <= size / (length - 1/2).
        return support * (2 * self.size).ceildiv((2 * self.length - 1).max(1)) + 1

    @property
    def taps(self) -> Dim:
        """Number of elements that each result reads."""
        return Dim.of(1) if self.mode == "nearest" else 2 * self.reach

    def whole_ratio(self) -> int | None:
        """The factor when the axis repeats each element that many times, else None."""
        ratio = self.length // self.size
        if self.mode != "nearest" or not ratio.is_const or self.length != self.size * ratio:
            return None
        if isinstance(self.scale, float) and self.scale != ratio.const:
            return None
        if self.transform == "asymmetric":
            return ratio.const if self.nearest in ("floor", "simple") else None
        centred = self.transform in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
        return ratio.const if centred and self.nearest.startswith("round") else None

    # --- formulas -------------------------------------------------------------------------------

    def coordinate(self, m: Arithmetic, at: Number) -> Number:
        """Position in the operand that belongs to position ``at`` of the result; float64."""
        scale, place = m.real(self.scale), m.real(at)
        size = m.real(self._dim(m, self.size))
        length = scale * size  # not rounded, as in the reference
        result = m.real(self._dim(m, self.length))
        single = m.apply("eq", result, m.real(1.0))
        centred = (place + 0.5) / scale - 0.5
        match self.transform:
            case "asymmetric":
                return place / scale
            case "half_pixel":
                return centred
            case "pytorch_half_pixel":
                return m.choose(single, m.real(0.0), centred)
            case "tf_half_pixel_for_nn":
                return (place + 0.5) / scale
            case "half_pixel_symmetric":
                offset = size / 2.0 * (m.real(1.0) - result / length)
                return offset + (place + 0.5) / scale - 0.5
            case "align_corners":
                exact = m.apply("eq", length, m.real(1.0))
                return m.choose(exact, m.real(0.0), place * (size - 1.0) / (length - 1.0))
            case "tf_crop_and_resize":
                return self._cropped(m, place, size, length, single)
        raise Unlowerable(f"coordinate transformation {self.transform}")

    def _cropped(
        self, m: Arithmetic, place: Number, size: Number, length: Number, single: Number
    ) -> Number:
        if self.roi is None:
            raise Unlowerable("tf_crop_and_resize without a region")
        start, end = (m.real(bound) for bound in self.roi)
        middle = (end - start) * (size - 1.0) / 2.0
        spread = place * (end - start) * (size - 1.0) / (length - 1.0)
        return m.choose(single, middle, spread) + start * (size - 1.0)

    def outside(self, m: Arithmetic, at: Number) -> Number:
        """Whether a result is extrapolated (tf_crop_and_resize)."""
        position = self.coordinate(m, at)
        last = m.real(self._dim(m, self.size)) - 1.0
        return m.apply("or", m.apply("lt", position, m.real(0.0)), m.apply("lt", last, position))

    def index(self, m: Arithmetic, tap: Number, at: Number) -> Number:
        """The element that a tap reads."""
        last = self._dim(m, self.size) - 1
        found = self._raw_index(m, tap, at)
        return m.apply("max", m.apply("min", found, last), self._zero(m))

    def _raw_index(self, m: Arithmetic, tap: Number, at: Number) -> Number:
        position = self.coordinate(m, at)
        if self.mode == "nearest":
            return m.whole(self._rounded(m, position))
        # The left neighbour lies strictly left, as in the reference: an exact hit is the right one.
        left = m.whole(m.apply("ceil", position)) - 1
        return left + 1 - self._dim(m, self.reach) + tap

    def _rounded(self, m: Arithmetic, position: Number) -> Number:
        floor = m.apply("floor", position)
        match self.nearest:
            case "floor":
                return floor
            case "ceil":
                return m.apply("ceil", position)
            case "round_prefer_floor":
                up = m.apply("lt", m.real(0.5), position - floor)
            case "round_prefer_ceil":
                up = m.apply("le", m.real(0.5), position - floor)
            case "simple":  # Resize-10: up when shrinking
                shrinks = m.apply("lt", m.real(self.scale), m.real(1.0))
                return m.choose(shrinks, m.apply("ceil", position), floor)
            case _:
                raise Unlowerable(f"nearest mode {self.nearest}")
        return m.choose(up, floor + 1.0, floor)

    def raw_weight(self, m: Arithmetic, tap: Number, at: Number) -> Number:
        """A tap's weight before normalisation."""
        position = self.coordinate(m, at)
        ratio = position - (m.apply("ceil", position) - 1.0)
        distance = m.real(tap + 1 - self._dim(m, self.reach)) - ratio
        if self.antialias:
            distance = distance * m.apply("min", m.real(self.scale), m.real(1.0))
        weight = self._kernel(m, m.apply("abs", distance))
        if not self.exclude:
            return weight
        found, last = self._raw_index(m, tap, at), self._dim(m, self.size) - 1
        missed = m.apply("or", m.apply("lt", found, self._zero(m)), m.apply("lt", last, found))
        return m.choose(missed, m.real(0.0), weight)

    def _kernel(self, m: Arithmetic, d: Number) -> Number:
        nothing = m.real(0.0)
        if self.mode == "linear":
            return m.apply("max", m.real(1.0) - d, nothing)
        a = self.cubic
        near = (d * (a + 2.0) - (a + 3.0)) * d * d + 1.0
        far = ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
        far = m.choose(m.apply("lt", d, m.real(2.0)), far, nothing)
        return m.choose(m.apply("le", d, m.real(1.0)), near, far)

    @property
    def needs_norm(self) -> bool:
        """Whether weights must be divided by their sum."""
        return self.antialias or self.exclude

    def weight(self, tap: Expr, at: Expr) -> Expr:
        """A tap's weight as an expression."""
        m = Expressions()
        raw: Expr = self.raw_weight(m, tap, at)
        if not self.needs_norm:
            return raw
        total = reduce_over("sum", (self.taps,), lambda other: self.raw_weight(m, other, at))
        return raw / select(total.eq(0.0), constant(1.0, FLOAT64), total)

    def weights(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """All weights ``[taps, length]`` of a constant axis."""
        taps, at = self.grid()
        with np.errstate(all="ignore"):
            raw = np.broadcast_to(self.raw_weight(Constants(), taps, at), (taps.size, at.size))
            if not self.needs_norm:
                return np.array(raw)
            total = raw.sum(axis=0, keepdims=True)
            return np.array(raw / np.where(total == 0.0, 1.0, total))

    def indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All indices ``[taps, length]`` of a constant axis."""
        taps, at = self.grid()
        with np.errstate(all="ignore"):
            found = self.index(Constants(), taps, at)
        return np.array(np.broadcast_to(found, (taps.size, at.size)), np.int64)

    def grid(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Taps as a column and positions as a row, for constant axes."""
        return np.arange(self.taps.const)[:, None], np.arange(self.length.const)[None, :]

    def _dim(self, m: Arithmetic, dim: Dim) -> Number:
        return dim_value(dim) if isinstance(m, Expressions) else dim.const

    def _zero(self, m: Arithmetic) -> Number:
        return constant(0, INT64) if isinstance(m, Expressions) else 0
