"""Every source node has exactly one place, and the place is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.record import Placement
from tilewright.runtime.profile import all_calls
from unit.compiler.models import compiled, network
from unit.graph.models import model_of, node, tensor_info


def places(engine: tw.Engine) -> dict[str, Placement]:
    found = {placement.node: placement for placement in engine.placements}
    assert len(found) == len(engine.placements)
    return found


def test_every_node_of_a_network_once() -> None:
    model = network()
    engine = compiled(model, verify=False)
    found = places(engine)
    assert list(found) == [node.name for node in model.graph.node]
    in_kernels = {name for call in all_calls(engine.program) for name in call.sources}
    for placement in found.values():
        if placement.place == "kernel":
            assert set(placement.computed_by) & in_kernels
        else:
            assert not set(placement.computed_by) & in_kernels
    assert found["flatten"].place == "view"
    assert found["conv"].place == found["softmax"].place == "kernel"


def test_each_kind_of_place() -> None:
    nodes = [
        node("Constant", [], ["k"], name="k", value_floats=[1.0, 2.0, 3.0]),
        node("Neg", ["k"], ["m"], name="neg"),
        node("Identity", ["x"], ["same"], name="same"),
        node("Conv", ["same", "w"], ["c"], name="conv"),
        node("Mul", ["c", "two"], ["scaled"], name="scale"),
        node("Shape", ["scaled"], ["shape"], name="shape"),
        node("Reshape", ["scaled", "flat"], ["r"], name="reshape"),
        node("Det", ["square"], ["d"], name="det"),
        node("Unique", ["x1"], ["u"], name="unique"),
        node("Add", ["r", "m"], ["y"], name="add"),
    ]
    model = model_of(
        nodes,
        inputs=[
            tensor_info("x", (1, 2, 3, 3)),
            tensor_info("square", (3, 3)),
            tensor_info("x1", (6,)),
        ],
        outputs=["y", "d", "u"],
        weights={
            "w": np.ones((2, 2, 1, 1), np.float32),
            "two": np.float32(2),
            "flat": np.array([-1, 3], np.int64),
        },
        opset=21,
    )
    found = places(compiled(model, verify=False))
    assert {name: placement.place for name, placement in found.items()} == {
        "k": "folded",
        "neg": "folded",
        "same": "removed",
        "conv": "kernel",
        "scale": "folded",
        "shape": "removed",
        "reshape": "view",
        "det": "kernel",
        "unique": "host",
        "add": "kernel",
    }
    assert found["same"].by == "eliminate_identities"
    assert found["scale"].by == "fold_scale"
    assert found["scale"].detail.startswith("folded into Conv")
    assert all(placement.by for placement in found.values())


def test_placements_survive_a_file(tmp_path: Path) -> None:
    engine = compiled(network(), verify=False)
    engine.save(tmp_path / "e.tw")
    assert tw.load(tmp_path / "e.tw").placements == engine.placements


@pytest.mark.assets
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "efficientnet_lite0"])
def test_every_node_of_a_real_model_once(name: str, assets: Path) -> None:
    path = assets / "models" / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the assets")
    engine = compiled(onnx.load(path), verify=False)
    known = {"kernel", "host", "view", "folded", "removed"}
    for placement in places(engine).values():
        assert placement.place in known
        assert placement.by
