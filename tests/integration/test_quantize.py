"""Quantising a published network: nearness to the float model, and broken layers that are named.

Whole accuracy on labelled pictures is measured by ``bench/quantization.py``.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from integration.zoo import models_folder
from tilewright.compress.data import open_data
from tilewright.compress.expected import expected_recipe
from tilewright.compress.job import Job, prepare
from tilewright.compress.options import make_options
from tilewright.compress.score import Scorer
from tilewright.compress.sensitivity import measure
from tilewright.compress.simulator import Simulator, settings_of
from tilewright.graph.insert_qdq import Recipe
from tilewright.report.quantization import BROKEN_DB, Sensitivity
from unit.compress.broken import with_stored_scale, with_weight_scale

pytestmark = [pytest.mark.assets, pytest.mark.slow]
pytest.importorskip("PIL.Image", reason="pillow is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

HOW = tw.Preprocessing(mean=127, std=128)
_PICTURES = 8


@pytest.fixture(scope="module")
def pictures(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few pictures, none of which an accuracy is measured on."""
    folder = tmp_path_factory.mktemp("pictures")
    with zipfile.ZipFile(assets / "data" / "imagenet_sample_224.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("calib/"))
        archive.extractall(folder, [name for name in names if name.endswith(".jpg")][:_PICTURES])
    return folder / "calib"


@pytest.fixture(scope="module")
def path(assets: Path) -> Path:
    return models_folder(assets, ["efficientnet_lite0"]) / "efficientnet_lite0.onnx"


def test_photographs_are_seen_as_before(path: Path, pictures: Path) -> None:
    """One scale a layer: where min-max alone loses 9 points."""
    found = tw.quantize(path, pictures, preprocessing=HOW, per_channel=False, threads=2)
    assert (found.summary["layers"], found.summary["carriers"]) == (50, 11)
    assert found.summary["kept_in_float"] == []
    assert found.summary["size_bytes"] < 0.3 * path.stat().st_size
    with np.load(path.with_suffix(".npz")) as archive:
        feeds = {name: archive[name] for name in archive.files}
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    given = tw.compile(found.model, threads=2, verify=False).run(feeds)["y"]
    cosine = (expected * given).sum() / np.linalg.norm(expected) / np.linalg.norm(given)
    assert cosine > 0.9


# --- broken layers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One quantisation, and what measures it."""

    job: Job
    simulator: Simulator
    scorer: Scorer
    expected: Recipe

    def report(self, recipe: Recipe) -> Sensitivity:
        types = {node.name: node.op_type for node in self.job.model.view().nodes}
        job = self.job
        return measure(
            *(self.simulator, self.scorer, job.plan, recipe, self.expected, types, job.seen),
            explained=1,
        )

    def noise(self, recipe: Recipe, node: str) -> float:
        """Of one node alone, as the report has it."""
        settings = settings_of(self.job.plan, recipe, [node])
        return self.scorer(lambda feeds: self.simulator.run(settings, feeds)).noise


@pytest.fixture(scope="module")
def network(path: Path, pictures: Path) -> Network:
    job = prepare(path, pictures, make_options(remedies="none"), preprocessing=HOW, threads=2)
    simulator = Simulator(job.model, job.plan, threads=2)
    inputs = job.model.view().inputs
    batches = open_data(pictures, inputs, preprocessing=HOW, limit=1)
    return Network(
        job=job,
        simulator=simulator,
        scorer=Scorer(batches, lambda feeds: simulator.run({}, feeds)),
        expected=expected_recipe(job.model, job.plan, job.recipe(), batches, 2),
    )


Break = Callable[[Recipe, Any, float], Recipe]
DEPTHWISE = "/_blocks.0/_depthwise_conv/Conv/Conv"


def test_a_broken_layer_is_named_first(network: Network) -> None:
    recipe, plan = network.job.recipe(), network.job.plan
    layer = next(one for one in plan.layers if one.node == DEPTHWISE)
    assert not any(one.broken for one in network.report(recipe).nodes)
    report = network.report(with_weight_scale(recipe, layer, 8))
    assert [one.node for one in report.nodes if one.broken] == [report.nodes[0].node] == [DEPTHWISE]


@pytest.mark.parametrize("change", [with_stored_scale, with_weight_scale])
def test_every_layer_with_weights_on_a_wrong_scale_stands_out_at_the_outputs(
    network: Network, change: Break
) -> None:
    """Whatever other layers lose there; the scale of an input is compared as it is."""
    recipe = network.job.recipe()
    for layer in network.job.plan.layers:
        noise = network.noise(change(recipe, layer, 8), layer.node)
        expected = network.noise(network.expected, layer.node)
        assert 10 * math.log10(noise / expected) >= BROKEN_DB, layer.node
