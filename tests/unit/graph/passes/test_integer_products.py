"""Products of quantised tensors become products of integers, or say why not."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.passes.integer_moves import integer_moves
from tilewright.graph.passes.integer_products import integer_products
from unit.graph.passes.harness import assert_fires, assert_ignores, assert_refuses, f32, make

SIGNATURE = "float[1,4,5,5] x => float[1,3,5,5] y"
DATA = "xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)"
WEIGHTS = "wd = DequantizeLinear<axis=0>(w, ws, wz) bd = DequantizeLinear<axis=0>(b, bs)"
RESULT = "q = QuantizeLinear(r, t, u) y = DequantizeLinear(q, t, u)"
KEPT = ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]


def values(**changes: Any) -> dict[str, Any]:
    scales = f32(0.01, 0.02, 0.03)
    known = {
        "s": f32(0.05),
        "z": np.uint8(120),
        "w": np.random.default_rng(0).integers(-127, 128, (3, 4, 1, 1)).astype(np.int8),
        "ws": scales,
        "wz": np.zeros(3, np.int8),
        "b": np.asarray([100, -200, 300], np.int32),
        "bs": np.float32(0.05) * scales,
        "t": f32(0.1),
        "u": np.uint8(10),
    }
    return {**known, **changes}


def conv(between: str = "r = Conv(xd, wd, bd)", **changes: Any) -> Any:
    return make(SIGNATURE, f"{DATA} {WEIGHTS} {between} {RESULT}", **values(**changes))


def test_a_convolution_runs_on_integers() -> None:
    assert_fires(conv(), integer_products, KEPT)


def test_a_relu_at_the_zero_point_goes_and_another_limits_the_integers() -> None:
    assert_fires(conv("c = Conv(xd, wd, bd) r = Relu(c)", u=np.uint8(0)), integer_products, KEPT)
    model = conv("c = Conv(xd, wd, bd) r = Clip(c, lo, hi)", lo=f32(-0.2), hi=f32(6.0))
    (decision,) = assert_fires(
        model, integer_products, ["QuantizeLinear", "QLinearConv", "Clip", "DequantizeLinear"]
    )
    assert decision.chosen == "QLinearConv, limited to 8..70"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"z": np.asarray([1] * 4, np.uint8), "s": f32(1, 1, 1, 1)}, "several scales"),
        ({"bs": f32(0.1, 0.1, 0.1)}, "the scale of the bias is not that of the product"),
        ({"u": np.uint16(1)}, "it holds uint16"),
        ({"ws": f32(0.01, -0.02, 0.03)}, "a scale is not positive and finite"),
    ],
)
def test_what_cannot_be_done_says_why(changes: dict[str, Any], reason: str) -> None:
    assert_refuses(conv(**changes), integer_products, reason)


def test_a_result_with_another_reader_stays() -> None:
    model = make(
        "float[1,4,5,5] x => float[1,3,5,5] y, float[1,3,5,5] r",
        f"{DATA} {WEIGHTS} r = Conv(xd, wd, bd) {RESULT}",
        **values(),
    )
    assert_refuses(model, integer_products, "the result is not quantised")


def test_a_float_bias_and_wrong_axes_are_refused() -> None:
    model = conv("r = Conv(xd, wd, fb)", fb=f32(1, 2, 3))
    assert_refuses(model, integer_products, "the bias is not quantised")
    body = f"{DATA} wd = DequantizeLinear<axis=1>(w, ws, wz) r = Conv(xd, wd) {RESULT}"
    changed = values(ws=f32(1, 1, 1, 1), wz=np.zeros(4, np.int8))
    assert_refuses(make(SIGNATURE, body, **changed), integer_products, "not one an output channel")


def test_floats_are_none_of_its_business() -> None:
    assert_ignores(
        make(SIGNATURE, "y = Conv(x, w)", w=np.ones((3, 4, 1, 1), np.float32)), integer_products
    )


def test_matrix_products_and_transposed_weights() -> None:
    known = values(w=np.ones((4, 3), np.int8), ws=f32(0.01, 0.02, 0.03), wz=np.zeros(3, np.int8))
    ends = "q = QuantizeLinear(r, t, u) y = DequantizeLinear(q, t, u)"
    body = f"{DATA} wd = DequantizeLinear<axis=1>(w, ws, wz) r = MatMul(xd, wd) {ends}"
    expected = ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear"]
    signature = "float[2,4] x => float[2,3] y"
    assert_fires(make(signature, body, **known), integer_products, expected)
    turned = {**known, "w": np.ones((3, 4), np.int8)}
    body = (
        f"{DATA} wd = DequantizeLinear<axis=0>(w, ws, wz) v = Transpose<perm=[1,0]>(wd) "
        f"r = MatMul(xd, v) {ends}"
    )
    assert_fires(make(signature, body, **turned), integer_products, expected)
    body = f"{DATA} {WEIGHTS} r = Gemm<transB=1>(xd, wd, bd) {ends}"
    assert_fires(
        make(signature, body, **turned),
        integer_products,
        ["QuantizeLinear", "QGemm", "DequantizeLinear"],
    )
    body = f"{DATA} {WEIGHTS} r = Gemm<transB=1, alpha=2.0>(xd, wd, bd) {ends}"
    assert_refuses(make(signature, body, **turned), integer_products, "alpha or beta is not 1")


FLOAT_RESULT = ["QuantizeLinear", "MatMulInteger", "Cast", "Mul"]


def matrices(**changes: Any) -> dict[str, Any]:
    known = values(w=np.arange(12, dtype=np.int8).reshape(4, 3) - 6, wz=np.zeros(3, np.int8))
    return {**known, "fb": f32(1, 2, 3), **changes}


@pytest.mark.parametrize(
    ("product", "changes", "expected"),
    [
        ("y = MatMul(xd, wd)", {}, FLOAT_RESULT),
        ("m = MatMul(xd, wd) y = Add(m, fb)", {}, [*FLOAT_RESULT, "Add"]),
        ("y = Gemm(xd, wd, fb)", {}, [*FLOAT_RESULT, "Add"]),
        ("m = MatMul(xd, wd) y = Relu(m)", {"ws": f32(0.5), "wz": np.int8(3)}, None),
    ],
)
def test_results_in_float_are_scaled_sums_of_integers(
    product: str, changes: dict[str, Any], expected: list[str] | None
) -> None:
    body = f"{DATA} wd = DequantizeLinear<axis=1>(w, ws, wz) {product}"
    model = make("float[2,4] x => float[2,3] y", body, **matrices(**changes))
    (decision,) = assert_fires(model, integer_products, expected or [*FLOAT_RESULT, "Relu"])
    assert decision.chosen == "MatMulInteger, its result in float32"


def test_a_result_that_others_read_too_is_quantised_from_float() -> None:
    body = f"{DATA} wd = DequantizeLinear<axis=1>(w, ws, wz) r = MatMul(xd, wd) {RESULT}"
    model = make("float[2,4] x => float[2,3] y, float[2,3] r", body, **matrices())
    expected = [*FLOAT_RESULT, "QuantizeLinear", "DequantizeLinear"]
    assert_fires(model, integer_products, expected)


def test_transposed_weights_with_a_float_bias() -> None:
    known = matrices(w=np.ones((3, 4), np.int8))
    body = f"{DATA} wd = DequantizeLinear<axis=0>(w, ws, wz) y = Gemm<transB=1>(xd, wd, fb)"
    model = make("float[2,4] x => float[2,3] y", body, **known)
    assert_fires(model, integer_products, [*FLOAT_RESULT, "Add"])


def test_sums_that_int32_may_not_hold_stay_in_float() -> None:
    deep = {"w": np.ones((40000, 3), np.int8)}
    body = f"{DATA} wd = DequantizeLinear<axis=1>(w, ws, wz) y = MatMul(xd, wd)"
    model = make("float[2,40000] x => float[2,3] y", body, **matrices(**deep))
    assert_refuses(model, integer_products, "the result is not quantised")


# --- moves ----------------------------------------------------------------------------------------


def moved(op: str, **changes: Any) -> Any:
    body = (
        f"xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) {op} "
        "q = QuantizeLinear(r, t, u) y = DequantizeLinear(q, t, u)"
    )
    known = {"s": f32(0.05), "z": np.uint8(9), "t": f32(0.05), "u": np.uint8(9)}
    return make("float[2,6] x => float[N,M] y", body, **{**known, **changes})


def test_moves_happen_to_integers() -> None:
    ends = ["QuantizeLinear", "DequantizeLinear"]
    model = moved("r = Transpose<perm=[1,0]>(xd)")
    assert_fires(model, integer_moves, [ends[0], "Transpose", ends[1]])
    model = moved("r = Concat<axis=0>(xd, xd)")
    assert_fires(model, integer_moves, [ends[0], "Concat", ends[1]])


def test_quantising_again_alike_goes() -> None:
    body = (
        "a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = QuantizeLinear(b, s, z) "
        "y = DequantizeLinear(c, s, z)"
    )
    model = make("float[3] x => float[3] y", body, s=f32(0.3), z=np.int8(-3))
    assert_fires(model, integer_moves, ["QuantizeLinear", "DequantizeLinear"])


def test_another_scale_makes_other_integers() -> None:
    model = moved("r = Transpose<perm=[1,0]>(xd)", t=f32(0.06))
    assert_refuses(model, integer_moves, "scale, zero point or type change")
