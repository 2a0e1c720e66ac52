"""Contractions in models with named dims and constant weights, through the shape rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import unit.lower.against_reference  # noqa: F401 - registers the lowerings
from tilewright.graph.build_view import view
from tilewright.graph.load import load_model
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.shapes import infer
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import Call, Kernel, Load, walk
from unit.lower.against_reference import assert_close, uniform
from unit.lower.direct import Array
from unit.lower.harness import lower_node, run_graph

Dims = Sequence[int | str | None]


def _model(
    op: str,
    inputs: Mapping[str, Dims | Array | None],
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node; arrays become constants, dims become graph inputs, None an absent input."""
    node = helper.make_node(
        op,
        ["" if value is None else name for name, value in inputs.items()],
        [f"y{k}" for k in range(outputs)],
        name="node",
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(value))
            for name, value in inputs.items()
            if value is not None and not isinstance(value, np.ndarray)
        ],
        [helper.make_empty_tensor_value_info(f"y{k}") for k in range(outputs)],
        initializer=[
            numpy_helper.from_array(value, name)
            for name, value in inputs.items()
            if isinstance(value, np.ndarray)
        ],
    )
    for value in graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    opset = helper.make_opsetid("", onnx.defs.onnx_opset_version())
    return helper.make_model(graph, opset_imports=[opset])


def _check(model: onnx.ModelProto, *feeds: Mapping[str, Array]) -> list[Kernel]:
    """Runs the model on each set of feeds; returns the node's kernels."""
    graph = view(load_model(model))
    for feed in feeds:
        results, expected = run_graph(graph, feed), evaluate_graph(graph, feed)
        for name, wanted in expected.items():
            assert isinstance(wanted, np.ndarray)
            assert_close(results[name], wanted)
    inference = infer(graph)
    lowering = lower_node(graph.nodes[0], inference.nodes["node"], inference)
    return [item for item in lowering.items if isinstance(item, Kernel)]


def _select_count(kernel: Kernel) -> int:
    nodes = walk(*(store.value for stage in kernel.stages for store in stage.stores))
    return sum(isinstance(node, Call) and node.op == "select" for node in nodes)


def _is_affine(kernel: Kernel) -> bool:
    nodes = walk(*(store.value for stage in kernel.stages for store in stage.stores))
    loads = [node for node in nodes if isinstance(node, Load)]
    return not any(affine(part).rest for node in loads for part in node.index)


@pytest.mark.parametrize("batches", [(1, 3, 0)])
def test_gemm_with_constant_weights(batches: tuple[int, ...]) -> None:
    model = _model("Gemm", {"x": ("n", 5), "w": uniform(4, 5), "b": uniform(4)}, transB=1)
    (kernel,) = _check(model, *({"x": uniform(n, 5)} for n in batches))
    assert kernel.is_pure
    assert _is_affine(kernel)


def test_batched_matmul_of_equal_names_needs_no_selects() -> None:
    model = _model("MatMul", {"a": ("b", "h", "m", 3), "c": ("b", "h", 3, "n")})
    feeds = {"a": uniform(2, 3, 4, 3), "c": uniform(2, 3, 3, 5, seed=1)}
    (kernel,) = _check(model, feeds)
    assert _select_count(kernel) == 0
    assert _is_affine(kernel)


def test_unpadded_symbolic_conv_has_no_guards() -> None:
    model = _model("Conv", {"x": ("n", 4, "h", "w"), "k": uniform(6, 4, 3, 3)}, strides=[2, 1])
    (kernel,) = _check(model, {"x": uniform(2, 4, 7, 8)}, {"x": uniform(1, 4, 8, 3)})
    assert _select_count(kernel) == 0
    assert kernel.is_pure


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_automatic_padding_of_symbolic_sizes(op: str, auto_pad: str) -> None:
    inputs: dict[str, Any] = {"x": ("n", 2, "h", "w")}
    attributes: dict[str, Any] = {"auto_pad": auto_pad, "strides": [2, 3], "kernel_shape": [3, 4]}
    if op == "Conv":
        inputs["k"] = uniform(2, 2, 3, 4, seed=1)
    model = _model(op, inputs, **attributes)
    (kernel,) = _check(model, {"x": uniform(2, 2, 7, 8)}, {"x": uniform(1, 2, 6, 9)})
    assert _select_count(kernel) >= 1


def test_grouped_conv_of_symbolic_batch() -> None:
    known: dict[str, Any] = {"group": 2, "pads": [1, 1, 1, 1]}
    model = _model(
        "Conv", {"x": ("n", 4, 5, 5), "k": uniform(6, 2, 3, 3), "b": uniform(6)}, **known
    )
    (kernel,) = _check(model, {"x": uniform(3, 4, 5, 5)}, {"x": uniform(0, 4, 5, 5)})
    assert _is_affine(kernel)


def test_ceil_mode_pooling_of_symbolic_sizes() -> None:
    known: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    model = _model("MaxPool", {"x": ("n", 2, "h", "w")}, **known)
    _check(model, {"x": uniform(1, 2, 5, 6)}, {"x": uniform(1, 2, 4, 7)})


@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_conv_transpose_of_symbolic_sizes(strides: list[int]) -> None:
    inputs: dict[str, Any] = {"x": ("n", 3, "h", "w"), "k": uniform(3, 2, 4, 4), "b": uniform(2)}
    model = _model("ConvTranspose", inputs, strides=strides, pads=[1, 1, 1, 1])
    _check(model, {"x": uniform(1, 3, 3, 4)}, {"x": uniform(2, 3, 5, 1)})


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrence_over_symbolic_steps(op: str, direction: str) -> None:
    rows = {"RNN": 1, "GRU": 3, "LSTM": 4}[op] * 3
    directions = 2 if direction == "bidirectional" else 1
    inputs: dict[str, Any] = {
        "x": ("t", "n", 4),
        "w": uniform(directions, rows, 4),
        "r": uniform(directions, rows, 3, seed=1),
        "b": uniform(directions, 2 * rows, seed=2),
    }
    model = _model(op, inputs, 2, hidden_size=3, direction=direction)
    products, *_ = _check(model, {"x": uniform(5, 2, 4)}, {"x": uniform(1, 1, 4)})
    assert _is_affine(products)


@pytest.mark.parametrize("group", [1, 2])
def test_attention_with_a_growing_cache(group: int) -> None:
    inputs: dict[str, Any] = {
        "q": ("n", "s", 8 * group),
        "k": ("n", "s", 8),
        "v": ("n", "s", 8),
        "mask": None,
        "past_k": ("n", 2, "p", 4),
        "past_v": ("n", 2, "p", 4),
    }
    known = {"q_num_heads": 2 * group, "kv_num_heads": 2, "is_causal": 1}
    model = _model("Attention", inputs, 3, **known)

    def feed(n: int, s: int, p: int) -> dict[str, Array]:
        shapes: dict[str, tuple[int, ...]] = {
            "q": (n, s, 8 * group),
            "k": (n, s, 8),
            "v": (n, s, 8),
        }
        shapes |= {"past_k": (n, 2, p, 4), "past_v": (n, 2, p, 4)}
        return {name: uniform(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}

    kernels = _check(model, feed(2, 3, 4), feed(1, 1, 6), feed(1, 4, 0))
    assert len(kernels) == 5
    assert all(_is_affine(kernel) for kernel in kernels)


def test_einsum_of_symbolic_sizes() -> None:
    model = _model(
        "Einsum", {"a": ("b", "q", "h", 3), "c": ("b", "k", "h", 3)}, equation="bqhd,bkhd->bhqk"
    )
    (kernel,) = _check(model, {"a": uniform(2, 3, 2, 3), "c": uniform(2, 4, 2, 3, seed=1)})
    assert kernel.is_pure
    assert _select_count(kernel) == 0
