"""The fastest choice between integers and float within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright.cli.app import build_app
from tilewright.compress.latency import NodeTimes
from tilewright.compress.score import Scores
from tilewright.compress.search import Budget, BudgetNotMet, departures, optimal_points
from tilewright.core.errors import BadOption
from tilewright.report.quantization import FrontPoint, NodeEffect, Sensitivity
from tilewright.report.quantization_page import quantization_page
from unit.compiler.models import compiled
from unit.compress.test_quantize import batches, block


def _effect(node: str, noise: float) -> NodeEffect:
    return NodeEffect(
        node=node,
        op_type="Conv",
        sqnr_db=0.0,
        noise=noise,
        excess_db=0.0,
        drop=None,
        gain=0.0,
        causes={},
    )


def _sensitivity(**noise: float) -> Sensitivity:
    nodes = tuple(_effect(name, value) for name, value in noise.items())
    return Sensitivity(samples=1, float_metric=None, metric=None, sqnr_db=0.0, nodes=nodes)


def test_nodes_that_save_no_time_go_first_then_the_most_noise_for_its_time() -> None:
    in_float = NodeTimes(by_node={"slow": 5, "noisy": 9, "dear": 90, "quiet": 9}, total_us=200)
    on_integers = NodeTimes(by_node={"slow": 8, "noisy": 4, "dear": 10, "quiet": 4}, total_us=90)
    found = _sensitivity(slow=1e-9, noisy=1e-2, dear=2e-2, quiet=1e-5)
    assert departures(found, in_float, on_integers) == ("slow", "noisy", "dear", "quiet")


def _point(metric: float, us: float, size: int) -> FrontPoint:
    return FrontPoint(
        num_int8=1,
        float_nodes=(),
        sqnr_db=1.0,
        metric=metric,
        predicted_us=us,
        size_bytes=size,
        within=True,
    )


def test_points_that_another_beats_are_not_on_the_front() -> None:
    points = [_point(0.8, 5, 10), _point(0.9, 6, 12), _point(0.85, 7, 12), _point(0.9, 6, 12)]
    assert optimal_points(points) == (0, 1, 3)


def test_budgets_are_of_the_drop_and_of_the_noise() -> None:
    base = Scores(metric=0.9, noise=0.0)
    found = Scores(metric=0.895, noise=1e-3)
    assert Budget(max_drop=0.005).allows(base, found)
    assert not Budget(max_drop=0.004).allows(base, found)
    assert Budget(min_sqnr_db=30).allows(base, found)
    assert not Budget(min_sqnr_db=31, max_drop=0.1).allows(base, found)


@pytest.fixture(scope="module")
def labels() -> Any:
    engine = compiled(block())
    return np.concatenate([engine(**feeds)["y"].argmax(1) for feeds in batches()])


def test_the_choice_keeps_its_budget(labels: Any) -> None:
    found = tw.quantize(block(), batches(), eval_data=batches(), labels=labels, max_drop=0.2)
    front = found.front
    assert front is not None
    chosen = front.points[front.chosen]
    assert chosen.within
    if front.points[0].within:
        assert front.measured_us["chosen"] <= front.measured_us["int8"]
    assert set(front.measured_us) == {"float", "int8", "chosen"}
    assert front.points[-1].num_int8 == 0
    assert set(chosen.float_nodes) <= set(found.summary["kept_in_float"])
    page = quantization_page("m", found.summary, found.decisions, found.sensitivity, front)
    assert page.count("<circle") == len(front.points)
    assert page.count("chosen") >= 2
    assert "http" not in page.replace("http-equiv", "")


def test_a_budget_of_noise_needs_no_labels_and_leaves_what_is_noisy_in_float() -> None:
    whole = tw.quantize(block(), batches(), sensitivity=True)
    assert whole.sensitivity is not None
    wanted = whole.sensitivity.sqnr_db + 1
    found = tw.quantize(block(), batches(), min_sqnr=wanted)
    assert found.front is not None
    chosen = found.front.points[found.front.chosen]
    assert chosen.sqnr_db >= wanted
    assert 0 < len(chosen.float_nodes) < 7


def test_the_score_of_the_chosen_point_is_that_of_the_model_that_is_written() -> None:
    def metric(run: Any) -> float:
        return sum(float(np.asarray(run(feeds)["y"], np.float64).sum()) for feeds in batches())

    found = tw.quantize(block(), batches(), eval_data=batches(), metric=metric, max_drop=1e9)
    assert found.front is not None
    told = found.front.points[found.front.chosen].metric
    assert told == metric(tw.compile(found.model, verify=False).run)


def test_a_budget_that_cannot_be_met_names_the_closest_point_and_who_limits() -> None:
    with pytest.raises(
        BudgetNotMet, match="the closest point has \\d+ nodes? on integers"
    ) as caught:
        tw.quantize(block(), batches(), min_sqnr=400)
    assert "most noise is of" in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_drop": 0.1}, "max_drop is of a metric, and there is none"),
        ({"max_drop": -1}, "max_drop is -1"),
        ({"min_sqnr": "high"}, "min_sqnr is 'high'"),
        ({"min_sqnr": 30, "activations": "dynamic"}, "evaluation with dynamic activations"),
    ],
)
def test_budgets_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        tw.quantize(block(), batches(), **options)


def test_the_command_writes_a_report(tmp_path: Path) -> None:
    import onnx

    onnx.save(block(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.concatenate([feeds["x"] for feeds in batches()]))
    words = ["quantize", "m.onnx", "--data", "x.npy", "-o", "o.onnx", "--min-sqnr", "20"]
    given = [str(tmp_path / word) if "." in word else word for word in words]
    page = tmp_path / "r.html"
    result = CliRunner().invoke(build_app(), [*given, "--html", str(page), "--quiet"])
    assert result.exit_code == 0, result.output
    assert "budget" in result.stdout
    assert "<svg" in page.read_text(encoding="utf-8")
    result = CliRunner().invoke(build_app(), [*given, "--max-drop", "much"])
    assert result.exit_code == 2
