"""Faults of models that are odd, absurd or wrong: each ends in an error that says what to mend."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from integration.faults import engine_of, f32, i64, model_of, own_cache, run
from tilewright.core.errors import InvalidModel, OutOfMemory, ShapeMismatch, UserError

__all__ = ["own_cache"]
BIG, LEAST, MOST = 2**62, -(2**63), 2**63 - 1
ABSURD = (BIG, MOST, LEAST, -1, 0)


def refusal(graph: str, weights: Any = None, *, opset: int = 21) -> UserError:
    """The error that compiling with verification ends in: it names the node and a remedy."""
    with pytest.raises(UserError) as caught:
        engine_of(graph, weights, opset=opset, verify=True)
    error = caught.value
    assert error.remedy
    assert error.node
    assert error.file
    return error


# --- control flow with absent operands --------------------------------------------------------


def _loop(operands: str, *, stops: bool = False) -> str:
    condition = "co = Less(i, k)" if stops else "co = Identity(c)"
    body = (
        f"b (int64 i, bool c, float[2] v) => (bool co, float[2] w) {{ {condition} w = Add(v, v) }}"
    )
    return f"g (float[2] x) => (y) {{ y = Loop<body = {body}>({operands}) }}"


@pytest.mark.parametrize("operands", ['t, "", x', "t, c, x", '"", c, x', '"", "", x'])
def test_loops_whose_count_or_condition_is_absent(operands: str) -> None:
    weights = {"t": np.int64(3), "c": np.asarray(True), "k": np.int64(2)}
    engine = engine_of(_loop(operands, stops=not operands.startswith("t")), weights, verify=True)
    np.testing.assert_array_equal(engine.run({"x": f32(1, 2)})["y"], [8, 16])


@pytest.mark.parametrize("inputs", [["t", ""], ["", "c"], ["t", "c"], ["", ""]])
def test_loops_that_carry_nothing(inputs: list[str]) -> None:
    """Trailing operands that are absent are left out."""
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [
            make("Less", ["i", "k"], ["more"]),
            make("Cast", ["i"], ["f"], to=1),
            make("Add", ["x", "f"], ["s"]),
        ],
        "body",
        [info("i", 7, []), info("c_in", 9, [])],
        [info("more", 9, []), info("s", 1, [1])],
    )
    graph = onnx.helper.make_graph(
        [make("Loop", inputs, ["y"], body=body)],
        "g",
        [info("x", 1, [1])],
        [info("y", 1, None)],
        [
            onnx.numpy_helper.from_array(np.asarray(value), name)
            for name, value in (("t", np.int64(3)), ("c", True), ("k", np.int64(2)))
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    engine = tw.compile(onnx.helper.make_model(graph, opset_imports=opsets), threads=1)
    np.testing.assert_array_equal(engine.run({"x": f32([5])})["y"], [[5], [6], [7]])


def test_conditions_of_several_elements_are_refused() -> None:
    text = """g (float[2] x, bool[2] q) => (y) { y = If<
    then_branch = a () => (z) { z = Identity(x) }, else_branch = b () => (z) { z = Neg(x) }>(q) }"""
    assert "one boolean" in str(refusal(text))


# --- absurd attributes ------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("kernel", [[0, 1], [1, 0], [-1, 1], [LEAST, 1], [0, BIG]])
def test_windows_of_no_element(op: str, kernel: list[int]) -> None:
    error = refusal(f"g (float[1, 1, n, m] x) => (y) {{ y = {op}<kernel_shape={kernel}>(x) }}")
    assert isinstance(error, InvalidModel)
    assert "kernel_shape" in error.message


_PLAIN = {"w": np.ones((1, 1, 3), np.float32)}
_CALLS = {
    "Conv": "Conv<{}>(x, w)",
    "ConvTranspose": "ConvTranspose<{}>(x, w)",
    "MaxPool": "MaxPool<kernel_shape=[2], {}>(x)",
    "AveragePool": "AveragePool<kernel_shape=[2], {}>(x)",
    "LpPool": "LpPool<kernel_shape=[2], {}>(x)",
}


@pytest.mark.parametrize("op", list(_CALLS))
@pytest.mark.parametrize(
    "attribute", ["strides=[{}]", "dilations=[{}]", "pads=[{}, 0]", "group={}"]
)
@pytest.mark.parametrize("value", [-1, LEAST, 0])
def test_windows_that_go_nowhere(op: str, attribute: str, value: int) -> None:
    if (value == 0 and "pads" in attribute) or ("group" in attribute and "Conv" not in op):
        return
    call = _CALLS[op].format(attribute.format(value))
    error = refusal(f"g (float[1, 1, n] x) => (y) {{ y = {call} }}", _PLAIN)
    assert isinstance(error, InvalidModel)
    assert attribute.partition("=")[0] in error.message


@pytest.mark.parametrize("op", list(_CALLS))
@pytest.mark.parametrize("attribute", ["strides=[{}]", "dilations=[{}]", "pads=[{}, 0]"])
@pytest.mark.parametrize("value", [BIG, MOST])
def test_windows_of_absurd_reach(op: str, attribute: str, value: int) -> None:
    call = _CALLS[op].format(attribute.format(value))
    text = f"g (float[1, 1, n] x) => (y) {{ y = {call} }}"
    if "strides" in attribute and op != "ConvTranspose":
        engine = engine_of(text, _PLAIN, verify=True)  # the first window is the only one
        assert engine.run({"x": np.ones((1, 1, 5), np.float32)})["y"].shape == (1, 1, 1)
        return
    refusal(text, _PLAIN)


_COUNTS = {
    "Pad": ("float[n] x", "Pad(x, k)", [1]),
    "Tile": ("float[n] x", "Tile(x, k)", [1]),
    "Expand": ("float[1] x", "Expand(x, k)", [1]),
    "Reshape": ("float[4] x", "Reshape(x, k)", [1]),
    "TopK": ("float[4] x", "TopK(x, k)", [1]),
    "OneHot": ("int64[n] x", "OneHot(x, k, v)", [1]),
    "Resize": ("float[n] x", "Resize(x, , , k)", [1]),
    "CenterCropPad": ("float[n] x", "CenterCropPad(x, k)", [1]),
}


@pytest.mark.parametrize("op", list(_COUNTS))
@pytest.mark.parametrize("value", [BIG, MOST, LEAST])
def test_absurd_counts(op: str, value: int) -> None:
    declared, call, count = _COUNTS[op]
    numbers = [value, 0] if op == "Pad" else [value] * count[0]
    outputs = "y, i" if op == "TopK" else "y"
    weights = {"k": i64(numbers), "v": f32(0, 1)}
    text = f"g ({declared}) => ({outputs}) {{ {outputs} = {call} }}"
    if op == "Pad" and value == LEAST:
        refusal(text.replace("[n]", "[4]"), weights)
        return
    refusal(text, weights)


@pytest.mark.parametrize("step", [BIG, MOST, LEAST, -BIG])
def test_absurd_steps_of_slices_take_one_element(step: int) -> None:
    text = "g (float[n] x) => (y) { y = Slice(x, s, e, a, t) }"
    first, last = (0, MOST) if step > 0 else (MOST, LEAST)
    weights = {"s": i64([first]), "e": i64([last]), "a": i64([0]), "t": i64([step])}
    y = engine_of(text, weights, verify=True).run({"x": f32(1, 2, 3)})["y"]
    assert y.tolist() == [1 if step > 0 else 3]


@pytest.mark.parametrize("value", [BIG, MOST])
def test_absurd_numbers_of_parts_are_mostly_empty(value: int) -> None:
    y, z = run(f"g (float[n] x) => (y, z) {{ y, z = Split<num_outputs={value}>(x) }}", x=f32(1, 2))
    assert (y.tolist(), z.tolist()) == ([1], [2])


@pytest.mark.parametrize("scale", [1e30, np.inf, np.nan, -1.0, 0.0])
@pytest.mark.parametrize("size", ["n", "8"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_absurd_scales(scale: float, size: str, mode: str) -> None:
    text = f'g (float[1, 1, {size}] x) => (y) {{ y = Resize<mode="{mode}">(x, , s) }}'
    refusal(text, {"s": f32(1, 1, scale)})


def test_tables_of_huge_results_are_not_made_ahead() -> None:
    error = refusal('g (float[1, 1, 8] x) => (y) { y = Resize<mode="linear">(x, , s) }',
                    {"s": f32(1, 1, 3e9)})  # fmt: skip
    assert isinstance(error, OutOfMemory)


@pytest.mark.parametrize("numbers", [(0, 9, 0), (0, np.inf, 1), (0, np.nan, 1), (0, 9, np.nan)])
def test_ranges_without_an_end(numbers: tuple[float, ...]) -> None:
    weights = {name: f32(number) for name, number in zip("abc", numbers, strict=True)}
    text = "g (float[1] x) => (y) { r = Range(a, b, c) y = Add(r, x) }"
    assert isinstance(refusal(text, weights), InvalidModel)


@pytest.mark.parametrize(
    ("declared", "call"),
    [
        ("float[1, 4, n]", "LRN<size=0>(x)"),
        ("float[1, 1, n]", "LpPool<kernel_shape=[2], p=0>(x)"),
        ("float[1, 1, n]", "GlobalLpPool<p=0>(x)"),
        ("float[1, 4, 2, 2]", "DepthToSpace<blocksize=0>(x)"),
        ("float[1, 4, 2, 2]", "SpaceToDepth<blocksize=-1>(x)"),
    ],
)
def test_numbers_that_are_divided_by(declared: str, call: str) -> None:
    assert isinstance(refusal(f"g ({declared} x) => (y) {{ y = {call} }}"), InvalidModel)


@pytest.mark.parametrize(
    "attributes", ["output_height=0", "output_width=-1", f"sampling_ratio={BIG}"]
)
def test_regions_of_no_bins_or_of_endless_samples(attributes: str) -> None:
    text = f"g (float[1, 1, 4, 4] x) => (y) {{ y = RoiAlign<{attributes}>(x, r, b) }}"
    assert isinstance(refusal(text, {"r": f32([[0, 0, 2, 2]]), "b": i64([0])}), InvalidModel)


def test_verification_takes_inputs_of_small_results() -> None:
    """64 x 64 positions, spread this far, would be more than a thousand million elements."""
    w = np.ones((1, 1, 2, 2), np.float32)
    text = "g (float[1, 1, n, m] x) => (y) { y = ConvTranspose<strides=[4096, 97]>(x, w) }"
    engine = engine_of(text, {"w": w}, verify=True)
    y = engine.run({"x": np.ones((1, 1, 2, 2), np.float32)})["y"]
    assert y.shape == (1, 1, 4098, 99)
    assert y.sum() == 16


# --- sizes of constants -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["ConstantOfShape(s)", "Expand(one, s)", "Tile(ones, s)"])
def test_constants_of_absurd_size_say_how_much(call: str) -> None:
    text = f"g (float[1] x) => (y) {{ a = {call} b = ReduceSum(a) y = Add(b, x) }}"
    weights = {"s": i64(2**20, 2**20), "one": f32(1), "ones": f32([[1]])}
    error = refusal(text, weights)
    assert isinstance(error, OutOfMemory)
    assert "bytes" in error.message


def test_products_of_many_multiplications_are_not_folded() -> None:
    """1024 maps of 256 channels, 3 x 3 taps and 64 x 64 places: nearly 10**10."""
    x, w = np.zeros((1, 256, 66, 66), np.float32), np.zeros((1024, 256, 3, 3), np.float32)
    text = "g (float[1] k) => (y) { c = Conv(x, w) d = ReduceMax(c) y = Add(d, k) }"
    engine = engine_of(text, {"x": x, "w": w})
    reasons = [
        why for d in engine.decisions if d.stage == "fold_constants" for _, why in d.rejected
    ]
    assert any("multiplications" in why for why in reasons)


# --- what a model declares --------------------------------------------------------------------


def test_outputs_of_another_type_are_refused() -> None:
    with pytest.raises(
        InvalidModel, match=r"'y' is declared as tensor of int64.*float32"
    ) as caught:
        engine_of("g (float[n] x) => (int64[n] y) { y = Abs(x) }")
    assert caught.value.remedy


def test_branches_of_another_type_are_refused() -> None:
    text = """g (float[2] x, bool q) => (y) { y = If<
    then_branch = a () => (float[2] z) { z = Abs(x) },
    else_branch = b () => (int64[2] v) { v = Neg(x) }>(q) }"""
    with pytest.raises(InvalidModel, match="declared"):
        engine_of(text)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("n", None),
        ("batch", None),
        ("n, 1", "rank 1, not 2"),
        ("7", "inputs decide: axis 0 is n"),
    ],
)
def test_outputs_of_another_shape_are_a_decision(declared: str, reason: str | None) -> None:
    engine = engine_of(f"g (float[n] x) => (float[{declared}] y) {{ y = Abs(x) }}")
    assert engine.run({"x": f32(-1, 2, 3)})["y"].tolist() == [1, 2, 3]
    noted = [d for d in engine.decisions if d.stage == "shapes" and d.subject == "y"]
    reasons = [why for decision in noted for _, why in decision.rejected]
    if reason is None:
        assert not noted
    else:
        assert len(reasons) == 1
        assert reason in reasons[0]


def test_outputs_of_another_size_are_a_decision() -> None:
    engine = engine_of("g (float[4] x) => (float[5] y) { y = Abs(x) }")
    (decision,) = [d for d in engine.decisions if d.stage == "shapes"]
    assert decision.chosen == "shape [4]"
    assert decision.rejected[0][0] == "the declared shape [5]"


@pytest.mark.parametrize("formula", ["floor(n/0)", "n // 0", "n % (2-2)", "ceil(n/0)", "mod(n, 0)"])
def test_dims_that_divide_by_zero_are_refused(formula: str) -> None:
    model = onnx.ModelProto()
    model.ParseFromString(model_of("g (float[n, m] x) => (y) { y = Abs(x) }"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = formula
    with pytest.raises(InvalidModel, match="divides by 0") as caught:
        tw.compile(model, threads=1)
    assert caught.value.remedy
    assert formula in caught.value.message


# --- values that only a run knows -------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "feeds"),
    [
        ("g (float[n] x, int64[1] k) => (y, i) { y, i = TopK(x, k) }", {"k": i64([9])}),
        ("g (int64[n] x, int64 k) => (y) { y = OneHot(x, k, v) }", {"k": i64(-1)}),
        ("g (float[n] x, int64[1] k) => (y) { y = Reshape(x, k) }", {"k": i64([5])}),
        ("g (float[n] x, int64[1] k) => (y) { y = Expand(x, k) }", {"k": i64([-5])}),
        ("g (float[n] x, int64[2] k) => (y) { y = Pad(x, k) }", {"k": i64(BIG, 0)}),
        ("g (float[n] x, int64[1] k) => (y) { y = Tile(x, k) }", {"k": i64([BIG])}),
        ("g (float[n] x, int64 k) => (y) { y = Range(z, e, k) }", {"k": i64(0)}),
        ("g (float[n] x, int64[1] k) => (y) { y = ReduceSum(x, k) }", {"k": i64([3])}),
        ("g (float[n] x, int64[1] k) => (y) { y = ConstantOfShape(k) }", {"k": i64([LEAST])}),
    ],
)
def test_data_out_of_range_has_a_remedy(graph: str, feeds: dict[str, Any]) -> None:
    engine = engine_of(graph, {"v": f32(0, 1), "z": i64(0), "e": i64(4)})
    x = np.ones(3, engine.inputs[0].dtype.numpy)
    with pytest.raises(UserError) as caught:
        engine.run({"x": x, **feeds})
    assert caught.value.remedy
    assert caught.value.node


def test_mismatches_of_shapes_have_a_remedy() -> None:
    with pytest.raises(ShapeMismatch) as caught:
        engine_of("g (float[2, 3] x, float[4, 5] z) => (y) { y = MatMul(x, z) }")
    assert caught.value.remedy
    assert caught.value.node
