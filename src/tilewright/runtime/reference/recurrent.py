"""RNN, GRU and LSTM with every option.

Guarantees: sequence_lens (state frozen and output zero behind a sequence's end, reversal within
it), layout, clip, peepholes, input_forget, linear_before_reset, all activations.
Source: ONNX specification of RNN-22, GRU-22 and LSTM-22."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.core.plural import plural
from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.math import activation
from tilewright.runtime.reference.registry import Call, Outputs, operator

Function = Callable[[Array], Array]
State = tuple[Array, ...]
Step = Callable[[Array, State], State]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Inputs in layout 0; weights of one direction are W[d], R[d], bias pair B[d]."""

    x: Array
    weights: Array
    recurrent: Array
    bias: Array
    lengths: Array
    hidden: int
    directions: int
    backwards: tuple[bool, ...]
    states: list[Array]


def _functions(call: Call, default: tuple[str, ...], directions: int) -> list[list[Function]]:
    names = call.texts("activations") or default * directions
    names = names[: len(default) * directions] if len(names) > len(default) else names * directions
    if len(names) != len(default) * directions:
        raise call.error(f"{len(names)} activations for {plural(directions, 'direction')}")
    parameters = []
    for attribute, users in (
        (
            "activation_alpha",
            ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"),
        ),
        ("activation_beta", ("affine", "scaledtanh", "hardsigmoid")),
    ):
        values = list(call.numbers(attribute) or ())
        positional = len(values) == len(names)
        chosen: list[float | None] = []
        for position, name in enumerate(names):
            if positional:
                chosen.append(values[position])
            else:  # a shorter list serves only the functions that have the parameter, in order
                chosen.append(values.pop(0) if values and name.lower() in users else None)
        parameters.append(chosen)
    made = [activation(n, a, b) for n, a, b in zip(names, *parameters, strict=True)]
    return [made[d * len(default) : (d + 1) * len(default)] for d in range(directions)]


def _layer(
    call: Call,
    x: Array,
    weights: Array,
    recurrent: Array,
    bias: Array | None,
    lengths: Array | None,
    states: list[Array | None],
    gates: int,
) -> _Layer:
    direction = call.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    hidden = recurrent.shape[-1]
    if x.ndim != 3 or weights.shape != (directions, gates * hidden, x.shape[2]):
        raise call.error(f"X {x.shape} and W {weights.shape} do not fit hidden size {hidden}")
    if recurrent.shape != (directions, gates * hidden, hidden):
        raise call.error(f"R {recurrent.shape} must be {(directions, gates * hidden, hidden)}")
    batch_first = bool(call.integer("layout", 0))
    data = np.swapaxes(x, 0, 1) if batch_first else x
    steps, batch = data.shape[:2]
    given = np.full(batch, steps) if lengths is None else lengths.astype(np.int64).ravel()
    if given.shape != (batch,) or np.any((given < 0) | (given > steps)):
        raise call.error(f"sequence_lens {given.tolist()} do not fit X {x.shape}")
    shape = (directions, batch, hidden)
    initial = []
    for state in states:
        value = np.zeros(shape, x.dtype) if state is None else state
        value = np.swapaxes(value, 0, 1) if batch_first and state is not None else value
        if value.shape != shape:
            raise call.error(f"initial state {value.shape} must be {shape}")
        initial.append(value)
    return _Layer(
        x=data,
        weights=weights,
        recurrent=recurrent,
        bias=np.zeros((directions, 2 * gates * hidden), x.dtype) if bias is None else bias,
        lengths=given,
        hidden=hidden,
        directions=directions,
        backwards=(False, True) if directions == 2 else (direction == "reverse",),
        states=initial,
    )


def _reversed(data: Array, lengths: Array) -> Array:
    """Each sequence of [T, B, ...] reversed within its own length."""
    steps = np.arange(data.shape[0])[:, None]
    source = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.asarray(data[source, np.arange(data.shape[1])])


def _walk(layer: _Layer, direction: int, step: Step) -> tuple[Array, State]:
    """Run one direction; returns hidden outputs [T, B, H] and the final states."""
    x = _reversed(layer.x, layer.lengths) if layer.backwards[direction] else layer.x
    states: State = tuple(state[direction] for state in layer.states)
    outputs = np.zeros((*x.shape[:2], layer.hidden), x.dtype)
    projected = np.matmul(x, layer.weights[direction].T)
    everywhere = bool(np.all(layer.lengths == x.shape[0]))
    for time in range(x.shape[0]):
        following = step(projected[time], states)
        if everywhere:
            states = following
            outputs[time] = states[0]
            continue
        alive = (time < layer.lengths)[:, None]
        pairs = zip(following, states, strict=True)
        states = tuple(np.where(alive, new, old) for new, old in pairs)
        outputs[time] = np.where(alive, states[0], 0)
    if layer.backwards[direction]:
        outputs = _reversed(outputs, layer.lengths)
    return outputs, states


def _run(call: Call, layer: _Layer, step_of: Callable[[int], Step]) -> Outputs:
    results = [_walk(layer, d, step_of(d)) for d in range(layer.directions)]
    sequence = np.stack([outputs for outputs, _ in results], axis=1)
    finals = [
        np.stack([states[index] for _, states in results]) for index in range(len(layer.states))
    ]
    if call.integer("layout", 0):
        sequence = sequence.transpose(2, 0, 1, 3)
        finals = [np.swapaxes(final, 0, 1) for final in finals]
    return (sequence, *finals)


def _clip(call: Call) -> Function:
    limit = call.get("clip")
    if limit is None or float(limit) == 0:
        return lambda x: x
    bound = float(limit)
    return lambda x: np.clip(x, -bound, bound)


@operator("RNN")
def rnn(
    call: Call,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h: Array | None = None,
) -> Outputs:
    layer = _layer(call, x, w, r, b, lengths, [h], 1)
    functions, clip = _functions(call, ("Tanh",), layer.directions), _clip(call)

    def step_of(d: int) -> Step:
        bias = layer.bias[d].reshape(2, -1).sum(axis=0)

        def step(projected: Array, states: State) -> State:
            return (functions[d][0](clip(projected + states[0] @ layer.recurrent[d].T + bias)),)

        return step

    return _run(call, layer, step_of)


@operator("GRU")
def gru(
    call: Call,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h: Array | None = None,
) -> Outputs:
    layer = _layer(call, x, w, r, b, lengths, [h], 3)
    functions, clip = _functions(call, ("Sigmoid", "Tanh"), layer.directions), _clip(call)
    linear_first = bool(call.integer("linear_before_reset", 0))
    size = layer.hidden

    def step_of(d: int) -> Step:
        input_bias, state_bias = layer.bias[d].reshape(2, -1)
        gates_r, new_r = layer.recurrent[d][: 2 * size].T, layer.recurrent[d][2 * size :].T
        f, g = functions[d]

        def step(projected: Array, states: State) -> State:
            (previous,) = states
            gates = projected[:, : 2 * size] + previous @ gates_r
            gates = f(clip(gates + input_bias[: 2 * size] + state_bias[: 2 * size]))
            update, reset = gates[:, :size], gates[:, size:]
            if linear_first:
                carried = reset * (previous @ new_r + state_bias[2 * size :])
            else:
                carried = (reset * previous) @ new_r + state_bias[2 * size :]
            new = g(clip(projected[:, 2 * size :] + carried + input_bias[2 * size :]))
            return ((1 - update) * new + update * previous,)

        return step

    return _run(call, layer, step_of)


@operator("LSTM")
def lstm(
    call: Call,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h: Array | None = None,
    c: Array | None = None,
    p: Array | None = None,
) -> Outputs:
    layer = _layer(call, x, w, r, b, lengths, [h, c], 4)
    functions, clip = _functions(call, ("Sigmoid", "Tanh", "Tanh"), layer.directions), _clip(call)
    coupled = bool(call.integer("input_forget", 0))
    size = layer.hidden
    peepholes = np.zeros((layer.directions, 3 * size), x.dtype) if p is None else p

    def step_of(d: int) -> Step:
        bias = layer.bias[d].reshape(2, -1).sum(axis=0)
        peep_i, peep_o, peep_f = peepholes[d].reshape(3, size)
        f, g, final = functions[d]

        def step(projected: Array, states: State) -> State:
            previous, cell = states
            gates = projected + previous @ layer.recurrent[d].T + bias
            i, o, forget, candidate = (gates[:, k * size : (k + 1) * size] for k in range(4))
            i = f(clip(i + peep_i * cell))
            forget = 1 - i if coupled else f(clip(forget + peep_f * cell))
            cell = forget * cell + i * g(clip(candidate))
            return f(clip(o + peep_o * cell)) * final(cell), cell

        return step

    return _run(call, layer, step_of)
