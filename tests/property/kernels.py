"""Random kernels: expressions over every element type, access and reduction.

Input -> Output: a seed -> ``Case`` (a verified kernel, feeds, sizes of its symbols).
Guarantees: an ``exact`` case computes with numbers and operations that do not round, so that every
order of evaluation gives the same bits; the others avoid steps (Floor, conversions to integers).
Not here: schedules and comparisons (test_kernels).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core import dtypes
from tilewright.core.dtypes import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Store,
    call,
    cast,
    constant,
    dim_value,
    reduce_axes,
    select,
)

Array = npt.NDArray[Any]
SIZES = (1, 2, 3, 15, 16, 17, 33)
COMPUTING = [FLOAT32, FLOAT32, FLOAT32, FLOAT64, INT32, INT64, BOOL] + [
    dtypes.BY_NAME[name] for name in ("int8", "uint8", "int16", "uint16", "uint32", "uint64")
]
NARROW = [
    dtypes.BY_NAME[name] for name in ("float16", "bfloat16", "int4", "uint4", "float8_e4m3fn")
]
_SMOOTH = "exp log1p sin cos atan tanh sigmoid erf sqrt asinh expm1 sinh cosh acosh log tan".split()
_EXACT_UNARY = "neg abs sign floor ceil round trunc".split()
_EXACT_BINARY = "add sub mul min max".split()
_INTEGER_BINARY = "add sub mul min max div mod fmod and or xor".split()
_COMPARE = "eq ne lt le gt ge".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kernel with inputs; ``exact`` when no operation rounds."""

    seed: int
    kernel: Kernel
    feeds: Mapping[str, Array]
    sizes: Mapping[str, int]
    exact: bool


@dataclass(slots=True)
class _Maker:
    rng: random.Random
    exact: bool
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: list[Buffer] = field(default_factory=list)
    low: dict[str, int] = field(default_factory=dict)
    own: list[Buffer] = field(default_factory=list)
    count: int = 0

    # --- sizes and axes --------------------------------------------------------------------------

    def extent(self) -> Dim:
        size = self.rng.choice(SIZES) if self.rng.random() > 0.04 else 0
        if self.rng.random() < 0.5:
            return Dim.of(size)
        known = [name for name in self.sizes if self.rng.random() < 0.4]
        if known:
            return Dim.symbol(known[0])
        name = f"n{len(self.sizes)}"
        self.sizes[name] = size
        return Dim.symbol(name)

    def axes(self, low: int, high: int, prefix: str) -> tuple[Axis, ...]:
        result: list[Axis] = []
        for _ in range(self.rng.randint(low, high)):
            self.count += 1
            result.append(Axis(f"{prefix}{self.count}", self.extent()))
        return tuple(result)

    # --- accesses --------------------------------------------------------------------------------

    def load(self, dtype: DType, axes: Sequence[Axis]) -> Expr:
        """An element of some input by some access; sometimes of an earlier stage's result."""
        fitting = [b for b in self.own if b.dtype is dtype and self._fits(b, axes)]
        if fitting and self.rng.random() < 0.5:
            buffer = self.rng.choice(fitting)
            return buffer[tuple(self._axis_of(dim, axes).var for dim in buffer.shape)]
        parts = [self._part(axes) for _ in range(self.rng.randint(0 if not axes else 1, 3))]
        shape = tuple(dim for _, dim, _ in parts)
        buffer = self._input(dtype, shape)
        value: Expr = buffer[tuple(index for index, _, _ in parts)]
        guards = [guard for _, _, guard in parts if guard is not None]
        for guard in guards:
            value = select(guard, value, self._constant(dtype))
        return value

    def _fits(self, buffer: Buffer, axes: Sequence[Axis]) -> bool:
        extents = [axis.extent for axis in axes]
        return all(dim in extents for dim in buffer.shape)

    def _axis_of(self, dim: Dim, axes: Sequence[Axis]) -> Axis:
        return self.rng.choice([axis for axis in axes if axis.extent == dim])

    def _part(self, axes: Sequence[Axis]) -> tuple[Expr, Dim, Expr | None]:
        """One index, the size of its dim, and the guard that keeps it inside."""
        kind = self.rng.random()
        if not axes or kind < 0.08:
            return constant(0, INT64), Dim.of(1), None
        axis = self.rng.choice(axes)
        i, extent = axis.var, axis.extent
        if kind < 0.6:
            return i, extent, None
        if kind < 0.68:
            return i * 2 + 1, extent * 2 + 1, None
        if kind < 0.74:
            return dim_value(extent) - 1 - i, extent, None
        if kind < 0.8:
            other = self.rng.choice(axes)
            return i + other.var, extent + other.extent, None
        if kind < 0.86:
            shifted = i + self.rng.choice((-1, 1, -3))
            inside = call("and", shifted.ge(0), shifted.lt(dim_value(extent)))
            return shifted, extent, inside
        if kind < 0.91:
            return i % 3, Dim.of(3), None
        if kind < 0.95:
            return call("div", i, 2), extent // 2 + 1, None
        ids = self._input(INT64, (extent,), low=-2)
        return call("checked_index", ids[i], constant(2, INT64)), Dim.of(2), None

    def _input(self, dtype: DType, shape: tuple[Dim, ...], low: int | None = None) -> Buffer:
        for buffer in self.inputs:
            same = buffer.dtype is dtype and buffer.shape == shape
            if same and self.low.get(buffer.name) == low and self.rng.random() < 0.4:
                return buffer
        buffer = Buffer(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(buffer)
        if low is not None:
            self.low[buffer.name] = low
        return buffer

    # --- expressions -----------------------------------------------------------------------------

    def _constant(self, dtype: DType) -> Expr:
        if dtype is BOOL:
            return constant(self.rng.random() < 0.5, BOOL)
        if dtype.is_float:
            return constant(self.rng.choice((0.0, 1.0, -1.5, 0.25, 2.0)), dtype)
        return constant(self.rng.choice((0, 1, 2, 3)), dtype)

    def value(self, dtype: DType, depth: int, axes: Sequence[Axis]) -> Expr:
        """An expression of a computing type."""
        roll = self.rng.random()
        if depth <= 0 or roll < 0.12:
            return self._leaf(dtype, axes)
        if roll < 0.24:
            return self._converted(dtype, depth - 1, axes)
        if roll < 0.36 and self._can_reduce(dtype):
            return self._reduced(dtype, depth - 1, axes)
        if roll < 0.46:
            condition = self.value(BOOL, depth - 1, axes)
            return select(
                condition, self.value(dtype, depth - 1, axes), self.value(dtype, depth - 1, axes)
            )
        if dtype is BOOL:
            return self._boolean(depth - 1, axes)
        if dtype.is_float:
            return self._float(dtype, depth - 1, axes)
        return self._integer(dtype, depth - 1, axes)

    def _leaf(self, dtype: DType, axes: Sequence[Axis]) -> Expr:
        roll = self.rng.random()
        if roll < 0.1:
            return self._constant(dtype)
        if roll < 0.16 and axes and dtype is not BOOL:
            return cast(self.rng.choice(axes).var, dtype)
        if roll < 0.3 and dtype.is_float:
            return cast(self.load(self.rng.choice(NARROW), axes), dtype)
        return self.load(dtype, axes)

    def _converted(self, dtype: DType, depth: int, axes: Sequence[Axis]) -> Expr:
        kinds = [kind for kind in COMPUTING if kind is not dtype]
        if not self.exact and not dtype.is_float:
            kinds = [kind for kind in kinds if not kind.is_float]  # no steps at rounded numbers
        return cast(self.value(self.rng.choice(kinds), depth, axes), dtype)

    def _can_reduce(self, dtype: DType) -> bool:
        return not (dtype.is_float and dtype not in (FLOAT32, FLOAT64))

    def _reduced(self, dtype: DType, depth: int, axes: Sequence[Axis]) -> Expr:
        own = self.axes(1, 2, "r")
        inside = [*axes, *own]
        if dtype is BOOL:
            combiner = self.rng.choice(("and", "or", "max", "min"))
        else:
            combiner = self.rng.choice(("sum", "sum", "sum", "max", "min"))
            if not dtype.is_float and self.rng.random() < 0.1:
                combiner = "prod"
        if combiner == "sum" and dtype.is_float:
            body = self.load(dtype, inside)
            if self.rng.random() < 0.6:
                body = body * self._leaf(dtype, inside)
            elif self.rng.random() < 0.3:
                body = body + self._leaf(dtype, axes)
        else:
            body = self.value(dtype, min(depth, 1), inside)
        return reduce_axes(combiner, own, body)

    def _boolean(self, depth: int, axes: Sequence[Axis]) -> Expr:
        if self.rng.random() < 0.3:
            op = self.rng.choice(("and", "or", "xor"))
            return call(op, self.value(BOOL, depth, axes), self.value(BOOL, depth, axes))
        if self.rng.random() < 0.15:
            return call("not", self.value(BOOL, depth, axes))
        kinds = [kind for kind in COMPUTING if self.exact or not kind.is_float]
        kind = self.rng.choice(kinds)
        if kind.is_float and self.rng.random() < 0.2:
            return call(self.rng.choice(("isnan", "isinf")), self.value(kind, depth, axes))
        return call(
            self.rng.choice(_COMPARE), self.value(kind, depth, axes), self.value(kind, depth, axes)
        )

    def _float(self, dtype: DType, depth: int, axes: Sequence[Axis]) -> Expr:
        if self.rng.random() < 0.4:
            arg = self.value(dtype, depth, axes)
            if self.exact:
                return call(self.rng.choice(_EXACT_UNARY), arg)
            op = self.rng.choice(_SMOOTH)
            if op in ("sqrt", "log", "acosh"):
                arg = call("abs", arg) + 1.5
            elif op == "log1p":
                arg = call("abs", arg)
            elif op in ("exp", "expm1", "sinh", "cosh", "tan"):
                arg = call("tanh", arg)
            return call(op, arg)
        if not self.exact and self.rng.random() < 0.2:
            lower = call("abs", self.value(dtype, depth, axes)) + 1.0
            return self.value(dtype, depth, axes) / lower
        op = self.rng.choice(_EXACT_BINARY)
        if op == "mul":  # of small numbers, so that nothing is rounded
            return call(op, self.value(dtype, depth, axes), self._leaf(dtype, axes))
        return call(op, self.value(dtype, depth, axes), self.value(dtype, depth, axes))

    def _integer(self, dtype: DType, depth: int, axes: Sequence[Axis]) -> Expr:
        roll = self.rng.random()
        if roll < 0.2:
            return call(
                self.rng.choice(("neg", "abs", "sign", "not")), self.value(dtype, depth, axes)
            )
        if roll < 0.3:
            count = call("and", self.value(dtype, depth, axes), constant(7, dtype))
            return call(self.rng.choice(("shl", "shr")), self.value(dtype, depth, axes), count)
        if roll < 0.36:
            return call(
                "pow",
                self.value(dtype, depth, axes),
                constant(self.rng.choice((0, 1, 2, 3)), dtype),
            )
        op = self.rng.choice(_INTEGER_BINARY)
        return call(op, self.value(dtype, depth, axes), self.value(dtype, depth, axes))

    # --- stages ----------------------------------------------------------------------------------

    def stage(self, name: str, axes: tuple[Axis, ...] | None = None) -> tuple[Stage, Buffer]:
        axes = axes if axes is not None else self.axes(0, 3, "i")
        dtype = self.rng.choice(COMPUTING)
        order = list(axes)
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        stored = self.rng.choice([dtype, dtype, *NARROW[:2]]) if dtype.is_float else dtype
        out = Buffer(name, stored, tuple(axis.extent for axis in order))
        index = tuple(axis.var for axis in order)
        value = cast(self.value(dtype, self.rng.randint(1, 3), axes), stored)
        if self.rng.random() < 0.15 and axes:
            guard = (self.rng.choice(axes).var % 2).eq(0)
            other = cast(self.value(dtype, 1, axes), stored)
            stores = (
                Store(name, index, value, guard),
                Store(name, index, other, call("not", guard)),
            )
            return Stage(axes, stores), out
        return Stage(axes, (Store(name, index, value),)), out

    def running(self, name: str) -> tuple[Stage, Buffer]:
        """A stage with an ordered axis that reads what it stored before."""
        outer = self.axes(0, 2, "i")
        dtype = self.rng.choice([kind for kind in COMPUTING if kind is not BOOL])
        self.count += 1
        last = Axis(f"k{self.count}", self.extent(), ordered=True)
        axes = (*outer, last)
        out = Buffer(name, dtype, tuple(axis.extent for axis in axes))
        fresh = self.value(dtype, 1, axes)
        before = out[(*(axis.var for axis in outer), last.var - 1)]
        op = self.rng.choice(("add", "max", "min"))
        value = select(last.var.eq(0), fresh, call(op, before, fresh))
        return Stage(axes, (Store(name, tuple(axis.var for axis in axes), value),)), out


def generate(seed: int) -> Case:
    """The kernel of a seed."""
    rng = random.Random(seed)
    maker = _Maker(rng=rng, exact=rng.random() < 0.7)
    stages: list[Stage] = []
    buffers: list[Buffer] = []
    for number in range(rng.choice((1, 1, 1, 2))):
        made = maker.running if rng.random() < 0.08 else maker.stage
        stage, buffer = made(f"y{number}")
        stages.append(stage)
        buffers.append(buffer)
        maker.own.append(buffer)
    outputs = tuple(buffers) if rng.random() < 0.5 else tuple(buffers[-1:])
    kernel = Kernel(
        name=f"random {seed}",
        inputs=tuple(maker.inputs),
        outputs=outputs,
        temporaries=tuple(buffer for buffer in buffers if buffer not in outputs),
        stages=tuple(stages),
    )
    feeds = {
        buffer.name: _contents(rng, buffer, maker.sizes, maker.low.get(buffer.name), maker.exact)
        for buffer in maker.inputs
    }
    return Case(seed=seed, kernel=kernel, feeds=feeds, sizes=maker.sizes, exact=maker.exact)


def _contents(
    rng: random.Random, buffer: Buffer, sizes: Mapping[str, int], low: int | None, exact: bool
) -> Array:
    shape = tuple(dim.evaluate(sizes) for dim in buffer.shape)
    generator = np.random.default_rng(rng.getrandbits(32))
    dtype = buffer.dtype
    if low is not None:
        return generator.integers(low, -low, shape).astype(dtype.numpy)
    if dtype is BOOL:
        return np.asarray(generator.integers(0, 2, shape), bool)
    if dtype.is_float:
        values = generator.integers(-4, 5, shape) / 2
        if exact and rng.random() < 0.15 and dtype in (FLOAT32, FLOAT64):
            special = generator.choice(np.array([np.nan, np.inf, -np.inf, -0.0]), shape)
            values = np.where(generator.random(shape) < 0.2, special, values)
        return values.astype(dtype.numpy)
    bits = dtype.bits
    small = generator.integers(-3 if dtype.is_signed else 0, 4, shape)
    if bits < 8 or rng.random() < 0.5:
        return np.clip(small, -2 if bits < 8 else -3, 3).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    wide = generator.integers(info.min, info.max, shape, dtype=dtype.numpy, endpoint=True)
    return np.where(generator.random(shape) < 0.3, wide, small.astype(dtype.numpy))
