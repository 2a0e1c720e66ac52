"""LSTM, GRU and RNN: one contraction over all inputs, then a kernel with one step for each time.

    products = X W^T + biases            (all times)
    step t:  r = h R^T;  gates from products[t] + r;  new c, h;  Y[t] = h
Guarantees: every direction, activation, layout, clip, sequence length, peephole and initial state;
outputs that nobody reads are not stored.  After a sequence's end its state stays and Y is 0.
Not here: what the cells share (recurrent_common), activation functions (recurrent_activation).
"""

from __future__ import annotations

from tilewright.kernel.ir import Buffer, Expr, Stage, Store
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import axes_of, widen
from tilewright.lower.recurrent_common import (
    Recurrence,
    StateSlot,
    kept_when_done,
    make_recurrence,
    make_state,
    recurrent_product,
    run_steps,
    sequence_store,
)
from tilewright.lower.registry import lowers


def _hidden_stores(
    cell: Recurrence, slot: StateSlot, new: Expr, at: tuple[Expr, ...]
) -> list[Store]:
    """Stores of a new hidden state: Y if wanted, then the state."""
    y = cell.ctx.output(0)
    stores = [] if y is None else [sequence_store(cell, y, new, at)]
    value = kept_when_done(cell, at[1], new, slot.buffer[at])
    return [*stores, Store(slot.buffer.name, at, value)]


def _gate_buffer(cell: Recurrence, gates: int) -> Buffer:
    directions, batch, hidden = cell.shape
    return cell.ctx.temporary(cell.dtype, (directions, batch, hidden * gates))


@lowers("RNN")
def rnn(ctx: Lowering) -> None:
    """H_t = f(X_t W^T + H_{t-1} R^T + biases)."""
    cell = make_recurrence(ctx, 1, ("Tanh",), frozenset())
    hidden = make_state(cell, 5, 1)
    gates = _gate_buffer(cell, 1)
    axes = axes_of(cell.shape)
    d, b, j = at = tuple(axis.var for axis in axes)
    new = cell.gate(0, cell.product(d, b, 0, j) + gates[d, b, j], d)
    stages = [
        recurrent_product(cell, gates, range(1), hidden.buffer),
        Stage(axes, tuple(_hidden_stores(cell, hidden, new, at))),
    ]
    run_steps(cell, [hidden], stages, [gates])


@lowers("LSTM")
def lstm(ctx: Lowering) -> None:
    """Gates in the order i, o, f, c; peepholes in the order i, o, f."""
    cell = make_recurrence(ctx, 4, ("Sigmoid", "Tanh", "Tanh"), frozenset())
    hidden, memory = make_state(cell, 5, 1), make_state(cell, 6, 2)
    gates = _gate_buffer(cell, 4)
    axes = axes_of(cell.shape)
    d, b, j = at = tuple(axis.var for axis in axes)
    peepholes = ctx.optional(7)

    def gate(position: int) -> Expr:
        recurrent = gates[d, b, cell.hidden * position + j]
        return cell.product(d, b, position, j) + recurrent

    def peep(position: int, value: Expr, state: Expr) -> Expr:
        if peepholes is None:
            return value
        return value + widen(peepholes[d, cell.hidden * position + j]) * state

    old = memory.buffer[at]
    enter = cell.gate(0, peep(0, gate(0), old), d)
    if int(ctx.node.attribute("input_forget", 0)):
        forget = 1.0 - enter
    else:
        forget = cell.gate(0, peep(2, gate(2), old), d)
    new_memory = forget * old + enter * cell.gate(1, gate(3), d)
    leave = cell.gate(0, peep(1, gate(1), new_memory), d)
    new_hidden = leave * cell.activate(2, new_memory, d)
    # The memory is stored last: the other values read its old content.
    stores = [
        *_hidden_stores(cell, hidden, new_hidden, at),
        Store(memory.buffer.name, at, kept_when_done(cell, b, new_memory, old)),
    ]
    stages = [
        recurrent_product(cell, gates, range(4), hidden.buffer),
        Stage(axes, tuple(stores)),
    ]
    run_steps(cell, [hidden, memory], stages, [gates])


@lowers("GRU")
def gru(ctx: Lowering) -> None:
    """Gates in the order z, r, h; ``linear_before_reset`` resets the product, not the state."""
    linear = bool(ctx.node.attribute("linear_before_reset", 0))
    cell = make_recurrence(ctx, 3, ("Sigmoid", "Tanh"), frozenset({2}) if linear else frozenset())
    hidden = make_state(cell, 5, 1)
    gates = _gate_buffer(cell, 3 if linear else 2)
    axes = axes_of(cell.shape)
    d, b, j = at = tuple(axis.var for axis in axes)

    def gate(position: int) -> Expr:
        value = cell.product(d, b, position, j) + gates[d, b, cell.hidden * position + j]
        return cell.gate(0, value, d)

    stages = [recurrent_product(cell, gates, range(3 if linear else 2), hidden.buffer)]
    extra = [gates]
    if linear:
        candidate = gates[d, b, cell.hidden * 2 + j]
        bias = cell.bias(d, 2, j)
        candidate = gate(1) * (candidate if bias is None else candidate + bias)
    else:
        reset, product = _gate_buffer(cell, 1), _gate_buffer(cell, 1)
        value = gate(1) * hidden.buffer[at]
        stages.append(Stage(axes, (Store(reset.name, at, value),)))
        stages.append(recurrent_product(cell, product, range(2, 3), reset))
        extra += [reset, product]
        candidate = product[at]
    proposed = cell.gate(1, cell.product(d, b, 2, j) + candidate, d)
    update = gate(0)
    new = (1.0 - update) * proposed + update * hidden.buffer[at]
    stages.append(Stage(axes, tuple(_hidden_stores(cell, hidden, new, at))))
    run_steps(cell, [hidden], stages, extra)
