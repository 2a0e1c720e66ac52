"""The node that hurts is named first, with the part of its error that does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.compress.data import BadData, open_data
from tilewright.compress.expected import expected_recipe
from tilewright.compress.job import Job, prepare
from tilewright.compress.layers import Layer
from tilewright.compress.options import QuantizeOptions
from tilewright.compress.score import Scorer
from tilewright.compress.sensitivity import measure
from tilewright.compress.simulator import Simulator, settings_of
from tilewright.core.errors import BadOption
from tilewright.graph.insert_qdq import Recipe
from tilewright.report.quantization import BROKEN_DB, Sensitivity, quantization_lines
from tilewright.report.quantization_page import quantization_page
from unit.compiler.models import compiled, normal
from unit.compress.broken import with_activation_scale, with_stored_scale, with_weight_scale
from unit.compress.test_quantize import batches, block
from unit.graph.models import model_of, node, tensor_info


def _chain() -> onnx.ModelProto:
    """Convolutions only, so that nothing averages errors away."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="stem", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"], name="relu"),
        node("Conv", ["r", "w2", "b2"], ["d"], name="depthwise", group=8, pads=[1, 1, 1, 1]),
        node("Relu", ["d"], ["e"], name="relu_too"),
        node("Conv", ["e", "w3", "b3"], ["p"], name="project"),
        node("Add", ["p", "r"], ["s"], name="residual"),
        node("Conv", ["s", "w4", "b4"], ["y"], name="head"),
    ]
    weights = {
        "w1": normal(8, 3, 3, 3, seed=1) / 3,
        "b1": normal(8, seed=2) / 3,
        "w2": normal(8, 1, 3, 3, seed=3) / 3,
        "b2": normal(8, seed=8) / 3,
        "w3": normal(8, 8, 1, 1, seed=4) / 3,
        "b3": normal(8, seed=5) / 3,
        "w4": normal(5, 8, 1, 1, seed=6) / 3,
        "b4": normal(5, seed=7) / 3,
    }
    inputs = [tensor_info("x", ("n", 3, 8, 8))]
    return model_of(nodes, inputs=inputs, weights=weights, opset=21)


@pytest.fixture(scope="module")
def job() -> Job:
    return prepare(_chain(), batches(), QuantizeOptions(remedies=("bias-correction",)))


@pytest.fixture(scope="module")
def simulator(job: Job) -> Simulator:
    return Simulator(job.model, job.plan)


def _measured(job: Job, simulator: Simulator, recipe: Recipe) -> Sensitivity:
    data = open_data(batches(), job.model.view().inputs)
    scorer = Scorer(data, lambda feeds: simulator.run({}, feeds))
    types = {node.name: node.op_type for node in job.model.view().nodes}
    expected = expected_recipe(job.model, job.plan, recipe, data)
    return measure(simulator, scorer, job.plan, recipe, expected, types, job.seen, explained=3)


def test_the_simulator_is_the_float_model_when_nothing_is_quantised(simulator: Simulator) -> None:
    x = normal(3, 3, 8, 8, seed=50)
    exact = compiled(_chain())(x=x)["y"]
    np.testing.assert_allclose(simulator.run({}, {"x": x})["y"], exact, rtol=1e-5, atol=1e-6)


def test_the_simulator_is_the_quantised_model_when_all_is(job: Job, simulator: Simulator) -> None:
    x = normal(3, 3, 8, 8, seed=50)
    engine = compiled(job.emit())  # type: ignore[arg-type]
    settings = settings_of(job.plan, job.recipe())
    np.testing.assert_allclose(
        simulator.run(settings, {"x": x})["y"], engine(x=x)["y"], rtol=1e-4, atol=1e-4
    )


def _layer(job: Job, name: str) -> Layer:
    return next(layer for layer in job.plan.layers if layer.node == name)


NAMES = ["stem", "depthwise", "project", "head"]


def test_no_layer_is_broken_where_none_is(job: Job, simulator: Simulator) -> None:
    found = _measured(job, simulator, job.recipe())
    assert all(one.excess_db < BROKEN_DB / 2 for one in found.nodes)
    noises = [one.noise for one in found.nodes]
    assert noises == sorted(noises, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_with_a_scale_8_times_too_large_is_named_first(
    job: Job, simulator: Simulator, name: str
) -> None:
    recipe = with_weight_scale(job.recipe(), _layer(job, name), 8)
    found = _measured(job, simulator, recipe)
    assert [one.node for one in found.nodes if one.broken] == [name]
    assert found.nodes[0].node == name
    assert found.nodes[0].main_cause == "rounding"
    assert found.nodes[0].gain == max(one.gain for one in found.nodes)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_whose_stored_scale_is_wrong_is_named_first(
    job: Job, simulator: Simulator, name: str
) -> None:
    found = _measured(job, simulator, with_stored_scale(job.recipe(), _layer(job, name), 8))
    assert [one.node for one in found.nodes if one.broken] == [name]
    assert found.nodes[0].node == name
    assert found.nodes[0].sqnr_db < 0  # more noise than signal


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_whose_input_has_a_scale_8_times_too_large_is_named_first(
    job: Job, simulator: Simulator, name: str
) -> None:
    layer = _layer(job, name)
    found = _measured(job, simulator, with_activation_scale(job.recipe(), layer, 8))
    first = found.nodes[0]
    assert first.node in job.plan.readers[layer.source]
    assert {one.node for one in found.nodes if one.broken} == {*job.plan.readers[layer.source]}
    assert first.main_cause == "rounding"


def _loud_and_quiet() -> onnx.ModelProto:
    """Two branches; what the quiet one adds is a hundredth of what the loud one does."""
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="loud"),
        node("Conv", ["x", "w2"], ["b"], name="quiet"),
        node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    weights = {"w1": normal(8, 3, 1, 1, seed=1), "w2": normal(8, 3, 1, 1, seed=2) / 100}
    inputs = [tensor_info("x", ("n", 3, 8, 8))]
    return model_of(nodes, inputs=inputs, weights=weights, opset=21)


def test_a_broken_layer_is_named_first_though_others_cost_more() -> None:
    job = prepare(_loud_and_quiet(), batches(), QuantizeOptions(remedies=()))
    simulator = Simulator(job.model, job.plan)
    broken = with_weight_scale(job.recipe(), _layer(job, "quiet"), 8)
    found = _measured(job, simulator, broken)
    first = found.nodes[0]
    assert (first.node, first.broken) == ("quiet", True)
    assert first.noise < max(one.noise for one in found.nodes)
    summary = {
        "size_bytes": 1,
        "weights": "int8 per channel",
        "layers": 2,
        "activations": "uint8",
        "carriers": 1,
        "calibration": "minmax",
        "samples": 12,
        "kept_in_float": [],
    }
    told = "\n".join(quantization_lines("m", summary, (), found))
    assert f"quiet: {first.excess_db:.0f} dB more noise than its bits should give" in told
    assert "(broken?)" in quantization_page("m", summary, (), found, None)


def test_a_layer_with_a_scale_8_times_too_small_saturates(job: Job, simulator: Simulator) -> None:
    recipe = with_weight_scale(job.recipe(), _layer(job, "project"), 1 / 8)
    found = _measured(job, simulator, recipe)
    assert found.nodes[0].node == "project"
    assert found.nodes[0].main_cause == "saturation"


def test_a_range_8_times_too_small_clips(job: Job, simulator: Simulator) -> None:
    recipe = with_activation_scale(job.recipe(), _layer(job, "project"), 1 / 8)
    found = _measured(job, simulator, recipe)
    assert found.nodes[0].node == "project"
    assert found.nodes[0].main_cause == "clipping"


def test_a_wrong_bias_is_a_bias_shift(job: Job, simulator: Simulator) -> None:
    recipe = job.recipe()
    layers = [
        replace(layer, bias=layer.bias + 20_000)
        if layer.node == "project" and layer.bias is not None
        else layer
        for layer in recipe.layers
    ]
    found = _measured(job, simulator, replace(recipe, layers=tuple(layers)))
    assert found.nodes[0].node == "project"
    assert found.nodes[0].main_cause == "bias shift"


def test_labels_give_drops() -> None:
    data = batches()
    engine = compiled(block())
    labels = np.concatenate([engine(**feeds)["y"].argmax(1) for feeds in data])
    found = tw.quantize(block(), data, sensitivity=True, eval_data=data, labels=labels).sensitivity
    assert found is not None
    assert (found.float_metric, found.samples) == (1.0, 12)
    assert {one.node for one in found.nodes} == {
        *("stem", "depthwise", "project", "classifier", "residual", "pool", "flatten")
    }
    assert all(one.drop is not None and one.drop >= 0 for one in found.nodes)


def test_a_limit_within_a_batch_leaves_out_labels_of_what_is_not_scored() -> None:
    data = batches()  # of 3 samples
    options: dict[str, Any] = {"sensitivity": True, "eval_data": data, "remedies": "none"}
    found = tw.quantize(block(), data, labels=[0] * 12, eval_limit=4, **options).sensitivity
    assert found is not None
    assert found.samples == 6
    with pytest.raises(BadData, match="5 labels for 6 samples"):
        tw.quantize(block(), data, labels=[0] * 5, eval_limit=4, **options)
    with pytest.raises(BadData, match="13 labels for 12 samples"):
        tw.quantize(block(), data, labels=[0] * 13, **options)


def _raise(_: Any) -> float:
    raise ValueError("no such class")


def test_a_metric_that_raises_is_told() -> None:
    with pytest.raises(BadOption, match="the metric raised ValueError: no such class"):
        tw.quantize(block(), batches(), sensitivity=True, metric=_raise)


def test_one_pass_is_not_enough_to_score() -> None:
    with pytest.raises(BadOption, match="ends after one pass"):
        tw.quantize(
            block(), batches(), sensitivity=True, eval_data=iter(batches()), remedies="none"
        )
