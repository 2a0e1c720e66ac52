"""Planted faults are found where they are, and small models reproduce them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.compiler import bisect, build_program, compare
from tilewright.compiler import verify as compiler_verify
from tilewright.compiler.bisect import Fault, regions
from tilewright.compiler.check import reproduce, verify
from tilewright.compiler.observe import observe
from tilewright.compiler.verify import Verification
from tilewright.core.errors import BadOption, OutOfMemory, VerificationFailed
from tilewright.core.record import DecisionLog
from tilewright.graph import facade
from tilewright.graph.facade import Model
from tilewright.graph.passes.base import Pass, PassContext
from tilewright.graph.passes.standard import STANDARD
from tilewright.kernel.ir import Expr, Kernel, call
from tilewright.lower.broadcast import elementwise
from tilewright.lower.context import Lowering
from tilewright.lower.families import LOWERINGS
from tilewright.lower.fuse import fuse
from tilewright.runtime.arena import Timeline
from unit.compiler.models import compiled, feeds_of, network, normal, saved
from unit.graph.models import model_of, node, tensor_info


def _plant(monkeypatch: pytest.MonkeyPatch, op_type: str, body: Callable[[Expr], Expr]) -> None:
    def wrong(ctx: Lowering) -> None:
        elementwise(ctx, body)

    monkeypatch.setitem(LOWERINGS, ("", op_type), wrong)


def _verified(path: Path, feeds: dict[str, Any] | None = None) -> tuple[Verification, Fault]:
    found = verify(path, feeds=feeds or feeds_of())
    assert not found.passed
    assert found.fault is not None
    return found, found.fault


def test_observed_values_are_those_of_the_reference() -> None:
    engine = compiled(network(), verify=False)
    values = observe(engine, feeds_of())
    outputs = engine.run(feeds_of())
    assert {"x", "y", "r"} < values.keys()
    for name, value in outputs.items():
        np.testing.assert_array_equal(values[name], value)
    assert "g" in values  # a value in between, read twice


def test_regions_lie_between_known_values() -> None:
    graph = Model.load(network(), DecisionLog()).original
    found = {region.value: region for region in regions(graph, {"x", "r", "g", "y"})}
    assert found["r"].inputs == ("x",)
    assert [node.op_type for node in found["g"].nodes] == ["GlobalAveragePool", "Flatten", "Gemm"]
    assert set(found["y"].inputs) == {"g"}


def test_a_right_engine_has_no_fault(tmp_path: Path) -> None:
    found = verify(saved(network(), tmp_path), feeds=feeds_of())
    assert found.passed
    assert found.fault is None
    assert reproduce(network(), found, tmp_path / "small") is None
    assert not (tmp_path / "small").exists()


def test_a_wrong_lowering_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _plant(monkeypatch, "Tanh", lambda x: call("tanh", x) * 1.01)
    path = saved(network(), tmp_path)
    found, fault = _verified(path)
    assert fault.cause == "kernel"
    assert any("tanh" in label for label in fault.region.labels)
    assert fault.kernel is not None
    assert any("tanh" in source for source in fault.kernel.sources)
    assert "first wrong value" in str(found)


def test_what_follows_a_wrong_value_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _plant(monkeypatch, "Relu", lambda x: x.max(0.0) + 0.125)
    _, fault = _verified(saved(network(), tmp_path))
    assert fault.region.value == "r"
    assert not any("Softmax" in label for label in fault.region.labels)


def test_compile_names_the_first_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, "Tanh", lambda x: call("tanh", x) * 1.01)
    with pytest.raises(VerificationFailed, match=r"first wrong value[^$]*tanh \(Tanh\)") as caught:
        compiled(network())
    assert "--reproducer" in str(caught.value)


def test_the_reproducer_is_one_node_and_reproduces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = saved(network(), tmp_path)
    with monkeypatch.context() as patch:
        _plant(patch, "Tanh", lambda x: call("tanh", x) * 1.01)
        found, _ = _verified(path)
        made = reproduce(path, found, tmp_path / "small")
        assert made is not None
        assert made.reproduces
        assert [node.op_type for node in onnx.load(made.model).graph.node] == ["Tanh"]
        with np.load(made.inputs) as inputs:
            feeds = dict(inputs)
        assert not verify(made.model, feeds=feeds).passed
    assert verify(made.model, feeds=feeds).passed  # without the fault


def test_a_fault_of_two_nodes_together_is_reproduced_by_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def doubled_when_fused(segments: Any, keep: Any, log: Any) -> Any:
        items = fuse(segments, keep, log)
        return [_doubled(item) if _covers(item, ("sum", "relu")) else item for item in items]

    monkeypatch.setattr(build_program, "fuse", doubled_when_fused)
    model = model_of(
        [
            node("Exp", ["x"], ["e"], name="exp"),
            node("Add", ["e", "x"], ["s"], name="sum"),
            node("Relu", ["s"], ["r"], name="relu"),
            node("Tanh", ["r"], ["y"], name="tanh"),
        ],
        inputs=[tensor_info("x", ("n", 4))],
        opset=21,
    )
    path = saved(model, tmp_path)
    found, _ = _verified(path, {"x": normal(3, 4)})
    made = reproduce(path, found, tmp_path / "small")
    assert made is not None
    assert made.reproduces
    assert made.nodes == ("sum (Add)", "relu (Relu)")


def _covers(item: Any, nodes: tuple[str, ...]) -> bool:
    return isinstance(item, Kernel) and set(nodes) <= set(item.sources)


def _doubled(kernel: Any) -> Kernel:
    (stage,) = kernel.stages
    stores = tuple(replace(store, value=store.value * 2.0) for store in stage.stores)
    doubled: Kernel = replace(kernel, stages=(replace(stage, stores=stores),))
    return doubled


def test_shared_memory_is_told_from_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def everything_at_zero(_: Timeline, sizes: list[int]) -> tuple[list[int], int]:
        return [0] * len(sizes), max(sizes, default=0)

    monkeypatch.setattr(Timeline, "place", everything_at_zero)
    model = _chain(3)
    model.graph.node[-1].output[0] = "last"
    model.graph.node.append(node("Add", ["v0", "last"], ["y"], name="residual"))
    _, fault = _verified(saved(model, tmp_path), {"x": normal(16, 16)})
    assert fault.cause == "memory plan"


def test_rounding_that_adds_up_is_told_from_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, feeds = saved(_chain(24), tmp_path), {"x": normal(16, 16)}
    whole = verify(path, feeds=feeds).max_error
    monkeypatch.setitem(compare.TOLERANCES, "float32", 1e-12)
    _, fault = _verified(path, feeds)
    assert fault.found.error < whole  # each product alone is nearer to the reference
    monkeypatch.setitem(compare.TOLERANCES, "float32", whole * 0.99)
    found = verify(path, feeds=feeds)
    assert found.passed
    assert found.rounding is not None
    assert "rounding adds up" in found.text
    monkeypatch.setattr(compiler_verify, "_DEPTH_FACTOR", 1.0)
    _, fault = _verified(path, feeds)  # more than a deep network may be off
    assert fault.cause == "rounding"


def test_a_number_on_the_border_of_two_steps_may_take_either(tmp_path: Path) -> None:
    found = verify(saved(_quantised(), tmp_path), feeds={"x": normal(500, 512)})
    assert found.passed


def test_a_step_too_many_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _plant(monkeypatch, "Round", lambda x: call("round", x + 0.25))
    _, fault = _verified(saved(_quantised(), tmp_path), {"x": normal(500, 512)})
    assert fault.cause == "kernel"
    assert any("Round" in label for label in fault.region.labels)


def _plant_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that takes each Tanh for a Sigmoid."""

    def replaced(context: PassContext, found: Any) -> str:
        context.replace(found, (), "Sigmoid", [found.inputs[0]])
        return "Sigmoid"

    wrong = Pass(name="replace_tanh", run=lambda ctx: ctx.each(("Tanh",), replaced))
    monkeypatch.setattr(facade, "STANDARD", (*STANDARD, wrong))


@pytest.mark.parametrize("feeds", [None, feeds_of()])
def test_compile_names_a_wrong_pass_and_writes_what_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, feeds: Any
) -> None:
    _plant_pass(monkeypatch)
    folder = tmp_path / "small"
    wishes: dict[str, Any] = {"verify": False, "verify_passes": True, "verify_feeds": feeds}
    with pytest.raises(VerificationFailed, match="the pass replace_tanh changed the value"):
        compiled(network(), reproducer=folder, **wishes)
    before, after = (
        onnx.load(folder / f"replace_tanh_{when}.onnx") for when in ("before", "after")
    )
    assert [node.op_type for node in before.graph.node] == ["Tanh"]
    assert [node.op_type for node in after.graph.node] == ["Sigmoid"]
    assert (folder / "replace_tanh_feeds.npz").is_file()
    with pytest.raises(VerificationFailed, match="reproducer="):
        compiled(network(), **wishes)
    with pytest.raises(BadOption, match="verify_passes is off"):
        compiled(network(), reproducer=folder)


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _plant_pass(monkeypatch)
    path = saved(network(), tmp_path)
    found, fault = _verified(path)
    assert fault.cause == "graph pass"
    assert any("Tanh" in label for label in fault.region.labels)
    assert "the pass replace_tanh changed the value" in str(found)
    made = reproduce(path, found, tmp_path / "small")
    assert made is not None
    assert made.reproduces
    assert [node.op_type for node in onnx.load(made.model).graph.node] == ["Tanh"]


def test_a_fault_inside_a_loop_is_found_at_the_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = helper.make_graph(
        [
            node("Tanh", ["v_in"], ["v_out"], name="tanh"),
            node("Identity", ["go"], ["go_out"], name="same"),
        ],
        "body",
        [
            tensor_info("i", (), TensorProto.INT64),
            tensor_info("go", (), TensorProto.BOOL),
            tensor_info("v_in", (3,)),
        ],
        [tensor_info("go_out", (), TensorProto.BOOL), tensor_info("v_out", (3,))],
    )
    model = model_of(
        [node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)],
        inputs=[tensor_info("trips", (), TensorProto.INT64), tensor_info("x", (3,))],
        opset=21,
    )
    _plant(monkeypatch, "Tanh", lambda x: call("tanh", x) * 1.01)
    path, feeds = saved(model, tmp_path), {"trips": np.array(2), "x": normal(3)}
    found, fault = _verified(path, feeds)
    assert fault.cause == "host step"
    assert fault.region.labels == ("loop (Loop)",)
    made = reproduce(path, found, tmp_path / "small")
    assert made is not None
    assert made.reproduces


def _chain(length: int) -> onnx.ModelProto:
    """Products with orthogonal matrices: every value has a kernel and memory of its own."""
    weights = {f"w{k}": np.linalg.qr(normal(16, 16, seed=k))[0] for k in range(length)}
    names = ["x", *(f"v{k}" for k in range(length - 1)), "y"]
    nodes = [
        node("MatMul", [names[k], f"w{k}"], [names[k + 1]], name=f"product{k}")
        for k in range(length)
    ]
    return model_of(nodes, inputs=[tensor_info("x", ("n", 16))], weights=weights, opset=21)


def _quantised() -> onnx.ModelProto:
    """A long product rounded to a fine grid: some of its values lie on the border of two steps."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Mul", ["p", "fine"], ["s"], name="scale"),
        node("Round", ["s"], ["r"], name="round"),
        node("Softmax", ["r"], ["y"], name="softmax", axis=-1),
    ]
    weights = {"w": normal(512, 64, seed=2), "fine": np.array(50, np.float32)}
    return model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 512))],
        outputs=["y", "r"],
        weights=weights,
        opset=21,
    )


def test_without_memory_for_all_values_no_fault_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def too_much(*_: Any) -> dict[str, Any]:
        raise OutOfMemory("a buffer needs 1 TiB")

    _plant(monkeypatch, "Tanh", lambda x: call("tanh", x) * 1.01)
    monkeypatch.setattr(bisect, "observe", too_much)
    found = verify(saved(network(), tmp_path), feeds=feeds_of())
    assert not found.passed
    assert found.fault is None
