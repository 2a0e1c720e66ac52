"""Numbers on the border of two steps may take either, others only their own."""

from typing import Any

import numpy as np
import pytest

from tilewright.compiler.nudge import nudged_values, sensitivity
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from unit.graph.models import model_of, node, tensor_info


def _graph(*nodes: Any, **weights: Any) -> Any:
    model = model_of(
        nodes, inputs=[tensor_info("x", ("n",))], weights=weights, opset=21, output_shape=None
    )
    return Model.load(model, DecisionLog()).original


def _both(op_type: str, x: Any, *inputs: str, **weights: Any) -> list[list[float]]:
    model = model_of(
        [node("Mul", ["x", "half"], ["h"]), node(op_type, ["h", *inputs], ["y"])],
        inputs=[tensor_info("x", ("n",))],
        weights={"half": np.array(0.5, np.float32), **weights},
        opset=21,
    )
    graph = Model.load(model, DecisionLog()).original
    feeds = {"x": np.asarray(x, np.float32)}
    return [value.tolist() for value in nudged_values(graph, feeds, "y")]


@pytest.mark.parametrize(
    ("op_type", "inputs", "weights"),
    [
        ("Round", (), {}),
        ("QuantizeLinear", ("s",), {"s": np.array(1, np.float32)}),
    ],
)
def test_up_and_down(op_type: str, inputs: tuple[str, ...], weights: dict[str, Any]) -> None:
    assert _both(op_type, [5, 5.2, 8], *inputs, **weights) == [[3, 3, 4], [2, 3, 4]]


def test_the_move_is_relative_to_the_largest_number() -> None:
    assert _both("Floor", [2, 2e6]) == [[11, 1_000_010], [-9, 999_990]]


def test_without_steps_there_is_nothing_else() -> None:
    assert _both("Neg", [5]) == []


def test_a_difference_of_nearly_equal_numbers_is_sensitive() -> None:
    nodes = [node("Exp", ["x"], ["a"]), node("Sub", ["a", "c"], ["y"])]
    feeds = {"x": np.zeros(4, np.float32)}
    near, far = (_graph(*nodes, c=np.float32(c)) for c in (0.999, -1))
    assert sensitivity(near, feeds, "y") == pytest.approx(1e-2, rel=0.2)
    assert sensitivity(far, feeds, "y") < 3e-5


def test_moving_numbers_is_exact() -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Concat", ["a", "x"], ["y"], axis=0)]
    assert sensitivity(_graph(*nodes), {"x": np.ones(4, np.float32)}, "y") == 0
