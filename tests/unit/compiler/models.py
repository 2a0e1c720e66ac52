"""Small models for tests of whole engines: written as ONNX, compiled without the user's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import tilewright as tw
from unit.graph.models import model_of, node, tensor_info

Floats = npt.NDArray[np.float32]


def normal(*shape: int, seed: int = 0) -> Floats:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def network() -> onnx.ModelProto:
    """Convolution, activation, pooling, matrix product and softmax; batch and height symbolic."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flatten"),
        node("Gemm", ["f", "v", "u"], ["g"], name="gemm"),
        node("Tanh", ["g"], ["t"], name="tanh"),
        node("Add", ["g", "t"], ["a"], name="add"),
        node("Softmax", ["a"], ["y"], name="softmax", axis=-1),
    ]
    return model_of(
        nodes,
        inputs=[tensor_info("x", ("batch", 3, "height", 8))],
        outputs=["y", "r"],
        weights={
            "w": normal(4, 3, 3, 3),
            "b": normal(4),
            "v": normal(4, 5) / 4,
            "u": normal(5) / 4,
        },
        opset=21,
    )


def feeds_of(batch: int = 2, height: int = 6, seed: int = 1) -> dict[str, Any]:
    """Inputs of ``network``."""
    return {"x": normal(batch, 3, height, 8, seed=seed)}


def compiled(model: onnx.ModelProto, **options: Any) -> tw.Engine:
    """The engine of a model."""
    return tw.compile(model, **{"cache": None, "threads": 2, **options})


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    """The model as a file."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path
