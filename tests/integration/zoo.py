"""The networks that tests and benchmarks run on: their files, and inputs of other shapes.

Input -> Output: the folder of outside assets -> a folder with ``NAME.onnx`` and ``NAME.npz``; a
sample -> inputs of other shapes.
Where: ``$TILEWRIGHT_MODELS``, else ``build/models``; what is missing is built by the assets'
``models/build_models.py`` (30 s and 330 MB of downloads, once).
Not here: what the networks must compute (test_models).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conftest import REPOSITORY

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

# Other shapes for the same engine, one entry a run: the sizes of each input in the sample's order.
_TOKENS = [[(1, 1)] * 3, [(2, 7)] * 3, [(1, 37)] * 3, [(3, 64)] * 3, [(1, 160)] * 3]
SHAPES: dict[str, Sequence[Sequence[tuple[int, ...]]]] = {
    "bert_base": [[(1, 1)] * 3, [(2, 7)] * 3, [(1, 19)] * 3, [(3, 24)] * 3, [(1, 96)] * 3],
    "centerface": [
        [(1, 3, 32, 32)],
        [(1, 3, 64, 96)],
        [(2, 3, 96, 64)],
        [(3, 3, 32, 128)],
        [(1, 3, 256, 192)],
    ],
    "efficientnet_lite0": [[(n, 3, 224, 224)] for n in (2, 3, 4, 5, 7)],
    "efficientnet_lite0_qdq": [[(n, 3, 224, 224)] for n in (2, 3, 4, 5, 7)],
    "magika": [[(n, 2048)] for n in (2, 3, 5, 8, 13)],
    "minilm": _TOKENS,
    "minilm_int8w": _TOKENS,
    "ppocr_cls": [
        [(2, 3, 48, 192)],
        [(1, 3, 48, 100)],
        [(3, 3, 64, 64)],
        [(1, 3, 47, 193)],
        [(5, 3, 80, 96)],
    ],
    "ppocr_det": [
        [(1, 3, 32, 32)],
        [(1, 3, 64, 96)],
        [(2, 3, 96, 64)],
        [(1, 3, 160, 224)],
        [(1, 3, 320, 192)],
    ],
    "ppocr_rec": [[(n, 3, 48, w)] for n, w in ((1, 48), (2, 100), (1, 321), (3, 160), (1, 480))],
    "silero_vad": [[(n, 576), (2, n, 128), ()] for n in (2, 3, 4, 5, 8)],
    "silero_vad_ifless": [[(n, 576), (2, n, 128), ()] for n in (2, 3, 4, 5, 8)],
    "t5_decoder": [
        [(n, m), (n, k, 512), (n, k)]
        for n, m, k in ((1, 1, 1), (2, 5, 9), (1, 17, 3), (1, 3, 40), (3, 2, 7))
    ],
    "t5_encoder": [[(n, k)] * 2 for n, k in ((1, 1), (2, 9), (1, 33), (3, 16), (1, 80))],
}
FIXED = ("mnist", "resnet50_b1", "resnet50_b8")  # published with fixed shapes
_WITHOUT_STATIC = ("silero_vad", "silero_vad_ifless")
NAMES = sorted(
    [*SHAPES, *FIXED, *(f"{name}_static" for name in SHAPES if name not in _WITHOUT_STATIC)]
)


def models_folder(assets: Path, names: Sequence[str] = NAMES) -> Path:
    """The folder that holds the named models, which are built first if need be.

    Raises:
        CalledProcessError: the builder failed; its message is on stderr.
    """
    folder = Path(os.environ.get("TILEWRIGHT_MODELS", REPOSITORY / "build" / "models"))
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        missing = [name for name in names if not (folder / f"{name}.onnx").is_file()]
        if missing:
            builder = assets / "models" / "build_models.py"
            command = [sys.executable, str(builder), "--dir", str(folder), "--only", *missing]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Several workers of one test run share the folder; one of them builds."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sample_of(path: Path) -> Feeds:
    """The sample inputs beside a model."""
    with np.load(path.with_suffix(".npz")) as archive:
        return {name: archive[name] for name in archive.files}


def resized(sample: Feeds, shapes: Sequence[tuple[int, ...]]) -> Feeds:
    """The sample repeated or cut to other sizes; rows of a batch differ by a rotation."""
    return {
        name: _resize(array, shape)
        for (name, array), shape in zip(sample.items(), shapes, strict=True)
    }


def _resize(array: Array, shape: tuple[int, ...]) -> Array:
    grown = array
    for axis, size in enumerate(shape):
        grown = np.take(grown, np.arange(size) % grown.shape[axis], axis)
    if not shape:
        return np.array(array)
    rows = [np.roll(row, 3 * number, axis=-1) for number, row in enumerate(grown)]
    return np.ascontiguousarray(np.stack(rows))
