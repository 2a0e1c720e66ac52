"""Evaluating graphs: liveness, sub-graphs, float64, errors."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.core.errors import OutOfRange, ShapeMismatch, UnsupportedOp
from tilewright.graph import reference
from tilewright.graph.load import load_model, view
from tilewright.graph.reference import captured_names, evaluate_graph
from tilewright.graph.view import GraphView
from unit.graph.models import model_of, node, tensor_info

X = np.asarray([1.0, -2.0], dtype=np.float32)


def seen(*nodes: onnx.NodeProto, **more: Any) -> GraphView:
    return view(load_model(model_of(nodes, **more)))


def test_outputs_or_the_values_asked_for() -> None:
    graph = seen(node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"]))
    assert list(evaluate_graph(graph, {"x": X})) == ["y"]
    kept = evaluate_graph(graph, {"x": X}, keep=["a", "x"])
    np.testing.assert_array_equal(kept["a"], -X)
    assert list(kept) == ["a", "x"]


def test_wide_computes_in_float64() -> None:
    weights = {"w": np.asarray([1e-9, 0], dtype=np.float32)}
    graph = seen(node("Add", ["x", "w"], ["y"]), weights=weights, outputs=["y", "x", "w"])
    result = evaluate_graph(graph, {"x": X}, wide=True)
    assert {value.dtype for value in result.values() if isinstance(value, np.ndarray)} == {
        np.dtype(np.float64)
    }
    assert result["y"][0] == 1 + float(weights["w"][0])  # type: ignore[index]


def test_dead_values_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    original = reference._Evaluation._node

    def watch(self: Any, graph: Any, item: Any, values: Any, outer: Any) -> Any:
        alive.append(len(values))
        return original(self, graph, item, values, outer)

    monkeypatch.setattr(reference._Evaluation, "_node", watch)
    nodes = [node("Neg", ["x" if k == 0 else f"v{k - 1}"], [f"v{k}"]) for k in range(50)]
    evaluate_graph(seen(*nodes, node("Neg", ["v49"], ["y"])), {"x": X})
    assert max(alive) == 1


def test_sub_graphs_read_values_around_them() -> None:
    body = helper.make_graph(
        [
            node("Add", ["state", "x"], ["next"]),
            node("Identity", ["keep_going"], ["again"]),
            node("Mul", ["next", "late"], ["row"]),
        ],
        "body",
        [
            tensor_info("step", (), TensorProto.INT64),
            tensor_info("keep_going", (), TensorProto.BOOL),
            tensor_info("state"),
        ],
        [
            tensor_info("again", (), TensorProto.BOOL),
            tensor_info("next", None),
            tensor_info("row", None),
        ],
    )
    graph = seen(
        node("Neg", ["x"], ["late"]),
        node("Loop", ["trips", "", "x"], ["y", "rows"], body=body),
        outputs=["y", "rows"],
        weights={"trips": np.asarray(3, dtype=np.int64)},
    )
    assert captured_names(graph.nodes[1].attribute("body")) == {"x", "late"}
    result = evaluate_graph(graph, {"x": X})
    np.testing.assert_array_equal(result["y"], 4 * X)
    np.testing.assert_array_equal(result["rows"], [-2 * X * X, -3 * X * X, -4 * X * X])


def test_refusals_name_what_is_wrong() -> None:
    graph = seen(
        node("Gather", ["x", "i"], ["y"], name="n1"), weights={"i": np.asarray([7], dtype=np.int64)}
    )
    with pytest.raises(OutOfRange, match="n1"):
        evaluate_graph(graph, {"x": X})
    with pytest.raises(ShapeMismatch, match="'x'"):
        evaluate_graph(graph, {})
    model = model_of([node("Odd", ["x"], ["y"], domain="d", name="n2")], domains=["d"])
    loaded = load_model(model, known=lambda _domain, _op, _opset: True)
    with pytest.raises(UnsupportedOp, match="n2"):
        evaluate_graph(view(loaded), {"x": X})


def test_feeds_and_weights_are_not_written() -> None:
    weights = {"i": np.asarray([0], dtype=np.int64), "u": np.asarray([9], dtype=np.float32)}
    graph = seen(node("ScatterElements", ["x", "i", "u"], ["y"]), weights=weights)
    x = X.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(evaluate_graph(graph, {"x": x})["y"], [9, -2])
    np.testing.assert_array_equal(x, X)
