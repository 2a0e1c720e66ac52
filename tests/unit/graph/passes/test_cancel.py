"""Two transpositions, two conversions: one or none, where nothing is lost."""

import numpy as np
import pytest

from tilewright.core import dtypes
from tilewright.graph.passes.cancel_casts import cancel_casts, is_widening
from tilewright.graph.passes.cancel_transposes import cancel_transposes
from unit.graph.passes.harness import (
    apply,
    assert_fires,
    assert_ignores,
    assert_refuses,
    make,
    ops,
    run_alone,
)

# --- transpositions -------------------------------------------------------------------------------


def test_transpositions_compose() -> None:
    model = make(
        "float[2,3,4] x => float[3,4,2] y",
        "a = Transpose<perm = [2, 0, 1]>(x) y = Transpose<perm = [2, 0, 1]>(a)",
    )
    assert_fires(model, cancel_transposes, ["Transpose"])
    assert list(model.graph[0].attributes["perm"].value) == [1, 2, 0]


def test_inverse_transpositions_leave_nothing() -> None:
    model = make(
        "float[2,3,4] x => float[2,3,4] y",
        "a = Transpose<perm = [2, 0, 1]>(x) b = Transpose<perm = [1, 2, 0]>(a) y = Exp(b)",
    )
    assert_fires(model, cancel_transposes, ["Exp"])


def test_default_order_reverses() -> None:
    model = make("float[2,3] x => float[2,3] y", "a = Transpose(x) b = Transpose(a) y = Exp(b)")
    assert_fires(model, cancel_transposes, ["Exp"])


def test_first_transposition_stays_for_its_other_readers() -> None:
    model = make(
        "float[2,3] x => float[2,3] y, float[3,2] z",
        "z = Transpose(x) b = Transpose(z) y = Exp(b)",
    )
    assert_fires(model, cancel_transposes, ["Transpose", "Exp"])


def test_unknown_rank_is_refused() -> None:
    model = make(
        "int64[R] s, float[N] x => float z",
        "r = Reshape(x, s) a = Transpose(r) b = Transpose(a) z = ReduceSum<keepdims = 0>(b)",
    )
    ctx = run_alone(model, cancel_transposes)
    assert ctx.log.entries[0].rejected[0][1] == "the rank is unknown"


def test_other_operators_in_between_are_left_alone() -> None:
    model = make("float[2,3] x => float[2,3] y", "a = Transpose(x) e = Exp(a) y = Transpose(e)")
    assert_ignores(model, cancel_transposes)


# --- conversions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "middle", "target", "left"),
    [
        ("float", "double", "float", []),
        ("int8", "int32", "int8", []),
        ("int8", "float", "int8", []),
        ("float16", "float", "bfloat16", ["Cast"]),
        ("int8", "int64", "float", ["Cast"]),
        ("int32", "int64", "uint8", ["Cast"]),
        ("bool", "float", "int32", ["Cast"]),
        ("uint8", "float", "bool", ["Cast"]),
    ],
)
def test_exact_pairs(source: str, middle: str, target: str, left: list[str]) -> None:
    codes = {d.name: d.code for d in dtypes.ALL} | {"float": 1, "double": 11}
    model = make(
        f"{source}[4] x => {target}[4] y",
        f"a = Cast<to = {codes[middle]}>(x) b = Cast<to = {codes[target]}>(a) y = Identity(b)",
    )
    assert_fires(model, cancel_casts, [*left, "Identity"])


@pytest.mark.parametrize(
    ("source", "middle", "target", "reason"),
    [
        ("float", "float16", "float", "loses numbers"),
        ("float", "int32", "bool", "loses numbers"),
        ("int32", "float", "int32", "loses numbers"),
        ("int64", "int32", "int64", "loses numbers"),
        ("uint8", "int8", "uint8", "loses numbers"),
        ("int8", "float", "uint8", "does not hold all"),
    ],
)
def test_lossy_pairs(source: str, middle: str, target: str, reason: str) -> None:
    codes = {d.name: d.code for d in dtypes.ALL} | {"float": 1, "double": 11}
    model = make(
        f"{source}[4] x => {target}[4] y",
        f"a = Cast<to = {codes[middle]}>(x) y = Cast<to = {codes[target]}>(a)",
    )
    assert_refuses(model, cancel_casts, reason)


def test_widened_values_with_other_readers_stay() -> None:
    model = make(
        "float[4] x => float[4] y, double[4] w", "w = Cast<to = 11>(x) y = Cast<to = 1>(w)"
    )
    apply(model, cancel_casts)
    assert sorted(ops(model)) == ["Cast", "Identity"]


def test_widening_agrees_with_numpy() -> None:
    """Every number of the smaller types, exhaustively."""
    small = [d for d in dtypes.ALL if d.is_integer or d.is_float]
    small = [d for d in small if d.storage_bytes == 1 and d.bits == 8 and "uz" not in d.name]
    for source in small:
        if source.name == "float8_e8m0":
            continue
        numbers = np.arange(256, dtype=np.uint8).view(source.numpy)
        for target in dtypes.ALL:
            if not is_widening(source, target):
                continue
            with np.errstate(all="ignore"):
                back = numbers.astype(target.numpy).astype(source.numpy)
            one, two = numbers.astype(np.float64), back.astype(np.float64)
            np.testing.assert_array_equal(one, two, f"{source} {target}")


@pytest.mark.parametrize(
    ("source", "target", "widens"),
    [
        ("int16", "float32", True),
        ("int32", "float32", False),
        ("int32", "float64", True),
        ("int64", "float64", False),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("uint16", "int16", False),
        ("uint16", "int32", True),
        ("bool", "int8", True),
        ("string", "float32", False),
        ("uint16", "float16", False),
        ("int64", "bool", False),
    ],
)
def test_is_widening(source: str, target: str, widens: bool) -> None:
    assert is_widening(dtypes.BY_NAME[source], dtypes.BY_NAME[target]) is widens
