"""LSTM, GRU and RNN against the reference: directions, layouts, lengths, activations, options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.graph.view import NodeView
from tilewright.kernel.ir import Kernel, Load, walk
from tilewright.lower.context import Unlowerable
from tilewright.lower.recurrent_activation import activations_of
from unit.lower.against_reference import check, uniform
from unit.lower.direct import Array, lower

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STEPS, _BATCH, _SIZE, _HIDDEN = 4, 3, 5, 2


def _inputs(
    op: str,
    *,
    directions: int = 1,
    layout: int = 0,
    lengths: bool = False,
    states: bool = True,
    steps: int = _STEPS,
    batch: int = _BATCH,
    dtype: Any = np.float32,
) -> list[Array | None]:
    rows = _GATES[op] * _HIDDEN
    x = uniform(steps, batch, _SIZE, dtype=dtype)
    state = (directions, batch, _HIDDEN)
    initial: list[Array | None] = [uniform(*state, dtype=dtype, seed=5)] if states else [None]
    if op == "LSTM":
        initial += [uniform(*state, dtype=dtype, seed=6)] if states else [None]
    if layout:
        x = np.swapaxes(x, 0, 1).copy()
        initial = [None if s is None else np.swapaxes(s, 0, 1).copy() for s in initial]
    peepholes = [uniform(directions, 3 * _HIDDEN, dtype=dtype, seed=7)] if op == "LSTM" else []
    return [
        x,
        uniform(directions, rows, _SIZE, dtype=dtype, seed=1),
        uniform(directions, rows, _HIDDEN, dtype=dtype, seed=2),
        uniform(directions, 2 * rows, dtype=dtype, seed=3) if states else None,
        np.asarray([steps, 2, 0][:batch], np.int32) if lengths else None,
        *initial,
        *peepholes,
    ]


def _check(op: str, inputs: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    known = {"hidden_size": _HIDDEN, **attributes}
    return check(op, inputs, known, num_outputs=3 if op == "LSTM" else 2)


@pytest.mark.parametrize("op", list(_GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("lengths", [False, True])
def test_directions(op: str, direction: str, layout: int, lengths: bool) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = _inputs(op, directions=directions, layout=layout, lengths=lengths)
    _check(op, inputs, {"direction": direction, "layout": layout})


@pytest.mark.parametrize("op", list(_GATES))
def test_without_optional_inputs(op: str) -> None:
    _check(op, _inputs(op, states=False)[:3], {})


@pytest.mark.parametrize("op", list(_GATES))
@pytest.mark.parametrize("layout", [0, 1])
def test_without_steps_the_state_stays(op: str, layout: int) -> None:
    inputs = _inputs(op, steps=0, layout=layout)
    results = _check(op, inputs, {"layout": layout})
    np.testing.assert_array_equal(results[1], inputs[5])


@pytest.mark.parametrize("op", list(_GATES))
def test_empty_batch(op: str) -> None:
    _check(op, _inputs(op, batch=0), {})


@pytest.mark.parametrize("op", list(_GATES))
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_types(op: str, dtype: Any) -> None:
    _check(op, _inputs(op, dtype=dtype), {"direction": "reverse"})


@pytest.mark.parametrize("op", list(_GATES))
def test_clip(op: str) -> None:
    _check(op, _inputs(op), {"clip": 0.4})


def test_gru_resets_before_or_after_the_product() -> None:
    before = _check("GRU", _inputs("GRU"), {"linear_before_reset": 0})
    after = _check("GRU", _inputs("GRU"), {"linear_before_reset": 1})
    assert not np.allclose(before[0], after[0])
    _check("GRU", _inputs("GRU", states=False)[:3], {"linear_before_reset": 1})


def test_lstm_with_coupled_gates() -> None:
    _check("LSTM", _inputs("LSTM"), {"input_forget": 1})


_ACTIVATIONS = (
    "Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign "
    "Softplus"
).split()


@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_activations(name: str) -> None:
    _check("RNN", _inputs("RNN"), {"activations": [name]})
    shaped = {"activations": [name], "activation_alpha": [0.3], "activation_beta": [0.6]}
    _check("RNN", _inputs("RNN"), shaped)


def test_directions_with_different_activations() -> None:
    names = ["Sigmoid", "Tanh", "Elu", "HardSigmoid", "Softsign", "Tanh"]
    _check(
        "LSTM",
        _inputs("LSTM", directions=2),
        {"direction": "bidirectional", "activations": names, "activation_alpha": [0.3, 0.4]},
    )


def _node(**attributes: Any) -> NodeView:
    return NodeView(
        name="n", op_type="RNN", domain="", opset=22, inputs=(), outputs=(), attributes=attributes
    )


def test_alphas_go_to_the_functions_that_take_one() -> None:
    node = _node(activations=["Sigmoid", "Elu", "Tanh"], activation_alpha=[0.3])
    ((first, second, third),) = activations_of(node, ("Sigmoid", "Tanh", "Tanh"), 1)
    assert (first.alpha, second.alpha, third.alpha) == (0.0, 0.3, 0.0)


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(Unlowerable, match="unknown activations gelu"):
        activations_of(_node(activations=["Gelu"]), ("Tanh",), 1)
    with pytest.raises(Unlowerable, match="3 activations for 1"):
        activations_of(_node(activations=["Tanh"] * 3), ("Tanh",), 1)


def _lowered(outputs: list[tuple[Any, tuple[int, ...]]]) -> list[Kernel]:
    lowering, _ = lower("LSTM", _inputs("LSTM"), outputs, attributes={"hidden_size": _HIDDEN})
    assert sorted(array.shape for array in lowering.constants.values()) == [(1, 2, 8), (1, 5, 8)]
    return [item for item in lowering.items if isinstance(item, Kernel)]


def test_inputs_are_multiplied_before_the_steps() -> None:
    state = (np.float32, (1, _BATCH, _HIDDEN))
    every = (np.float32, (_STEPS, 1, _BATCH, _HIDDEN))
    products, recurrence = _lowered([every, state, state])
    assert products.is_pure
    assert recurrence.steps is not None
    stored = {store.buffer for stage in recurrence.stages for store in stage.stores}
    assert {"y0", "y1", "y2"} <= stored
    loaded = {
        node.buffer
        for stage in recurrence.stages
        for store in stage.stores
        for node in walk(store.value)
        if isinstance(node, Load)
    }
    assert "x0" not in loaded
