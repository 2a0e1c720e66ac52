"""Kinds of faults known of compilers: NaN and infinity, integers, narrow floats, quantisation.

Our own graphs and numbers; expectations are written out. Structure is in test_fault_kinds.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from integration.faults import Array, engine_of, f32, i64, own_cache, run, same_bits
from tilewright.core.errors import UserError

__all__ = ["own_cache"]

NAN, INF = np.nan, np.inf
_SPECIAL = f32(NAN, INF, -INF, -0.0, 0.0, 1.5, -2.5)

# --- nonfinite ------------------------------------------------------------------------------------

UNARY: dict[str, list[float]] = {
    # of NaN, inf, -inf, -0.0, 0.0
    "Relu": [NAN, INF, 0, 0, 0],
    "Abs": [NAN, INF, INF, 0, 0],
    "Neg": [NAN, -INF, INF, 0.0, -0.0],
    "Sigmoid": [NAN, 1, 0, 0.5, 0.5],
    "Tanh": [NAN, 1, -1, -0.0, 0],
    "Exp": [NAN, INF, 0, 1, 1],
    "Log": [NAN, INF, NAN, -INF, -INF],
    "Sqrt": [NAN, INF, NAN, -0.0, 0],
    "Reciprocal": [NAN, 0, -0.0, -INF, INF],
    "Floor": [NAN, INF, -INF, -0.0, 0],
    "Ceil": [NAN, INF, -INF, -0.0, 0],
    "Round": [NAN, INF, -INF, -0.0, 0],
    "Sign": [NAN, 1, -1, 0, 0],
    "Softplus": [NAN, INF, 0, np.log(2), np.log(2)],
    "Softsign": [NAN, NAN, NAN, -0.0, 0],
    "Elu": [NAN, INF, -1, -0.0, 0],
    "LeakyRelu": [NAN, INF, -INF, -0.0, 0],
    "HardSigmoid": [NAN, 1, 0, 0.5, 0.5],
    "Erf": [NAN, 1, -1, -0.0, 0],
    "Mish": [NAN, INF, NAN, -0.0, 0],
    "Gelu": [NAN, INF, NAN, -0.0, 0],
    "Sin": [NAN, NAN, NAN, -0.0, 0],
    "Cosh": [NAN, INF, INF, 1, 1],
    "Atan": [NAN, np.pi / 2, -np.pi / 2, -0.0, 0],
}


@pytest.mark.parametrize("kind", ["float", "double", "float16", "bfloat16"])
@pytest.mark.parametrize("op", UNARY)
def test_functions_keep_nan_and_infinity(op: str, kind: str) -> None:
    if kind == "bfloat16" and op in ("Softplus", "Softsign", "Elu", "HardSigmoid", "Mish"):
        kind = "float16"
    if kind in ("float16", "bfloat16") and op in ("Cosh", "Atan", "Sin", "Erf"):
        kind = "float"
    dtype = {"float": np.float32, "double": np.float64, "float16": np.float16,
             "bfloat16": ml_dtypes.bfloat16}[kind]  # fmt: skip
    x = np.tile(_SPECIAL[:5], 7).astype(dtype)  # all lanes see each of them
    y = run(f"g ({kind}[35] x) => (y) {{ y = {op}(x) }}", opset=22, x=x)
    assert y.dtype == dtype
    got = y.astype(np.float64).reshape(7, 5)
    want = np.array(UNARY[op])
    rtol = 1e-6 if dtype in (np.float32, np.float64) else 1e-2
    np.testing.assert_allclose(got, np.tile(want, (7, 1)), rtol=rtol, atol=1e-30)


@pytest.mark.parametrize("size", [1, 5, 16, 33])
def test_extremes_keep_nan_from_either_side(size: int) -> None:
    x, nan = np.ones(size, np.float32), np.full(1, NAN, np.float32)
    x[-1] = NAN
    for op in ("Max", "Min"):
        text = f"""g (float[n] x, float[m] z) => (a, b, c)
        {{ a = {op}(x, z) b = {op}(z, x) c = {op}(x, z, x) }}"""
        for part in run(text, x=x, z=f32([2])):
            assert np.isnan(part[-1])
            assert not np.isnan(part[:-1]).any()
        for part in run(text, x=x, z=nan):
            assert np.isnan(part).all()


def test_clip_keeps_nan_whatever_bounds_it_has() -> None:
    x = f32(NAN, 5, -5, INF, -INF)
    text = """g (float[5] x) => (a, b, c, d)
    { a = Clip(x, l, h) b = Clip(x, l) c = Clip(x, , h) d = Clip(x) }"""
    a, b, c, d = run(text, {"l": f32(-1), "h": f32(2)}, x=x)
    np.testing.assert_array_equal(a, [NAN, 2, -1, 2, -1])
    np.testing.assert_array_equal(b, [NAN, 5, -1, INF, -1])
    np.testing.assert_array_equal(c, [NAN, 2, -5, 2, -INF])
    np.testing.assert_array_equal(d, x)


def test_clip_with_bounds_that_cross_gives_the_upper_one() -> None:
    text = "g (float[3] x, float l, float h) => (y) { y = Clip(x, l, h) }"
    np.testing.assert_array_equal(run(text, x=f32(-9, 0, 9), l=f32(2), h=f32(1)), [1, 1, 1])


def test_comparisons_with_nan_are_false_but_for_inequality() -> None:
    x = f32(NAN, 1, NAN)
    text = """g (float[3] x, float[3] z) => (a, b, c, d, e, f) {
    a = Less(x, z) b = LessOrEqual(x, z)
    c = Greater(x, z) d = GreaterOrEqual(x, z) e = Equal(x, z) f = Not(e) }"""
    *orders, equal, other = run(text, x=x, z=f32(1, NAN, NAN))
    for part in (*orders, equal):
        assert not part.any()
    assert other.all()


def test_reductions_see_nan() -> None:
    x = np.ones((3, 40), np.float32)
    x[1, 17] = NAN
    for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp"):
        y = run(f"g (float[3, 40] x) => (y) {{ y = {op}<keepdims=0>(x, k) }}", {"k": i64([1])}, x=x)
        assert np.isnan(y).tolist() == [False, True, False], op


def test_arg_extremes_find_nan() -> None:
    x = f32([[1, NAN, 3], [3, 2, 1]])
    a, b = run("g (float[2, 3] x) => (a, b) { a = ArgMax<axis=1>(x) b = ArgMin<axis=1>(x) }", x=x)
    assert a.ravel().tolist() == [1, 0]
    assert b.ravel().tolist() == [1, 2]


def test_pools_keep_nan_where_it_lies() -> None:
    x = np.zeros((1, 1, 20), np.float32)
    x[0, 0, 7] = NAN
    for op in ("MaxPool", "AveragePool"):
        y = run(f"g (float[1, 1, 20] x) => (y) {{ y = {op}<kernel_shape=[3]>(x) }}", x=x)
        assert np.flatnonzero(np.isnan(y)).tolist() == [5, 6, 7]


def test_softmax_of_large_small_and_masked_numbers() -> None:
    x = f32([[1e30, 1e30], [-1e30, -1e30], [-INF, 0], [1000, 0], [NAN, 0]])
    y, z = run("g (float[5, 2] x) => (y, z) { y = Softmax(x) z = LogSoftmax(x) }", x=x)
    np.testing.assert_allclose(y, f32([[0.5, 0.5], [0.5, 0.5], [0, 1], [1, 0], [NAN, NAN]]))
    np.testing.assert_allclose(z[2:4], f32([[-INF, 0], [0, -1000]]))


def test_a_row_of_minus_infinity_has_no_softmax() -> None:
    assert np.isnan(run("g (float[1, 3] x) => (y) { y = Softmax(x) }", x=f32([[-INF] * 3]))).all()


def test_functions_do_not_overflow_on_the_way() -> None:
    x = f32(-200, -100, 88, 89, 100, 1e30)
    y = run("g (float[6] x) => (y) { y = Softplus(x) }", x=x)
    np.testing.assert_allclose(y, [0, 3.8e-44, 88, 89, 100, 1e30], rtol=1e-3, atol=1e-45)
    y = run("g (float[6] x) => (y) { y = Sigmoid(x) }", x=x)
    np.testing.assert_allclose(y, [0, 3.8e-44, 1, 1, 1, 1], rtol=1e-2, atol=1e-45)
    for op, function in (("Sinh", np.sinh), ("Cosh", np.cosh)):
        near = f32(88.9, 89.2, -89.2, 0.5)
        y = run(f"g (float[4] x) => (y) {{ y = {op}(x) }}", x=near)
        np.testing.assert_allclose(y, function(near.astype(np.float64)), rtol=1e-5)
    y = run("g (float[3] x) => (y) { y = Mish(x) }", x=f32(1e30, -1e30, 50))
    np.testing.assert_array_equal(y, f32(1e30, 0, 50))


def test_means_and_norms_of_large_numbers_are_finite_where_they_can_be() -> None:
    x = np.full((1, 64), 3e37, np.float32)
    y = run("g (float[1, 64] x) => (y) { y = ReduceLogSumExp(x) }", x=f32(np.full((1, 64), 200)))
    np.testing.assert_allclose(y, [[200 + np.log(64)]], rtol=1e-6)
    half = np.full((1, 64), 60000, np.float16)
    y = run("g (float16[1, 64] x) => (y) { y = ReduceMean(x) }", x=half)
    assert y.astype(np.float64) == pytest.approx(60000)
    y = run("g (float[1, 64] x) => (y) { y = LayerNormalization(x, w) }",
            {"w": np.ones(64, np.float32)}, x=x)  # fmt: skip
    assert y.shape == x.shape


# --- folding: identities that do not hold ---------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("Mul(x, zero)", [NAN, NAN, NAN, -0.0, 0.0, 0.0, -0.0]),
        ("Sub(x, x)", [NAN, NAN, NAN, 0, 0, 0, 0]),
        ("Div(x, x)", [NAN, NAN, NAN, NAN, NAN, 1, 1]),
        ("Add(x, zero)", [NAN, INF, -INF, 0.0, 0, 1.5, -2.5]),
        ("Sub(x, zero)", [NAN, INF, -INF, -0.0, 0, 1.5, -2.5]),
        ("Sub(zero, x)", [NAN, -INF, INF, 0.0, 0.0, -1.5, 2.5]),
        ("Mul(x, one)", [NAN, INF, -INF, -0.0, 0, 1.5, -2.5]),
        ("Div(x, one)", [NAN, INF, -INF, -0.0, 0, 1.5, -2.5]),
        ("Pow(x, zero)", [1, 1, 1, 1, 1, 1, 1]),
        ("Pow(x, one)", [NAN, INF, -INF, -0.0, 0, 1.5, -2.5]),
        ("Pow(x, half)", [NAN, INF, INF, 0.0, 0, 1.2247449, NAN]),
        ("Max(x, x)", [NAN, INF, -INF, -0.0, 0, 1.5, -2.5]),
        ("Where(yes, x, zero)", [NAN, INF, -INF, -0.0, 0, 1.5, -2.5]),
    ],
)
def test_identities_hold_only_where_they_do(expression: str, expected: list[float]) -> None:
    names = {"zero": f32(0), "one": f32(1), "half": f32(0.5), "yes": np.asarray(True)}
    weights = {name: array for name, array in names.items() if name in expression}
    y = run(f"g (float[7] x) => (y) {{ y = {expression} }}", weights, x=_SPECIAL)
    same_bits(y, f32(expected))


def test_casts_there_and_back_lose_what_they_lose() -> None:
    x = f32(1e-30, 3.7, -3.7, 300.5, 1e5, -0.0)
    text = """g (float[6] x) => (a, b, c, d) {
    h = Cast<to=10>(x) a = Cast<to=1>(h)    i = Cast<to=6>(x) b = Cast<to=1>(i)
    t = Cast<to=9>(x) c = Cast<to=1>(t)     e = Cast<to=11>(x) d = Cast<to=1>(e) }"""
    a, b, c, d = run(text, x=x)
    np.testing.assert_array_equal(a, f32(0, 3.69921875, -3.69921875, 300.5, INF, 0))
    np.testing.assert_array_equal(b, [0, 3, -3, 300, 1e5, 0])
    np.testing.assert_array_equal(c, [1, 1, 1, 1, 1, 0])
    same_bits(d, x)


def test_a_chain_of_casts_keeps_its_middle() -> None:
    y = run("g (float[4] x) => (y) { a = Cast<to=6>(x) y = Cast<to=9>(a) }", x=f32(0.5, -0.9, 1, 0))
    assert y.tolist() == [False, False, True, False]
    y = run(
        "g (int64[3] x) => (y) { a = Cast<to=1>(x) y = Cast<to=7>(a) }", x=i64(2**24 + 1, 5, -7)
    )
    assert y.tolist() == [2**24, 5, -7]
    y = run("g (int32[3] x) => (y) { a = Cast<to=2>(x) y = Cast<to=6>(a) }",
            x=np.array([256, -1, 7], np.int32))  # fmt: skip
    assert y.tolist() == [0, 255, 7]


def test_constants_are_folded_as_they_would_be_computed() -> None:
    """A folded branch gives the bits of one that is computed."""
    values = {"w": f32(0.1, 3, -7.3, 1e-8)}
    for expression in ("Exp({})", "Softmax({})", "Div({}, three)", "ReduceMean({}, k)", "Tanh({})"):
        text = f"""g (float[4] x) => (a, b)
        {{ a = {expression.format("w")} b = {expression.format("x")} }}"""
        weights = {**values, "three": f32(3), "k": i64([0])}
        used = {name: array for name, array in weights.items() if name in text}
        a, b = run(text, used, x=values["w"])
        np.testing.assert_allclose(a, b, rtol=3e-7)


# --- integer --------------------------------------------------------------------------------------

INTEGER_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kinds in (
        (np.int8, np.int16, np.int32, np.int64),
        (np.uint8, np.uint16, np.uint32, np.uint64),
    )
    for kind in kinds
}


@pytest.mark.parametrize("kind", INTEGER_TYPES)
def test_sums_and_products_wrap(kind: str) -> None:
    dtype = INTEGER_TYPES[kind]
    info = np.iinfo(dtype)
    x = np.array([info.max, info.min, 3, info.max] * 9, dtype)
    z = np.array([1, info.max, 5, info.max] * 9, dtype)
    a, b, c = run(
        f"""g ({kind}[36] x, {kind}[36] z) => (a, b, c)
        {{ a = Add(x, z) b = Mul(x, z) c = Sub(z, x) }}""",
        x=x, z=z,
    )  # fmt: skip
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(a, x + z)
        np.testing.assert_array_equal(b, x * z)
        np.testing.assert_array_equal(c, z - x)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
def test_division_truncates_and_mod_follows_the_divisor(kind: str) -> None:
    dtype = INTEGER_TYPES[kind]
    x, z = np.array([7, -7, 7, -7] * 8, dtype), np.array([2, 2, -2, -2] * 8, dtype)
    q, m, f = run(
        f"""g ({kind}[32] x, {kind}[32] z) => (q, m, f)
        {{ q = Div(x, z) m = Mod(x, z) f = Mod<fmod=1>(x, z) }}""",
        x=x, z=z,
    )  # fmt: skip
    assert q[:4].tolist() == [3, -3, -3, 3]
    assert m[:4].tolist() == [1, 1, -1, -1]
    assert f[:4].tolist() == [1, -1, 1, -1]


@pytest.mark.parametrize("kind", INTEGER_TYPES)
@pytest.mark.parametrize("constant", [False, True])
def test_division_by_zero_and_of_the_smallest_number_lives_on(kind: str, constant: bool) -> None:
    dtype = INTEGER_TYPES[kind]
    smallest = np.iinfo(dtype).min
    x = np.array([smallest, 5, 0, smallest] * 5, dtype)
    divisor = np.array([-1 if smallest else 1, 0, 0, 1] * 5).astype(dtype)
    feeds = {} if constant else {"d": divisor}
    inputs = f"{kind}[20] x" + ("" if constant else f", {kind}[20] d")
    try:
        q, m = run(
            f"g ({inputs}) => (q, m) {{ q = Div(x, d) m = Mod(x, d) }}",
            {"d": divisor} if constant else None, x=x, **feeds,
        )  # fmt: skip
    except UserError:
        return
    assert q[3] == smallest
    assert (m[0], m[3]) == (0, 0)


def test_sums_in_their_own_type_before_they_are_widened() -> None:
    x = np.array([100, 100, 100], np.int8)
    text = "g (int8[3] x) => (y) { a = Add(x, x) y = Cast<to=6>(a) }"
    assert run(text, x=x).tolist() == [-56] * 3
    text = "g (uint8[2] x) => (y) { a = Sub(x, k) y = Cast<to=1>(a) }"
    assert run(text, {"k": np.uint8(5)}, x=np.array([3, 9], np.uint8)).tolist() == [254, 4]


def test_large_integers_do_not_pass_through_floats() -> None:
    x = i64(2**62 + 1, -(2**62) - 1, 2**53 + 1)
    a, b, c, d = run(
        """g (int64[3] x) => (a, b, c, d)
        { a = Add(x, k) b = ReduceMax(x) c = Abs(x) d = Max(x, k) }""",
        {"k": i64([1])}, x=x,
    )  # fmt: skip
    assert a.tolist() == [2**62 + 2, -(2**62), 2**53 + 2]
    assert b.tolist() == [2**62 + 1]
    assert c.tolist() == [2**62 + 1, 2**62 + 1, 2**53 + 1]
    assert d.tolist() == [2**62 + 1, 1, 2**53 + 1]


def test_unsigned_numbers_stay_unsigned() -> None:
    x = np.array([2**63 + 5, 1, 2**64 - 1], np.uint64)
    a, b, c, d = run(
        """g (uint64[3] x, uint64[3] z) => (a, b, c, d)
        { a = Less(x, z) b = Div(x, z) c = ReduceMax(x) d = Cast<to=1>(x) }""",
        x=x, z=np.array([1, 2, 3], np.uint64),
    )  # fmt: skip
    assert a.tolist() == [False, True, False]
    assert b.tolist() == [2**63 + 5, 0, (2**64 - 1) // 3]
    assert c.tolist() == [2**64 - 1]
    np.testing.assert_allclose(d, [2.0**63, 1, 2.0**64])


def test_a_mean_of_integers_truncates_and_is_exact() -> None:
    x = i64([[2**61 + 3, 2**61 + 2], [-7, 2]])
    y = run("g (int64[2, 2] x) => (y) { y = ReduceMean<keepdims=0>(x, k) }", {"k": i64([1])}, x=x)
    assert y.tolist() == [2**61 + 2, -2]


@pytest.mark.parametrize(("base", "power", "expected"), [(2, 10, 1024), (-3, 3, -27), (0, 0, 1)])
def test_integer_powers_are_exact(base: int, power: int, expected: int) -> None:
    text = "g (int64[1] x, int64[1] p) => (y) { y = Pow(x, p) }"
    assert run(text, x=i64([base]), p=i64([power])).tolist() == [expected]
    assert run(text, x=i64([3]), p=i64([39])).tolist() == [3**39]


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64"])
def test_shifts_as_wide_as_the_type(kind: str) -> None:
    dtype = INTEGER_TYPES[kind]
    bits = np.iinfo(dtype).bits
    x, n = np.full(4, 3, dtype), np.array([0, 1, bits - 1, bits], dtype)
    left, right = run(
        f"""g ({kind}[4] x, {kind}[4] n) => (l, r)
        {{ l = BitShift<direction="LEFT">(x, n) r = BitShift<direction="RIGHT">(x, n) }}""",
        x=x, n=n,
    )  # fmt: skip
    assert left.tolist() == [3, 6, 1 << (bits - 1), 0]
    assert right.tolist() == [3, 1, 0, 0]


# --- low_precision --------------------------------------------------------------------------------


def test_halves_overflow_and_round_once() -> None:
    x = np.array([60000, 1, 2049, 65504], np.float16)
    a, b = run("g (float16[4] x) => (a, b) { a = Add(x, x) b = Mul(x, k) }",
               {"k": np.float16(0.5)}, x=x)  # fmt: skip
    np.testing.assert_array_equal(a, np.array([INF, 2, 4096, INF], np.float16))
    np.testing.assert_array_equal(b, np.array([30000, 0.5, 1024, 32752], np.float16))


def test_what_is_compared_has_been_rounded() -> None:
    """The maximum of a row is one of its rounded elements, fused or not."""
    rng = np.random.default_rng(0)
    x, z = (rng.uniform(1, 2, (4, 33)).astype(np.float16) for _ in range(2))
    text = """g (float16[4, 33] x, float16[4, 33] z) => (y)
    { q = Div(x, z) m = ReduceMax(q, k) e = Equal(q, m) i = Cast<to=7>(e)
    y = ReduceSum<keepdims=0>(i, k) }"""
    assert (run(text, {"k": i64([1])}, x=x, z=z) >= 1).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_halves_accumulate_in_more(dtype: str) -> None:
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    x = np.ones((1, 5000), kind)
    a = run(f"g ({dtype}[1, 5000] x) => (y) {{ y = ReduceSum(x) }}", x=x)
    b = run(f"g ({dtype}[1, 5000] x, {dtype}[5000, 1] w) => (y) {{ y = MatMul(x, w) }}",
            x=x, w=x.reshape(5000, 1))  # fmt: skip
    for part in (a, b):
        assert part.astype(np.float64).item() == pytest.approx(5000, rel=4e-3)


FLOAT8 = {17: ml_dtypes.float8_e4m3fn, 18: ml_dtypes.float8_e4m3fnuz, 19: ml_dtypes.float8_e5m2,
          20: ml_dtypes.float8_e5m2fnuz}  # fmt: skip


@pytest.mark.parametrize("code", FLOAT8)
@pytest.mark.parametrize("saturate", [0, 1])
def test_float8_saturates_or_not(code: int, saturate: int) -> None:
    kind = FLOAT8[code]
    largest = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    x = f32(largest, largest * 4, -largest * 4, 1e-12, NAN, 1.0625, INF)
    y = run(f"g (float[7] x) => (y) {{ y = Cast<to={code}, saturate={saturate}>(x) }}", x=x)
    assert y.dtype == kind
    got = y.astype(np.float32)
    np.testing.assert_array_equal(got[[0, 3, 5]], [largest, 0, 1])
    assert np.isnan(got[4])
    if saturate:
        np.testing.assert_array_equal(got[[1, 2, 6]], [largest, -largest, largest])
    else:
        assert not np.isfinite(got[[1, 2, 6]]).any()


def test_ties_round_to_even_in_every_conversion() -> None:
    x = f32(2049, 2051, 1.00048828125, -2049)
    y = run("g (float[4] x) => (y) { a = Cast<to=10>(x) y = Cast<to=1>(a) }", x=x)
    np.testing.assert_array_equal(y, [2048, 2052, 1, -2048])
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    y = run("g (float[3] x) => (y) { a = Cast<to=16>(x) y = Cast<to=1>(a) }", x=bits)
    assert y.view(np.uint32).tolist() == [0x3F800000, 0x3F820000, 0x3F810000]
    y = run("g (float[6] x) => (y) { y = Round(x) }", x=f32(0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998))
    same_bits(y, f32(0, 2, 2, -0.0, -2, 2))


def test_double_is_rounded_once_to_a_narrow_type() -> None:
    """By way of float32 these would be rounded twice."""
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40])
    y = run("g (double[2] x) => (y) { a = Cast<to=16>(x) y = Cast<to=1>(a) }", x=x)
    np.testing.assert_array_equal(y, [1 + 2.0**-7, 1 + 2.0**-7])


# --- quantised ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("uint8", 0, 255), ("int8", -128, 127), ("int16", -32768, 32767), ("uint16", 0, 65535)],
)
def test_quantising_rounds_ties_to_even_and_saturates(kind: str, low: int, high: int) -> None:
    x = f32(0.25, 0.75, 1.25, -0.25, -0.75, 1e9, -1e9, INF, -INF)
    zero = np.asarray(7, INTEGER_TYPES[kind])
    y = run(
        "g (float[9] x) => (y) { y = QuantizeLinear(x, s, z) }", {"s": f32(0.5), "z": zero}, x=x
    )
    expected = [7 + 0, 7 + 2, 7 + 2, 7 - 0, 7 - 2, high, low, high, low]
    assert y.tolist() == [min(max(value, low), high) for value in expected]


def test_products_of_full_range_do_not_saturate() -> None:
    """255 * 127 * 2 is beyond 16 bits, where some instructions add pairs."""
    a = np.full((3, 64), 255, np.uint8)
    b = np.full((64, 5), 127, np.int8)
    y = run("g (uint8[3, 64] a, int8[64, 5] b) => (y) { y = MatMulInteger(a, b) }", a=a, b=b)
    np.testing.assert_array_equal(y, np.full((3, 5), 255 * 127 * 64))
    y = run("g (uint8[3, 64] a, int8[64, 5] b) => (y) { y = MatMulInteger(a, b) }", a=a, b=-b - 1)
    np.testing.assert_array_equal(y, np.full((3, 5), 255 * -128 * 64))


def test_zero_points_of_rows_and_columns() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 255, (4, 7)).astype(np.uint8)
    b = rng.integers(-128, 127, (7, 3)).astype(np.int8)
    za, zb = np.array([1, 200, 3, 4], np.uint8), np.array([-5, 6, 100], np.int8)
    y = run("g (uint8[4, 7] a, int8[7, 3] b) => (y) { y = MatMulInteger(a, b, za, zb) }",
            {"za": za, "zb": zb}, a=a, b=b)  # fmt: skip
    wide = (a.astype(int) - za[:, None].astype(int)) @ (b.astype(int) - zb.astype(int))
    np.testing.assert_array_equal(y, wide)


def test_padding_of_a_quantised_convolution_is_its_zero_point() -> None:
    x = np.full((1, 1, 3, 3), 9, np.uint8)
    w = np.ones((1, 1, 3, 3), np.int8)
    y = run("g (uint8[1, 1, 3, 3] x) => (y) { y = ConvInteger<pads=[1, 1, 1, 1]>(x, w, z) }",
            {"w": w, "z": np.uint8(5)}, x=x)  # fmt: skip
    np.testing.assert_array_equal(y[0, 0], 4 * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]]))


def _dequantised(array: Array, scale: Any, zero: Any, axis: int) -> Array:
    shape = [-1 if k == axis else 1 for k in range(array.ndim)]
    return np.asarray((array.astype(float) - np.reshape(zero, shape)) * np.reshape(scale, shape))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_along_any_axis(axis: int) -> None:
    x = np.arange(-12, 12).astype(np.int8).reshape(2, 3, 4)
    size = x.shape[axis]
    scale, zero = f32(np.arange(1, size + 1) / 4), np.arange(size).astype(np.int8)
    y = run(f"g (int8[2, 3, 4] x) => (y) {{ y = DequantizeLinear<axis={axis}>(x, s, z) }}",
            {"s": scale, "z": zero}, x=x)  # fmt: skip
    np.testing.assert_array_equal(y, _dequantised(x, scale, zero, axis % 3))


def test_quantised_weights_behind_movement() -> None:
    w = np.arange(-6, 6).astype(np.int8)
    text = """g (float[n, 4] x) => (y)
    { r = Reshape(w, k) d = DequantizeLinear<axis=1>(r, s, z) t = Transpose(d) t2 = Transpose(t)
    y = MatMul(x, t2) }"""
    engine = engine_of(
        text, {"w": w, "k": i64(4, 3), "s": f32(0.5, 1, 2), "z": np.array([0, 1, -2], np.int8)}
    )
    x = f32(np.arange(8).reshape(2, 4))
    expected = x @ _dequantised(w.reshape(4, 3), [0.5, 1, 2], [0, 1, -2], 1)
    np.testing.assert_allclose(engine.run({"x": x})["y"], expected)


def test_dynamic_quantisation_always_holds_zero() -> None:
    for x in (f32(1, 2, 3), f32(-3, -2, -1), f32(0, 0, 0), f32(-1, 0.5, 2)):
        y, scale, zero = run(
            "g (float[3] x) => (y, s, z) { y, s, z = DynamicQuantizeLinear(x) }", x=x
        )
        back = (y.astype(np.float64) - float(zero)) * float(scale)
        np.testing.assert_allclose(back, x, atol=float(scale) * 0.51)
