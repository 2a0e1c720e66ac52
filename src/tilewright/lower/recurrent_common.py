"""What LSTM, GRU and RNN share: weights, activations, time order, initial and final states.

Input -> Output: a node -> ``Recurrence``, from which each cell builds the stages of a time step.
Guarantees: states are [direction, batch, hidden] in the compute type; the products of all inputs
are one contraction before the steps; constant weights are transposed so that the innermost axis is
contiguous.
Not here: the cells' equations (recurrent).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.core.dtypes import INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Stage,
    Store,
    axis_var,
    constant,
    dim_value,
    select,
)
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import axes_of, sum_over, widen
from tilewright.lower.precision import compute_type
from tilewright.lower.recurrent_activation import Activation, activations_of

_STEP = "t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """One node.

    Attributes:
        gates: gates of the cell, in the order of the weights' rows.
        shape: [directions, batch, hidden] of the states.
        length: time steps.
        reverse: whether direction 0 runs backwards (direction 1 always does).
        batch_first: layout 1.
        products: X*W^T plus additive biases, [direction, time, batch, gates*hidden].
    """

    ctx: Lowering
    gates: int
    shape: tuple[Dim, Dim, Dim]
    length: Dim
    reverse: bool
    batch_first: bool
    activations: tuple[tuple[Activation, ...], ...]
    products: Buffer
    weights: Callable[[Expr, Expr, Expr], Expr]

    @property
    def step(self) -> Expr:
        return axis_var(_STEP)

    @property
    def dtype(self) -> DType:
        """The compute type."""
        return self.products.dtype

    @property
    def hidden(self) -> Expr:
        return dim_value(self.shape[2])

    def is_active(self, b: Expr) -> Expr | None:
        """Whether a sequence still has elements at this step; None if all have the same length."""
        lengths = self.ctx.optional(4)
        return None if lengths is None else self.step.lt(lengths[b].cast(INT64))

    def time(self, d: Expr, b: Expr) -> Expr:
        """The time index of this step; backwards sequences start at their own last element."""
        lengths = self.ctx.optional(4)
        last = (dim_value(self.length) if lengths is None else lengths[b].cast(INT64)) - 1
        backwards = last - self.step
        if lengths is not None:
            backwards = select(backwards.ge(0), backwards, self.step)
        if self.shape[0] == Dim.of(1):
            return backwards if self.reverse else self.step
        return select(d.eq(0), self.step, backwards)

    def product(self, d: Expr, b: Expr, gate: int, j: Expr) -> Expr:
        """The input's part of a gate at this step."""
        return self.products[d, self.time(d, b), b, self.hidden * gate + j]

    def clipped(self, value: Expr) -> Expr:
        """A gate's input within the ``clip`` attribute's bounds."""
        bound = float(self.ctx.node.attribute("clip", 0.0) or 0.0)
        return value.max(-bound).min(bound) if bound > 0 else value

    def gate(self, position: int, value: Expr, d: Expr) -> Expr:
        """An activation function of a clipped gate input."""
        return self.activate(position, self.clipped(value), d)

    def activate(self, position: int, value: Expr, d: Expr) -> Expr:
        """An activation function; directions may have different ones."""
        first = self.activations[0][position]
        if all(own[position] == first for own in self.activations):
            return first.apply(value)
        return select(d.eq(0), first.apply(value), self.activations[1][position].apply(value))

    def bias(self, d: Expr, gate: int, j: Expr) -> Expr | None:
        """The recurrent bias of a gate."""
        bias = self.ctx.optional(3)
        if bias is None:
            return None
        return widen(bias[d, self.hidden * (self.gates + gate) + j])

    def state(self, d: Expr, b: Expr, j: Expr, buffer: Buffer) -> Expr:
        """An element of an input or output state."""
        return buffer[(b, d, j) if self.batch_first else (d, b, j)]


def make_recurrence(
    ctx: Lowering, gates: int, defaults: tuple[str, ...], separate_bias: frozenset[int]
) -> Recurrence:
    """Emits the products of all inputs and collects the rest.

    Args:
        gates: gates of the cell.
        defaults: names of the default activations.
        separate_bias: gates whose recurrent bias is not simply added.
    """
    x, w, r = ctx.input(0), ctx.input(1), ctx.input(2)
    batch_first = bool(ctx.node.attribute("layout", 0))
    batch, length = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
    direction = ctx.node.attribute("direction", "forward")
    directions, hidden = Dim.of(2 if direction == "bidirectional" else 1), r.shape[2]
    products = ctx.temporary(compute_type(x.dtype), (directions, length, batch, hidden * gates))
    read_w, read_r = _transposed(ctx, 1, w), _transposed(ctx, 2, r)
    bias = ctx.optional(3)

    def body(d: Expr, t: Expr, b: Expr, g: Expr) -> Expr:
        def term(k: Expr) -> Expr:
            return widen(x[(b, t, k) if batch_first else (t, b, k)]) * read_w(d, g, k)

        total = sum_over([x.shape[2]], term)
        if bias is None:
            return total
        total = total + widen(bias[d, g])
        recurrent = widen(bias[d, g + dim_value(hidden * gates)])
        if separate_bias:
            first = min(separate_bias)
            recurrent = select(g.lt(dim_value(hidden * first)), recurrent, 0)
        return total + recurrent

    ctx.pure(products, body)
    return Recurrence(
        ctx=ctx,
        gates=gates,
        shape=(directions, batch, hidden),
        length=length,
        reverse=direction == "reverse",
        batch_first=batch_first,
        activations=activations_of(ctx.node, defaults, directions.const),
        products=products,
        weights=read_r,
    )


def _transposed(ctx: Lowering, position: int, buffer: Buffer) -> Callable[[Expr, Expr, Expr], Expr]:
    """Reads [direction, row, column] of weights; constant ones are stored with rows innermost."""
    content = ctx.content(position)
    if content is None:
        return lambda d, row, column: widen(buffer[d, row, column])
    stored = ctx.constant(np.ascontiguousarray(content.transpose(0, 2, 1)), buffer.dtype)
    return lambda d, row, column: widen(stored[d, column, row])


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlot:
    """A state kept from step to step; ``initial`` is an input, ``final`` an output."""

    buffer: Buffer
    initial: Buffer | None
    final: Buffer | None


def make_state(cell: Recurrence, initial: int, final: int) -> StateSlot:
    """Declares a state; an output that can hold it is used itself."""
    ctx = cell.ctx
    out = ctx.output(final)
    direct = (
        out is not None
        and not cell.batch_first
        and out.dtype is cell.dtype
        and cell.length.is_const
        and cell.length.const > 0
    )
    buffer = out if direct and out is not None else ctx.temporary(cell.dtype, cell.shape)
    return StateSlot(buffer=buffer, initial=ctx.optional(initial), final=None if direct else out)


def initial_value(cell: Recurrence, slot: StateSlot, d: Expr, b: Expr, j: Expr) -> Expr:
    """The state before the first step."""
    if slot.initial is None:
        return constant(0, cell.dtype)
    return widen(cell.state(d, b, j, slot.initial))


def first_step(cell: Recurrence, slots: list[StateSlot]) -> Stage:
    """Sets the states at step 0."""
    axes = axes_of(cell.shape)
    d, b, j = at = tuple(axis.var for axis in axes)
    start = cell.step.eq(0)
    return Stage(
        axes,
        tuple(
            Store(slot.buffer.name, at, initial_value(cell, slot, d, b, j), start) for slot in slots
        ),
    )


def recurrent_product(cell: Recurrence, out: Buffer, gates: range, operand: Buffer) -> Stage:
    """``out[d, b, n] = sum_k operand[d, b, k] * R[d, n, k]`` for the rows of consecutive gates."""
    directions, batch, hidden = cell.shape
    axes = axes_of((directions, batch, hidden * len(gates)))
    d, b, n = (axis.var for axis in axes)
    first = cell.hidden * gates.start
    total = sum_over([hidden], lambda k: operand[d, b, k] * cell.weights(d, n + first, k))
    return Stage(axes, (Store(out.name, (d, b, n), total),))


def kept_when_done(cell: Recurrence, b: Expr, new: Expr, old: Expr) -> Expr:
    """The new state, or the old one where the sequence has ended."""
    active = cell.is_active(b)
    return new if active is None else select(active, new, old)


def sequence_store(cell: Recurrence, out: Buffer, value: Expr, at: tuple[Expr, ...]) -> Store:
    """Stores this step's hidden state in Y; 0 where the sequence has ended."""
    d, b, j = at
    active = cell.is_active(b)
    shown = value if active is None else select(active, value, 0)
    time = cell.time(d, b)
    place = (b, time, d, j) if cell.batch_first else (time, d, b, j)
    return Store(out.name, place, shown.cast(out.dtype))


def run_steps(
    cell: Recurrence, slots: list[StateSlot], stages: list[Stage], extra: list[Buffer]
) -> None:
    """Emits the stepping kernel and the copies of final states."""
    ctx = cell.ctx
    y = ctx.output(0)
    outputs = [slot.buffer for slot in slots]
    ctx.stages(
        (*([y] if y is not None else []), *outputs),
        (first_step(cell, slots), *stages),
        extra=tuple(extra),
        steps=Axis(_STEP, cell.length, ordered=True),
    )
    for slot in slots:
        if slot.final is not None:
            _emit_final(cell, slot, slot.final)


def _emit_final(cell: Recurrence, slot: StateSlot, out: Buffer) -> None:
    """The last state; the initial one if there are no steps."""
    length = cell.length

    def body(*index: Expr) -> Expr:
        d, b = (index[1], index[0]) if cell.batch_first else (index[0], index[1])
        value = slot.buffer[d, b, index[2]]
        if not (length.is_const and length.const > 0):
            start = initial_value(cell, slot, d, b, index[2])
            value = select(dim_value(length).gt(0), value, start)
        return value.cast(out.dtype)

    cell.ctx.pure(out, body)
