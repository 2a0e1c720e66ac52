"""Numbers on the border of two steps may take either, others only their own."""

from typing import Any

import numpy as np
import pytest

from tilewright.compiler.nudge import nudged_values
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from unit.graph.models import model_of, node, tensor_info


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
