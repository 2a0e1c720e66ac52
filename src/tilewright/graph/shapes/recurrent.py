"""Shape rules of RNN, GRU and LSTM.

Input -> Output: X and weights -> the outputs of all steps and the last states.
Guarantees: ``layout`` 1 puts the batch first in inputs and outputs.
"""

from __future__ import annotations

from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import RuleContext, Shape, shape_rule

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@shape_rule("RNN", "GRU", "LSTM")
def recurrent(ctx: RuleContext) -> NodeInfo:
    """Every step's output, then the last states (LSTM: hidden, then cell)."""
    ctx.same_dtype(0, 1, 2)
    data, weights, recurrence = (ctx.shape_of_rank(position, 3) for position in range(3))
    batch_first = bool(ctx.integer("layout", 0))
    batch, steps = (data[0], data[1]) if batch_first else (data[1], data[0])
    bidirectional = ctx.text("direction", "forward") == "bidirectional"
    directions = Dim.of(2 if bidirectional else 1)
    given = ctx.integer("hidden_size", 0)
    hidden = Dim.of(given) if given else recurrence[2]
    gates = hidden * _GATES[ctx.node.op_type]
    for shape, last in ((weights, data[2]), (recurrence, hidden)):
        for own, size in zip(shape, (directions, gates, last), strict=True):
            ctx.equal(own, size, "weights")
    _check_optional(ctx, batch, directions, hidden, gates, batch_first=batch_first)
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    every: Shape = (steps, directions, batch, hidden)
    if batch_first:
        every = (batch, steps, directions, hidden)
    return ctx.result(every, state)


def _check_optional(
    ctx: RuleContext, batch: Dim, directions: Dim, hidden: Dim, gates: Dim, *, batch_first: bool
) -> None:
    """Bias, lengths, initial states and peepholes."""
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    expected: dict[int, Shape] = {3: (directions, gates * 2), 4: (batch,), 5: state}
    if ctx.node.op_type == "LSTM":
        expected.update({6: state, 7: (directions, hidden * 3)})
    for position, shape in expected.items():
        if ctx.has(position):
            for own, size in zip(ctx.shape_of_rank(position, len(shape)), shape, strict=True):
                ctx.equal(own, size, f"input {position}")
