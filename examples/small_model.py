"""Writes a small network to try things with, into the current folder.

    python examples/small_model.py

Nothing -> ``model.onnx``, an image classifier of random weights with the input
x: float32[batch, 3, height, width]; ``inputs.npz``, two images for it; ``calibration.npy``, sixteen
to quantise it with.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, CLASSES = 32, 16
RNG = np.random.default_rng(0)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Random weights that keep the size of what they are multiplied with."""
    scale = (shape[0] / np.prod(shape)) ** 0.5
    return numpy_helper.from_array((scale * RNG.standard_normal(shape)).astype(np.float32), name)


def network() -> onnx.ModelProto:
    """Convolutions, a mean over the image and a matrix product."""
    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], name="first_conv", **same),
        helper.make_node("Relu", ["a"], ["b"], name="first_relu"),
        helper.make_node("Conv", ["b", "second"], ["c"], name="second_conv", **same),
        helper.make_node("Relu", ["c"], ["d"], name="second_relu"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="pool"),
        helper.make_node("Flatten", ["e"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "last"], ["y"], name="product"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "small",
        [value("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [value("y", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            weights("first", CHANNELS, 3, 3, 3),
            weights("second", CHANNELS, CHANNELS, 3, 3),
            weights("last", CHANNELS, CLASSES),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def images(count: int) -> np.ndarray:
    """Noise."""
    return RNG.standard_normal((count, 3, 16, 16)).astype(np.float32)


def main() -> None:
    """Writes the files."""
    onnx.save(network(), "model.onnx")
    np.savez("inputs.npz", x=images(2))
    np.save("calibration.npy", images(16))
    print("wrote model.onnx, inputs.npz, calibration.npy")


if __name__ == "__main__":
    main()
