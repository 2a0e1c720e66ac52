"""Differences of engines: what changed, what it costs, which decision was the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import tilewright as tw
from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import Decision
from tilewright.core.shape import Dim
from tilewright.report.explanation import Explanation
from tilewright.runtime.explain.difference import difference, explain_in_turns
from tilewright.runtime.explain.kernels import layout_text
from tilewright.runtime.program import Blocked, TensorSpec
from unit.compiler.models import compiled, feeds_of, network, normal
from unit.graph.models import model_of, node, tensor_info


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def one_product() -> onnx.ModelProto:
    """A product between two elementwise kernels, large enough that scalar code is slow."""
    nodes = [
        node("Softmax", ["x"], ["s"], name="before", axis=-1),
        node("MatMul", ["s", "w"], ["p"], name="product"),
        node("Softmax", ["p"], ["y"], name="after", axis=-1),
    ]
    return model_of(
        nodes,
        inputs=[tensor_info("x", (63, 256))],
        weights={"w": normal(256, 256)},
        opset=21,
    )


def explained(engine: tw.Engine) -> Explanation:
    return engine.explain({"x": normal(63, 256)}, runs=3)


def test_an_engine_does_not_differ_from_itself() -> None:
    engine = compiled(network(), verify=False)
    first, second = (engine.explain(feeds_of(), runs=1) for _ in range(2))
    found = difference(first, second)
    assert found.kernels == ()
    assert found.decision is None
    assert found.facts == ()
    assert found.num_same == len(first.kernels)
    assert "all decisions are the same" in found.text()


def test_sizes_and_a_busy_machine_are_told() -> None:
    quiet = replace(
        compiled(network(), verify=False).explain(feeds_of(2, 6), runs=1), disturbance=""
    )
    assert "busy" not in difference(quiet, quiet).text()
    found = difference(quiet, replace(quiet, disturbance="the machine is busy", assumed=("batch",)))
    assert "the machine is busy; the change may come from that" in found.text()
    assert "sizes: batch=2, height=6 (assumed: batch)" in found.text()
    assert found.json()["after_sizes"] == {"batch": 2, "height": 6}
    assert found.json()["disturbance"] == "the machine is busy"


@pytest.mark.parametrize("name", ["threads", "cpu", "target"])
def test_engines_for_something_else_are_called_so(name: str) -> None:
    one = compiled(network(), verify=False).explain(feeds_of(2, 6), runs=1)
    assert difference(one, one).targets == ""
    found = difference(one, replace(one, facts={**one.facts, name: "other"}))
    assert found.targets == f"{name} {one.facts[name]} and other"
    assert found.text().startswith(f"warning: the engines are for {found.targets}")


def test_a_disabled_tactic_names_its_kernel_first() -> None:
    before = explained(compiled(one_product(), verify=False))
    after = explained(compiled(one_product(), verify=False, disable=["contraction"]))
    found = difference(before, after, ("a.tw", "b.tw"))
    assert found.kernels[0].nodes == ("product",)
    assert "contraction ->" in found.kernels[0].what
    assert found.kernels[0].cost_us is not None
    assert found.num_same == len(before.kernels) - len(found.kernels)
    assert found.decision is not None
    assert found.decision.before is not None
    assert found.decision.after is not None
    assert found.decision.before.subject == found.decision.after.subject == "product"
    assert ("contraction", "disabled by an option") in found.decision.after.rejected
    assert ("disabled", "none", "contraction") in found.facts
    lines = found.text().splitlines()
    assert lines[0] == "b.tw against a.tw"
    assert any(line.startswith("1. product:") for line in lines)


def test_engines_are_timed_in_turns_and_the_fastest_times_are_compared() -> None:
    base = compiled(network(), verify=False).explain(feeds_of(), runs=1)
    asked: list[str] = []

    def timed(name: str, *times: float | None) -> Callable[[], Explanation]:
        left = iter(times)

        def explain() -> Explanation:
            asked.append(name)
            return replace(base, title=name, end_to_end_us=next(left))

        return explain

    old, new = explain_in_turns(timed("a", 9.0, 5.0, 7.0), timed("b", 3.0, 8.0, 8.0))
    assert asked == ["a", "b"] * 3
    assert (old.end_to_end_us, new.end_to_end_us) == (5.0, 3.0)
    asked.clear()
    explain_in_turns(timed("a", None), timed("b", 1.0))
    assert asked == ["a", "b"]  # what cannot be timed is not asked again


def test_a_wider_border_is_a_change_of_layout() -> None:
    dims = (Dim.of(1), Dim.of(4), Dim.of(8), Dim.of(16))
    narrow, wide = (
        layout_text(
            TensorSpec(
                name="v",
                dtype=FLOAT32,
                shape=dims,
                stored=Blocked(dim=1, block=16, size=64, border=((2, 1, after),)),
            )
        )
        for after in (1, 3)
    )
    assert narrow == "dim 1 in blocks of 16 with a border of 1+1"
    assert wide == "dim 1 in blocks of 16 with a border of 1+3"


def test_the_greatest_change_comes_first() -> None:
    base = compiled(network(), verify=False).explain(feeds_of(), runs=1)
    slower = [
        replace(kernel, code=f"other {kernel.index}", best_us=(kernel.best_us or 0) + 10.0 * n)
        for n, kernel in enumerate(base.kernels)
    ]
    found = difference(base, replace(base, kernels=tuple(slower)))
    costs = [item.cost_us for item in found.kernels]
    assert costs == sorted(costs, key=lambda cost: -(cost or 0))
    assert found.kernels[0].nodes == base.kernels[-1].nodes


def test_kernels_that_were_joined_are_one_group() -> None:
    base = compiled(network(), verify=False).explain(feeds_of(), runs=1)
    first, second, *rest = base.kernels
    joined = replace(first, code="joined", nodes=(*first.nodes, *second.nodes), best_us=1.0)
    found = difference(base, replace(base, kernels=(joined, *rest)))
    (changed,) = found.kernels
    assert changed.nodes == (*first.nodes, *second.nodes)
    assert "2 kernels became 1" in changed.what
    assert changed.cost_us == pytest.approx(1.0 - (first.best_us or 0) - (second.best_us or 0))


def test_without_times_there_is_no_cost() -> None:
    base = compiled(network(), verify=False).explain(feeds_of(), runs=1)
    untimed = replace(base.kernels[0], code="other", best_us=None)
    found = difference(base, replace(base, kernels=(untimed, *base.kernels[1:])))
    assert found.kernels[0].cost_us is None
    assert "not timed" in found.text()


def test_the_first_decision_may_be_missing_on_one_side() -> None:
    base = compiled(network(), verify=False).explain(feeds_of(), runs=1)
    more = (*base.decisions, Decision(stage="extra", subject="s", chosen="c"))
    found = difference(base, replace(base, decisions=more))
    assert found.decision is not None
    assert found.decision.number == len(base.decisions)
    assert found.decision.before is None
    assert "after:  [extra] s: c" in found.text()


def test_engines_of_different_models_are_called_so_first() -> None:
    first = compiled(one_product(), verify=False).explain(runs=1)
    second = compiled(network(), verify=False).explain(feeds_of(), runs=1)
    found = difference(first, second)
    assert found.text().splitlines()[0].startswith("These engines are of different models")
    assert "0 have the same name and operator" in found.models
    assert found.json()["models"] == found.models
    assert difference(first, first).models == ""


def test_reports_print_as_text() -> None:
    engine = compiled(network(), verify=False)
    profile, explanation = engine.profile(feeds_of(), runs=1), engine.explain(feeds_of(), runs=0)
    for report in (profile, explanation, difference(explanation, explanation)):
        assert str(report) == report.text()
        assert len(repr(report)) < 100
        assert type(report).__name__ in repr(report)
