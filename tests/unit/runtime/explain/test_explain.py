"""What an explanation says of an engine, with roofs that are set and times that are measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.core.errors import BadOption, BadTarget, ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.hw.roofs import Level, Roofs, store_measured
from tilewright.report.explanation import Explanation
from tilewright.runtime.explain.collect import constant_sizes
from tilewright.runtime.explain.memory import memory_report
from tilewright.runtime.explain.traffic import call_traffic, flows
from tilewright.runtime.profile import all_calls
from unit.compiler.models import compiled, feeds_of, network, normal
from unit.graph.models import model_of, node, tensor_info

HUGE = Roofs(
    device="a fast processor",
    threads=2,
    peaks_flops={"float32": 1e15},
    levels=tuple(Level(name=name, bytes_per_s=1e14) for name in ("L1", "L2", "L3", "DRAM")),
    source="measured on a day of the test",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which nothing was measured."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def engine() -> tw.Engine:
    return compiled(network(), verify=False)


@pytest.fixture
def explained(engine: tw.Engine) -> Explanation:
    store_measured([HUGE])
    return engine.explain(feeds_of(), runs=3)


# --- the whole ------------------------------------------------------------------------------------


def test_every_kernel_has_bytes_work_time_limit_and_tactic(
    engine: tw.Engine, explained: Explanation
) -> None:
    calls = list(all_calls(engine.program))
    sizes = {"batch": 2, "height": 6}
    assert [kernel.index for kernel in explained.kernels] == list(range(len(calls)))
    for kernel, call in zip(explained.kernels, calls, strict=True):
        assert kernel.num_bytes == call.bytes.evaluate(sizes)
        assert kernel.flops == call.flops.evaluate(sizes)
        assert kernel.bytes_formula == str(call.bytes)
        assert kernel.time_us
        assert kernel.floor_us
        assert kernel.best_us
        assert kernel.floor_us <= kernel.best_us <= kernel.time_us
        assert kernel.headroom_us == pytest.approx(kernel.best_us - kernel.floor_us)
        assert kernel.limit in kernel.limits_us
        assert kernel.floor_us == pytest.approx(max(kernel.limits_us.values()))
        assert kernel.tactic
        assert kernel.schedule
    assert explained.floor_us == pytest.approx(sum(k.floor_us or 0 for k in explained.kernels))
    assert explained.best_us == pytest.approx(sum(k.best_us or 0 for k in explained.kernels))
    assert explained.json()["best_us"] == explained.best_us
    assert explained.end_to_end_us
    assert dict(explained.sizes) == sizes
    assert explained.assumed == ()


def test_nodes_are_those_of_the_model(explained: Explanation) -> None:
    nodes = {name for kernel in explained.kernels for name in kernel.nodes}
    placed = {p.node for p in explained.placements if p.place == "kernel"}
    assert nodes == placed
    operators = {n: o for k in explained.kernels for n, o in zip(k.nodes, k.operators, strict=True)}
    assert operators["conv"] == "Conv"
    assert operators["softmax"] == "Softmax"


def test_next_steps_are_sentences_with_a_number(explained: Explanation) -> None:
    assert explained.next_steps
    savings = [step.saves_us for step in explained.next_steps]
    assert savings == sorted(savings, reverse=True)
    for step in explained.next_steps:
        said = ("bound by", "times over the floor", "runtime")
        assert any(words in step.text for words in said)
        assert step.text.endswith(".")
        assert step.text.count(" us") + step.text.count(" ms")


def test_refused_fusions_have_reasons_and_a_price(explained: Explanation) -> None:
    assert explained.intermediates
    for item in explained.intermediates:
        assert item.producer < item.consumer
        assert item.reason
        assert item.price_us is not None
        assert item.price_us > 0


def test_without_measured_roofs_those_of_tables_are_taken_and_said(engine: tw.Engine) -> None:
    explanation = engine.explain(feeds_of(), runs=1)
    assert explanation.roofs is not None
    assert not explanation.roofs.is_measured
    assert "tables at" in explanation.text()
    assert all(k.floor_us and k.limit for k in explanation.kernels)
    assert any("device --probe" in text for text in explanation.warnings)


def test_names_with_a_dot_are_sizes_like_others() -> None:
    model = model_of(
        [node("Relu", ["x"], ["y"], name="relu")],
        inputs=[tensor_info("x", ("DynamicDimension.0", 8))],
        opset=21,
    )
    engine = compiled(model, verify=False)
    by_size = engine.explain(sizes={"DynamicDimension.0": 3}, runs=1)
    by_feeds = engine.explain({"x": normal(5, 8)}, runs=1)
    assert "sizes: DynamicDimension.0=3\n" in by_size.text()
    assert "sizes: DynamicDimension.0=5\n" in by_feeds.text()


def test_roofs_of_other_threads_are_scaled_and_said(engine: tw.Engine) -> None:
    one = Roofs(
        device=HUGE.device,
        threads=1,
        peaks_flops={"float32": 5e14},
        levels=HUGE.levels,
        source=HUGE.source,
    )
    store_measured([one])
    explanation = engine.explain(feeds_of(), runs=1)
    assert explanation.roofs is not None
    assert explanation.roofs.peaks_flops["float32"] == 1e15
    assert any("scaled to 2" in text for text in explanation.warnings)


def test_roofs_that_are_beaten_are_raised_to_the_best_kernel(engine: tw.Engine) -> None:
    slow = Roofs(
        device="slow",
        threads=2,
        peaks_flops={"float32": 1e3},
        levels=HUGE.levels,
        source=HUGE.source,
    )
    store_measured([slow])
    explanation = engine.explain(feeds_of(), runs=1)
    assert any("faster than the roofs allow" in text for text in explanation.warnings)
    assert any("float32 peak roof was raised" in text for text in explanation.warnings)
    assert all((kernel.headroom_us or 0) >= 0 for kernel in explanation.kernels)
    assert all((k.floor_us or 0) <= (k.time_us or 0) * 1.000001 for k in explanation.kernels)
    assert explanation.roofs is not None
    assert explanation.roofs.peaks_flops["float32"] > 1e3
    assert (explanation.roof_fraction or 0) <= 1


def test_without_inputs_random_ones_are_taken_and_named(engine: tw.Engine) -> None:
    explanation = engine.explain(runs=1, sizes={"batch": 3})
    assert explanation.sizes["batch"] == 3
    assert explanation.assumed == ("height",)
    assert any("random inputs" in text for text in explanation.warnings)
    with pytest.raises(BadOption, match="no input has a dim"):
        engine.explain(sizes={"width": 3})


def test_inputs_that_do_not_fit_are_refused(engine: tw.Engine) -> None:
    with pytest.raises(ShapeMismatch):
        engine.explain({"x": np.zeros((1, 1), np.float32)})


def test_a_board_of_the_tables_gives_floors_and_no_times(engine: tw.Engine) -> None:
    explanation = engine.explain(board="h200", sizes={"batch": 1, "height": 32})
    assert explanation.end_to_end_us is None
    assert explanation.roofs is not None
    assert explanation.roofs.device == "H200"
    assert not explanation.roofs.is_measured
    assert all(k.floor_us and k.time_us is None for k in explanation.kernels)
    with pytest.raises(BadTarget, match="unknown board"):
        engine.explain(board="abacus")


def test_an_interpreted_node_is_a_step_with_a_reason_and_a_sentence() -> None:
    nodes = [node("Relu", ["x"], ["r"], name="relu"), node("Unique", ["r"], ["y"], name="unique")]
    model = model_of(nodes, inputs=[tensor_info("x", (4096,))], opset=21)
    store_measured([HUGE])
    explanation = compiled(model, verify=False).explain(runs=2)
    (step,) = [step for step in explanation.host if step.kind == "Interpret"]
    assert (step.node, step.name) == ("unique", "Unique")
    assert step.reason
    assert step.time_us
    assert any("Node unique (Unique) runs in NumPy" in s.text for s in explanation.next_steps)
    assert [entry[0] for entry in explanation.interpreted] == ["unique"]


def test_an_engine_for_another_processor_is_explained_but_not_timed() -> None:
    engine = compiled(network(), verify=False, cpu="neoverse-n1")
    explanation = engine.explain(sizes={"batch": 1, "height": 8})
    assert explanation.end_to_end_us is None
    assert explanation.kernels
    assert explanation.roofs is None
    assert any("which is not here" in text for text in explanation.warnings)


def test_json_is_json_and_complete(explained: Explanation) -> None:
    document = json.loads(json.dumps(explained.json(), allow_nan=False, default=str))
    assert document["schema"] == "tilewright.explanation/1"
    assert len(document["kernels"]) == len(explained.kernels)
    assert document["kernels"][0]["roof_fraction"] == explained.kernels[0].roof_fraction
    assert {"placements", "memory", "intermediates", "decisions", "roofs"} <= document.keys()


def test_text_has_the_essentials(explained: Explanation) -> None:
    text = explained.text(most=2)
    for part in ("end to end", "floor:", "What would save time:", "Kernels by the time", "Memory:"):
        assert part in text
    assert f"{len(explained.kernels) - 2} more" in text


# --- traffic and memory ---------------------------------------------------------------------------


def chain() -> tw.Engine:
    """Two products that cannot be one kernel, and a value that leaves between them."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="first"),
        node("MatMul", ["p", "v"], ["y"], name="second"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 16))],
        outputs=["y"],
        weights={"w": normal(16, 32), "v": normal(32, 8)},
        opset=21,
    )
    return compiled(model, verify=False, disable=["layout", "pack"])


def test_traffic_knows_weights_reads_and_writes() -> None:
    engine = chain()
    n = Dim.symbol("n")
    constants = constant_sizes(engine._parts.constants)
    first, second = call_traffic(engine.program, constants)
    assert (first.weights, first.reads, first.writes) == (
        Dim.of(4 * 16 * 32),
        n * 16 * 4,
        n * 32 * 4,
    )
    assert (second.reads, second.writes) == (n * 32 * 4, n * 8 * 4)
    (flow,) = flows(engine.program, constants)
    assert (flow.producer, flow.consumer, flow.is_only_reader, flow.is_kept) == (0, 1, True, False)


def test_memory_is_planned_and_its_formula_holds() -> None:
    engine = chain()
    constants = constant_sizes(engine._parts.constants)
    report = memory_report(engine.program, constants, {"n": 10})
    assert report.weight_bytes == 4 * (16 * 32 + 32 * 8)
    (life,) = report.buffers
    assert (life.num_bytes, life.first, life.last, life.offset_bytes) == (10 * 32 * 4, 0, 1, 0)
    assert report.arena_bytes == 1280
    assert report.live_bytes_formula == "160*n"  # the value between and the result
    unknown = memory_report(engine.program, constants, {})
    assert unknown.arena_bytes is None
    assert unknown.buffers == ()
    assert unknown.live_bytes_formula == "160*n"
