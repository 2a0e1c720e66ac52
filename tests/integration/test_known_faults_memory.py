"""What kernels may read, and what locks a forked child meets."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from fence import fenced

_RNG = np.random.default_rng(0)


def _model(nodes: list[Any], weights: dict[str, Any], shape: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _weight(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)


def _residual(channels: int) -> tuple[list[Any], dict[str, Any]]:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        helper.make_node("Add", ["x", "a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["y"]),
    ]
    return nodes, {"w1": _weight(channels, channels, 3, 3), "w2": _weight(16, channels, 1, 1)}


def _padded(channels: int) -> tuple[list[Any], dict[str, Any]]:
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"], mode="edge"),
        helper.make_node("Conv", ["p", "w1"], ["a"], pads=[1] * 4),
        helper.make_node("Add", ["p", "a"], ["y"]),
    ]
    pads = np.array([0, 0, 0, 0, 0, 0, 0, 1])
    return nodes, {"pads": pads, "w1": _weight(channels, channels, 3, 3)}


@pytest.mark.parametrize("network", [_residual, _padded])
@pytest.mark.parametrize("channels", [16, 17, 24])
@pytest.mark.parametrize("size", [(17, 8), (18, 8), (19, 9), (9, 64)])
@pytest.mark.parametrize("is_static", [False, True])
def test_nothing_is_read_past_an_input(
    network: Any, channels: int, size: tuple[int, int], is_static: bool
) -> None:
    """The rows of a tile that lie past the picture, in the step that adds another value to it."""
    nodes, weights = network(channels)
    shape: list[Any] = [1, channels, *size] if is_static else ["n", channels, "h", "w"]
    engine = tw.compile(_model(nodes, weights, shape), verify=False, threads=1)
    x = _RNG.standard_normal((1, channels, *size)).astype(np.float32)
    np.testing.assert_array_equal(engine.run(x=fenced(x))["y"], engine.run(x=x)["y"])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_busy_process_runs() -> None:
    """It is forked while other threads plan runs of ever new sizes."""
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    engine = tw.compile(_model(nodes, {"w": _weight(4, 4)}, ["n", 4]), verify=False, threads=2)
    done = threading.Event()

    def work(start: int) -> None:
        rows = start
        while not done.is_set():
            rows = rows % 500 + 1
            engine.run(x=np.ones((rows, 4), np.float32))

    workers = [threading.Thread(target=work, args=(100 * k,)) for k in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(60):
            child = os.fork()
            if child == 0:
                engine.run(x=np.ones((901, 4), np.float32))
                engine.submit(x=np.ones((902, 4), np.float32)).result()
                os._exit(0)
            end = time.monotonic() + 20
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    pytest.fail("the child waits for a lock that nobody holds")
                time.sleep(0.002)
    finally:
        done.set()
        for worker in workers:
            worker.join()
