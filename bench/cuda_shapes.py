"""Networks at five sets of sizes on an NVIDIA GPU, beside ONNX Runtime on CPUs in float32.

    python bench/cuda_shapes.py OUT.json FOLDER [--only NAME,..] [--modes fp16-fixed,fp32,fp16]

FOLDER has the ONNX files of ``NETWORKS`` with symbolic sizes. ``fp32`` and ``fp16`` are one engine
for all sizes, ``fp16-fixed`` is one for each. An error is relative to the largest value of an
output; what is not finite on either side, or has another shape, is told as such.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

MODES = ("fp16-fixed", "fp32", "fp16")
SEQUENCES = ((1, 128), (8, 128), (2, 37), (3, 1), (1, 384))
BATCHES = ((1,), (2,), (3,), (7,), (16,))
Random = np.random.Generator
Feeds = dict[str, Any]


def _text(random: Random, batch: int, length: int) -> Feeds:
    mask = np.ones((batch, length), np.int64)
    for k in range(batch):
        mask[k, max(1, length - 3 * k - 1) :] = 0
    ids = random.integers(1000, 30000, (batch, length))
    types = random.integers(0, 2, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _picture(name: str, low: float, high: float) -> Callable[..., Feeds]:
    def make(random: Random, batch: int, height: int, width: int) -> Feeds:
        patches = random.random((batch, 3, -(-height // 16), -(-width // 16)))
        mosaic = patches.repeat(16, 2).repeat(16, 3)[:, :, :height, :width]
        pixels = 0.95 * mosaic + 0.05 * random.random((batch, 3, height, width))
        return {name: (low + (high - low) * pixels).astype(np.float32)}

    return make


def _squares(*batches: int) -> tuple[tuple[int, ...], ...]:
    return tuple((batch, 224, 224) for batch in batches)


def _digit(random: Random, _: int) -> Feeds:
    return {"Input3": (255 * random.random((1, 1, 28, 28))).astype(np.float32)}


def _bytes(random: Random, batch: int) -> Feeds:
    return {"bytes": random.integers(32, 127, (batch, 2048)).astype(np.int32)}


NETWORKS: dict[str, tuple[Callable[..., Feeds], tuple[tuple[int, ...], ...]]] = {
    "bert_base": (_text, SEQUENCES),
    "minilm": (_text, SEQUENCES),
    "magika": (_bytes, BATCHES),
    "mnist": (_digit, BATCHES),
    "resnet50_b1": (_picture("x", -2, 2), _squares(1, 2, 5, 8, 64)),
    "efficientnet_lite0": (_picture("x", -1, 1), _squares(1, 2, 5, 8, 17)),
    "centerface": (
        _picture("input.1", 0, 255),
        ((1, 480, 640), (2, 64, 96), (1, 32, 32), (3, 224, 320), (1, 640, 640)),
    ),
    "ppocr_cls": (
        _picture("x", -1, 1),
        ((1, 80, 160), (2, 48, 192), (3, 64, 96), (1, 48, 64), (5, 80, 160)),
    ),
    "ppocr_det": (
        _picture("x", -2, 2),
        ((1, 640, 640), (1, 320, 480), (2, 64, 64), (1, 96, 160), (1, 736, 960)),
    ),
    "ppocr_rec": (
        _picture("x", -1, 1),
        ((1, 48, 320), (2, 48, 96), (8, 48, 320), (1, 48, 64), (3, 48, 776)),
    ),
}


def main() -> None:
    """Compares all networks and writes one document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names of networks, with commas between them")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--target", default="sm_90")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(NETWORKS)
    jobs = [(n, m, args.folder, args.target) for m in args.modes.split(",") for n in names]
    workers = max(1, len(os.sched_getaffinity(0)) // 3)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        rows = []
        for row in pool.map(_compare, jobs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    document = {"bench": "cuda_shapes", "target": args.target, "networks": rows}
    args.out.write_text(json.dumps(document, indent=1) + "\n")


def _compare(job: tuple[str, str, Path, str]) -> dict[str, Any]:
    import onnxruntime

    import tilewright as tw

    name, mode, folder, target = job
    precision, fixed = mode.split("-")[0], mode.endswith("-fixed")
    make, sizes = NETWORKS[name]
    model = _symbolic(folder / f"{name}.onnx", make(np.random.default_rng(0), *sizes[0]))
    options = {"target": target, "precision": precision, "verify": False}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = [spec.name for spec in session.get_inputs()]
    outputs = [spec.name for spec in session.get_outputs()]
    engine = None if fixed else tw.compile(model, **options)
    errors: list[Any] = []
    for seed, size in enumerate(sizes):
        made = make(np.random.default_rng(seed), *size)
        feeds = {key: made[key] for key in wanted}
        expected = dict(zip(outputs, session.run(None, feeds), strict=True))
        own = engine or tw.compile(_fixed(model, feeds), **options)
        errors.append(_error(own.run(feeds), expected))
    return {"network": name, "mode": mode, "sizes": sizes, "errors": errors}


def _symbolic(path: Path, feeds: Feeds) -> Any:
    """The model with a symbolic batch."""
    import onnx

    model = onnx.load(path)
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        if info.name in feeds and dims[0].dim_value == 1 and path.stem != "mnist":
            dims[0].dim_param = "batch"
    del model.graph.value_info[:]
    return model


def _fixed(model: Any, feeds: Feeds) -> Any:
    """The model at the sizes of these inputs."""
    import onnx

    found = onnx.ModelProto()
    found.CopyFrom(model)
    for info in found.graph.input:
        if info.name in feeds:
            dims = info.type.tensor_type.shape.dim
            for dim, size in zip(dims, feeds[info.name].shape, strict=True):
                dim.dim_value = size
    for info in found.graph.output:
        info.type.tensor_type.ClearField("shape")
    return found


def _error(found: Feeds, expected: Feeds) -> float | str:
    worst = 0.0
    for name, array in expected.items():
        a, b = np.asarray(found[name], np.float64), np.asarray(array, np.float64)
        if a.shape != b.shape:
            return f"{name}: shape {a.shape}, expected {b.shape}"
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return f"{name}: not finite"
        worst = max(worst, float(np.abs(a - b).max(initial=0) / (np.abs(b).max(initial=0) or 1)))
    return worst


if __name__ == "__main__":
    main()
