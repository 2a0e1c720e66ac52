"""Quantising published networks: nearness to the float model on what was not calibrated with.

Whole accuracy on labelled pictures is measured by ``bench/quantization.py``.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from integration.zoo import models_folder

pytestmark = [pytest.mark.assets, pytest.mark.slow]
pytest.importorskip("PIL.Image", reason="pillow is not installed")


@pytest.fixture(scope="module")
def pictures(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    with zipfile.ZipFile(assets / "data" / "imagenet_sample_224.zip") as archive:
        archive.extractall(folder)
    return folder


def test_photographs_are_seen_as_before(assets: Path, pictures: Path) -> None:
    """16 pictures to calibrate with, one scale a layer: where min-max alone loses 9 points."""
    path = models_folder(assets, ["efficientnet_lite0"]) / "efficientnet_lite0.onnx"
    how = tw.Preprocessing(mean=127, std=128)
    found = tw.quantize(
        path, pictures / "calib", preprocessing=how, limit=16, per_channel=False, threads=2
    )
    assert (found.summary["layers"], found.summary["carriers"]) == (50, 11)
    assert found.summary["size_bytes"] < 0.3 * path.stat().st_size
    exact = tw.compile(path, threads=2, verify=False)
    engine = tw.compile(found.model, threads=2, verify=False)
    with np.load(path.with_suffix(".npz")) as archive:
        feeds = {name: archive[name] for name in archive.files}
    expected, given = exact.run(feeds)["y"], engine.run(feeds)["y"]
    cosine = (expected * given).sum() / np.linalg.norm(expected) / np.linalg.norm(given)
    assert cosine > 0.9
