"""Old forms of operators become the newest one and keep their values."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.core.errors import UnsupportedOp
from tilewright.graph.load import load_model, view
from tilewright.graph.normalize import normalize
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.view import GraphView
from unit.graph.models import model_of, node, tensor_info

RNG = np.random.default_rng(7)
FLOATS = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)


def normalised(model: onnx.ModelProto) -> GraphView:
    loaded = load_model(model)
    normalize(loaded)
    first = view(loaded)
    normalize(loaded)
    again = view(loaded)
    assert [n.op_type for n in again.nodes] == [n.op_type for n in first.nodes]  # idempotent
    assert {n.opset for n in first.nodes if not n.domain} <= {28}
    return first


def forms(nodes: list[onnx.NodeProto], opset: int, **more: object) -> GraphView:
    more.setdefault("inputs", [tensor_info("x", None)])
    return normalised(model_of(nodes, opset=opset, **more))  # type: ignore[arg-type]


def value(seen: GraphView, **feeds: np.ndarray) -> np.ndarray:
    result = evaluate_graph(seen, feeds)[seen.outputs[0].name]
    assert isinstance(result, np.ndarray)
    return result


def one(op: str, opset: int, x: np.ndarray = FLOATS, **attributes: object) -> np.ndarray:
    return value(forms([node(op, ["x"], ["y"], **attributes)], opset), x=x)


def test_attributes_become_inputs() -> None:
    np.testing.assert_array_equal(one("Squeeze", 11, FLOATS[:1], axes=[0]), FLOATS[0])
    np.testing.assert_array_equal(one("Unsqueeze", 11, axes=[0, -1]), FLOATS[None, ..., None])
    np.testing.assert_array_equal(one("ReduceMax", 13, axes=[-1]), FLOATS.max(-1, keepdims=True))
    np.testing.assert_array_equal(one("ReduceMax", 13, keepdims=0), FLOATS.max())
    np.testing.assert_allclose(
        one("ReduceSum", 11, axes=[1, 2], keepdims=0), FLOATS.sum((1, 2)), rtol=1e-5
    )
    np.testing.assert_array_equal(
        one("Slice", 9, starts=[1, -2], ends=[9, -1], axes=[1, 3]), FLOATS[:, 1:, :, -2:-1]
    )
    np.testing.assert_array_equal(one("Slice", 9, starts=[1], ends=[2]), FLOATS[1:2])
    np.testing.assert_array_equal(
        one("Pad", 10, pads=[0, 0, 1, 0, 0, 0, 0, 2], value=1.5),
        np.pad(FLOATS, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=1.5),
    )
    np.testing.assert_array_equal(one("Clip", 10, max=0.5), np.minimum(FLOATS, np.float32(0.5)))
    np.testing.assert_array_equal(one("Dropout", 10, ratio=0.9), FLOATS)


def test_clip_bounds_have_the_type_of_the_data() -> None:
    model = model_of(
        [node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE), node("Clip", ["d"], ["y"], min=0.25)],
        opset=10,
    )
    seen = normalised(model)
    bound = seen.initializers[seen.nodes[-1].inputs[1] or ""]
    assert bound.dtype == np.float64
    assert value(seen, x=FLOATS).dtype == np.float64


@pytest.mark.parametrize(("opset", "attributes"), [(11, {"split": [1, 2]}), (11, {}), (13, {})])
def test_split(opset: int, attributes: dict[str, list[int]]) -> None:
    x = FLOATS[:, : 3 if attributes else 2]
    seen = forms(
        [node("Split", ["x"], ["a", "b"], axis=1, **attributes)], opset, outputs=["a", "b"]
    )
    result = evaluate_graph(seen, {"x": x})
    np.testing.assert_array_equal(result["a"], x[:, :1])
    np.testing.assert_array_equal(result["b"], x[:, 1:])
    assert seen.nodes[0].attribute("num_outputs") == (None if attributes else 2)


def test_top_k() -> None:
    seen = forms([node("TopK", ["x"], ["y", "i"], k=2, axis=-1)], 9)
    np.testing.assert_array_equal(value(seen, x=FLOATS), -np.sort(-FLOATS, axis=-1)[..., :2])


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_before_13_ran_over_all_axes_from_its_own(op: str, axis: int | None) -> None:
    given: dict[str, Any] = {} if axis is None else {"axis": axis}
    start = (1 if axis is None else axis) % 4
    flat = FLOATS.reshape(int(np.prod(FLOATS.shape[:start])), -1)
    power = np.exp(flat - flat.max(1, keepdims=True))
    expected = power / power.sum(1, keepdims=True)
    if op == "LogSoftmax":
        expected = np.log(expected)
    if op == "Hardmax":
        expected = (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(np.float32)
    result = one(op, 11, **given)
    np.testing.assert_allclose(result, expected.reshape(FLOATS.shape), rtol=1e-5, atol=1e-6)


def test_softmax_over_the_last_axis_stays_one_node() -> None:
    inputs = [tensor_info("x", (2, "n"))]
    seen = forms([node("Softmax", ["x"], ["y"])], 11, inputs=inputs)
    assert [n.op_type for n in seen.nodes] == ["Softmax"]
    assert seen.nodes[0].attribute("axis") == -1


def test_softmax_of_an_empty_batch() -> None:
    assert one("Softmax", 11, FLOATS[:0]).shape == (0, 3, 4, 4)


def batch_norm(opset: int, outputs: list[str], **attributes: object) -> GraphView:
    shape = (3,) if attributes.get("spatial", 1) else (3, 4, 4)
    weights = {n: RNG.random(shape).astype(np.float32) + 1 for n in ("s", "b", "m", "v")}
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], outputs, **attributes)]
    return forms(nodes, opset, outputs=["y"], weights=weights)


@pytest.mark.parametrize(
    ("opset", "attributes"), [(6, {"is_test": 1}), (7, {}), (7, {"spatial": 0}), (9, {})]
)
def test_batch_normalisation_for_inference(opset: int, attributes: dict[str, int]) -> None:
    seen = batch_norm(opset, ["y"], **attributes)
    extra = (...,) if attributes.get("spatial") == 0 else (slice(None), None, None)
    weights = {k: seen.initializers[k][extra] for k in ("s", "b", "m", "v")}
    expected = (FLOATS - weights["m"]) / np.sqrt(weights["v"] + 1e-5) * weights["s"] + weights["b"]
    np.testing.assert_allclose(value(seen, x=FLOATS), expected, rtol=1e-4, atol=1e-5)


def test_batch_normalisation_for_training() -> None:
    seen = batch_norm(9, ["y", "m1", "v1", "", ""])
    assert seen.nodes[0].attribute("training_mode") == 1
    mean, var = FLOATS.mean((0, 2, 3)), FLOATS.var((0, 2, 3))
    normal = (FLOATS - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
    s, b = (seen.initializers[k][:, None, None] for k in ("s", "b"))
    np.testing.assert_allclose(value(seen, x=FLOATS), normal * s + b, rtol=1e-4, atol=1e-5)


def test_saved_statistics_are_refused() -> None:
    weights = {n: np.ones(3, dtype=np.float32) for n in ("s", "b", "m", "v")}
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m1", "v1", "m2", "v2"])]
    with pytest.raises(UnsupportedOp, match="saved statistics"):
        forms(nodes, 9, outputs=["y", "m2"], weights=weights)


@pytest.mark.parametrize("opset", [7, 9, 10])
@pytest.mark.parametrize("factor", [2.0, 1.5])
def test_upsample_and_resize_10_round_down_from_the_corner(opset: int, factor: float) -> None:
    scales = [1.0, 1.0, factor, factor]
    op = "Resize" if opset == 10 else "Upsample"
    if opset == 7:
        seen = forms([node(op, ["x"], ["y"], scales=scales)], opset)
    else:
        weights = {"s": np.asarray(scales, dtype=np.float32)}
        seen = forms([node(op, ["x", "s"], ["y"])], opset, weights=weights)
    index = np.floor(np.arange(int(4 * factor)) / factor).astype(int)
    np.testing.assert_array_equal(value(seen, x=FLOATS), FLOATS[:, :, index][..., index])
    assert [n.op_type for n in seen.nodes] == ["Resize"]


def test_empty_inputs_of_resize_mean_absent_ones() -> None:
    empty = np.zeros(0, dtype=np.float32)
    seen = forms(
        [node("Resize", ["x", "e", "e", "s"], ["y"], mode="nearest")],
        11,
        weights={"e": empty, "s": np.asarray([2, 3, 8, 8])},
    )
    assert seen.nodes[0].inputs == ("x", None, None, "s")


def test_scatter_roi_align_and_grid_sample_keep_their_meaning() -> None:
    weights = {"i": np.zeros((1, 3, 4, 4), dtype=np.int64)}
    seen = forms([node("Scatter", ["x", "i", "x"], ["y"], axis=0)], 10, weights=weights)
    assert seen.nodes[0].op_type == "ScatterElements"
    rois = {"r": np.asarray([[0, 0, 2, 2]], dtype=np.float32), "b": np.zeros(1, dtype=np.int64)}
    seen = forms([node("RoiAlign", ["x", "r", "b"], ["y"])], 10, weights=rois)
    assert seen.nodes[0].attribute("coordinate_transformation_mode") == "output_half_pixel"
    grid = {"g": np.zeros((2, 1, 1, 2), dtype=np.float32)}
    seen = forms([node("GridSample", ["x", "g"], ["y"], mode="bicubic")], 16, weights=grid)
    assert seen.nodes[0].attribute("mode") == "cubic"


def test_group_normalisation_scales_were_per_group() -> None:
    x = RNG.standard_normal((2, 4, 3)).astype(np.float32)
    weights = {"s": np.asarray([2, 3], np.float32), "b": np.asarray([0.5, 1], np.float32)}
    nodes = [node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)]
    seen = forms(nodes, 18, weights=weights)
    grouped = x.reshape(2, 2, -1)
    normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(
        grouped.var(-1, keepdims=True) + 1e-5
    )
    expected = normal * weights["s"][:, None] + weights["b"][:, None]
    np.testing.assert_allclose(value(seen, x=x), expected.reshape(x.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("axis", "shape"), [(1, (3,)), (0, (2, 3)), (2, (4, 4)), (-1, (4,))])
def test_opset_6_aligned_the_second_operand_by_axis(axis: int, shape: tuple[int, ...]) -> None:
    w = RNG.standard_normal(shape).astype(np.float32)
    nodes = [node("Add", ["x", "w"], ["y"], broadcast=1, axis=axis)]
    seen = forms(nodes, 6, weights={"w": w})
    first = axis % 4
    aligned = w.reshape(shape + (1,) * (4 - first - len(shape)))
    np.testing.assert_array_equal(value(seen, x=FLOATS), FLOATS + aligned)


def test_opset_6_slopes_belonged_to_channels() -> None:
    slope = np.asarray([0.1, 0.2, 0.3], np.float32)
    seen = forms([node("PRelu", ["x", "w"], ["y"])], 6, weights={"w": slope})
    expected = np.where(FLOATS < 0, FLOATS * slope[:, None, None], FLOATS)
    np.testing.assert_array_equal(value(seen, x=FLOATS), expected)


def test_constants_of_every_spelling_become_initialisers() -> None:
    spellings = {
        "value": numpy_helper.from_array(np.asarray([1.5], np.float32)),
        "value_float": 2.5,
        "value_floats": [1.0, 2.0],
        "value_int": 3,
        "value_ints": [4, 5],
        "value_string": "six",
        "value_strings": ["seven"],
    }
    nodes = [node("Constant", [], [name], **{name: v}) for name, v in spellings.items()]
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray([9], np.float32), "v"),
        numpy_helper.from_array(np.asarray([1], np.int64), "i"),
        [3],
    )
    nodes.append(node("Constant", [], ["sparse_value"], sparse_value=sparse))
    seen = forms(nodes, 13, outputs=[*spellings, "sparse_value"])
    assert not seen.nodes
    found = {name: array.tolist() for name, array in seen.initializers.items()}
    assert found == {
        "value": [1.5],
        "value_float": 2.5,
        "value_floats": [1.0, 2.0],
        "value_int": 3,
        "value_ints": [4, 5],
        "value_string": "six",
        "value_strings": ["seven"],
        "sparse_value": [0, 9, 0],
    }
    assert [v.name for v in seen.outputs] == [*spellings, "sparse_value"]


def test_constants_of_sub_graphs_are_lifted() -> None:
    def branch(number: float) -> onnx.GraphProto:
        nodes = [
            node("Constant", [], ["k"], value_float=float(number)),
            node("Add", ["x", "k"], ["o"]),
        ]
        weight = numpy_helper.from_array(np.asarray(number, np.float32), "w")
        outputs = [tensor_info("o", None), tensor_info("w", None), tensor_info("k", None)]
        return helper.make_graph(nodes, "b", [], outputs, [weight])

    nodes = [node("If", ["c"], ["y", "z", "k"], then_branch=branch(1), else_branch=branch(2))]
    inputs = [tensor_info("x"), tensor_info("c", (), TensorProto.BOOL)]
    seen = forms(nodes, 13, inputs=inputs, outputs=["y", "z", "k"])
    assert sorted(float(array) for array in seen.initializers.values()) == [1, 1, 2, 2]
    for graph in (seen.nodes[0].attribute("then_branch"), seen.nodes[0].attribute("else_branch")):
        assert not graph.initializers
    for flag, number in ((True, 1.0), (False, 2.0)):
        result = evaluate_graph(seen, {"x": np.zeros(2, np.float32), "c": np.asarray(flag)})
        assert [float(np.max(part)) for part in result.values()] == [number] * 3  # type: ignore[arg-type]


def test_scan_8_ran_over_a_batch() -> None:
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["t"]), node("Identity", ["t"], ["o"])],
        "body",
        [tensor_info("s"), tensor_info("e")],
        [tensor_info("t"), tensor_info("o")],
    )
    nodes = [node("Scan", ["", "i", "x"], ["y", "z"], body=body, num_scan_inputs=1)]
    inputs = [tensor_info("i", (3, 2)), tensor_info("x", (3, 4, 2))]
    seen = forms(nodes, 8, inputs=inputs, outputs=["y", "z"])
    i, x = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 2), (3, 4, 2)))
    result = evaluate_graph(seen, {"i": i, "x": x})
    np.testing.assert_allclose(result["y"], i + x.sum(1), rtol=1e-5)  # type: ignore[arg-type]
    expected = i[:, None] + np.cumsum(x, axis=1)
    np.testing.assert_allclose(result["z"], expected, rtol=1e-5)  # type: ignore[arg-type]


def test_dropout_masks_had_the_type_of_the_data() -> None:
    seen = forms([node("Dropout", ["x"], ["y", "m"])], 7, outputs=["y", "m"])
    mask = evaluate_graph(seen, {"x": FLOATS})["m"]
    assert isinstance(mask, np.ndarray)
    assert mask.dtype == np.float32
    assert mask.all()
