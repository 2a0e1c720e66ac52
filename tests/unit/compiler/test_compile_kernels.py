"""Kernels to objects: each distinct one once, whatever its names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.program import KernelCall, Segment, all_steps
from unit.compiler.models import compiled, network, normal
from unit.graph.models import model_of, node, tensor_info


def calls(engine: tw.Engine) -> list[KernelCall]:
    return [
        call
        for step in all_steps(engine.program)
        if isinstance(step, Segment)
        for call in step.calls
    ]


def test_equal_kernels_share_their_code() -> None:
    """Three products of one form, with other names, sizes of other names and other weights."""
    nodes = [
        node("MatMul", ["x", "w0"], ["a"], name="first"),
        node("MatMul", ["a", "w1"], ["b"], name="second"),
        node("MatMul", ["z", "w2"], ["c"], name="third"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 8)), tensor_info("z", ("rows", 8))],
        outputs=["b", "c"],
        weights={f"w{k}": normal(8, 8, seed=k) for k in range(3)},
        opset=21,
    )
    engine = compiled(model)
    found = calls(engine)
    assert [call.sources for call in found] == [("first",), ("second",), ("third",)]
    assert len({call.kernel for call in found}) == 1
    assert [call.dims for call in found[:2]] != [call.dims for call in found[1:]]
    assert engine.summary["max_error"] < 1e-6


def test_operands_are_passed_in_the_order_of_the_code() -> None:
    """x - y and y - x are one kernel with its buffers swapped."""
    nodes = [
        node("Sub", ["x", "y"], ["a"], name="one"),
        node("Sub", ["y", "x"], ["b"], name="other"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (4,)), tensor_info("y", (4,))],
        outputs=["a", "b"],
        opset=21,
    )
    engine = compiled(model)
    one, other = calls(engine)
    assert one.kernel == other.kernel
    assert one.buffers[-2:] != other.buffers[-2:]
    x, y = normal(4), normal(4, seed=1)
    found = engine(x=x, y=y)
    np.testing.assert_array_equal(found["a"], x - y)
    np.testing.assert_array_equal(found["b"], y - x)


def test_every_call_has_its_code_source_and_text(tmp_path: Path) -> None:
    engine = compiled(network(), dump_kernels=tmp_path)
    for call in calls(engine):
        assert (tmp_path / f"{call.kernel}.txt").read_text().startswith("kernel kernel")
        assert "define void @stage_0" in (tmp_path / f"{call.kernel}.ll").read_text()
        assert [stage.symbol for stage in call.stages] == [
            f"stage_{k}" for k in range(len(call.stages))
        ]


def test_every_stage_has_a_decision() -> None:
    engine = compiled(network())
    tactics = [decision for decision in engine.decisions if decision.stage == "tactic"]
    assert len(tactics) == sum(len(call.stages) for call in calls(engine))


@pytest.mark.parametrize("order", [("neoverse-v1", None), (None, "neoverse-v1")])
def test_one_cache_serves_several_processors(tmp_path: Path, order: tuple[str | None, ...]) -> None:
    """The driver and the pool, too, are those of the processor."""
    for cpu in order:
        engine = tw.compile(network(), cpu=cpu, cache=tmp_path, threads=1, verify=False)
        if cpu is None:
            engine.run({"x": normal(1, 3, 4, 8)})
    assert len({path.name for path in tmp_path.iterdir()}) > 2 * len(calls(engine))


@pytest.mark.parametrize("cpu", ["haswell", "x86-64-v2", "neoverse-v1", "apple-m1"])
def test_other_processors_get_a_whole_engine(cpu: str, tmp_path: Path) -> None:
    engine = tw.compile(network(), cpu=cpu, cache=None, threads=1, verify=False)
    engine.save(tmp_path / "engine.tw")
    again = tw.load(tmp_path / "engine.tw", inspect=True)
    assert [call.kernel for call in calls(again)] == [call.kernel for call in calls(engine)]


def test_avx2_agrees_with_this_machine() -> None:
    engine = tw.compile(network(), cpu="haswell", cache=None, threads=1, verify=False)
    if not engine.runs_here:
        pytest.skip("this machine has no AVX2")
    x = {"x": normal(2, 3, 9, 8)}
    wide = compiled(network()).run(x)
    for name, value in engine.run(x).items():
        np.testing.assert_allclose(value, wide[name], rtol=2e-6, atol=2e-6)
