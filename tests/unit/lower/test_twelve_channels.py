"""12 channels are one block for sums of floats, and whole vectors for pairs of bfloat16."""

from __future__ import annotations

import pytest

from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info


@pytest.mark.parametrize(("precision", "is_one_block"), [("fp32", True), ("bf16", False)])
def test_pairs_of_bfloat16_are_summed_up_for_whole_vectors(
    precision: str, is_one_block: bool
) -> None:
    shapes = {"v": (24, 3, 3, 3), "w": (12, 24, 3, 3), "u": (24, 12, 3, 3)}
    nodes = [
        node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w"], ["c"], name="to_12", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "u"], ["y"], name="from_12", pads=[1, 1, 1, 1]),
    ]
    weights = {name: normal(*shape) for name, shape in shapes.items()}
    model = model_of(nodes, inputs=[tensor_info("x", (1, 3, 40, 40))], weights=weights)
    engine = compiled(
        model, precision=precision, cpu="znver4", disable=["winograd"], verify=False, threads=1
    )
    layouts = [one.chosen for one in engine.decisions if one.stage == "layout"]
    assert ("channels in blocks of 12" in layouts) is is_one_block
    tactics = [one for one in engine.decisions if one.stage == "tactic" and "to_12" in one.subject]
    assert any(one.chosen.startswith("dot_product") for one in tactics) is not is_one_block
