"""What callers may give, and what is refused with the expected and the given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT64,
    STRING,
    UINT8,
    DType,
)
from tilewright.core.errors import OutOfMemory, ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.runtime.feeds import Range, as_array, bind_shape, by_name, check_feeds
from tilewright.runtime.program import TensorSpec

B, N = map(Dim.symbol, ("b", "n"))


def spec(
    name: str = "x",
    shape: Sequence[Dim | int] | None = (B, N),
    dtype: DType = FLOAT32,
    container: str = "tensor",
) -> TensorSpec:
    dims = None if shape is None else tuple(map(Dim.of, shape))
    return TensorSpec(name=name, dtype=dtype, shape=dims, container=container)


def check(
    feeds: dict[str, Any], *specs: TensorSpec, **ranges: Range
) -> tuple[dict[str, Any], dict[str, int]]:
    return check_feeds(feeds, specs, ranges)


X = np.zeros((2, 3), np.float32)


def test_symbols_are_read_off_shapes() -> None:
    values, symbols = check({"x": X, "y": X.T.copy()}, spec(), spec("y", (N, B)))
    assert symbols == {"b": 2, "n": 3}
    assert values["x"] is X


def test_expressions_are_checked_once_their_symbols_are_known() -> None:
    """Whatever the order: 2*b+1 is no symbol of its own."""
    odd = spec("odd", (2 * B + 1,), INT64)
    assert check({"odd": np.zeros(5, np.int64), "x": X}, odd, spec())[1] == {"b": 2, "n": 3}
    with pytest.raises(ShapeMismatch, match=r"odd: axis 0 \(2\*b\+1\) is 6, expected 5"):
        check({"odd": np.zeros(6, np.int64), "x": X}, spec(), odd)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "expected inputs x, given none; missing x"),
        ({"x": X, "z": X}, "unknown z"),
        ({"x": np.zeros(3, np.float32)}, r"x: expected rank 2 \[b, n\], given rank 1 \[3\]"),
        ({"x": X.astype(np.float64)}, "x: expected float32, given float64"),
        ({"x": X.astype(complex)}, "x: expected float32, given complex128"),
        ({"x": np.zeros((2, 3), "M8[s]")}, "x: expected float32, given datetime64"),
        ({"x": np.array([["a"]])}, "x: expected float32, given <U1"),
        ({"x": [[1, 2], [3]]}, "x: expected float32, given list, of which no array.*inhomogeneous"),
        ({"x": {"a": 1}}, r"x: expected float32, given {'a': 1} \(dict\)"),
        ({"x": None}, r"x: expected float32, given None \(NoneType\)"),
        ({"x": 10**400}, r"x: expected float32, given a number of 1329 bits"),
        ({"x": np.ma.masked_array(X, X == 0)}, "x: expected an array without holes, given Masked"),
    ],
)
def test_what_does_not_fit_is_refused(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeMismatch, match=message):
        check(feeds, spec())


def test_a_fixed_axis_is_named_with_what_to_feed() -> None:
    with pytest.raises(ShapeMismatch) as caught:
        check({"x": np.zeros((2, 15, 3), np.float32)}, spec(shape=(B, 16, N)))
    assert caught.value.message == (
        "x: axis 1 is 15, expected 16: the shape is [b, 16, n], given [2, 15, 3]"
    )
    assert "feed x as [b, 16, n]" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("feeds", "shape"),
    [
        ({"x": X[0]}, (B, N)),
        ({"x": X}, (3, 3)),
        ({"x": X.astype(int)}, (B, N)),
        ({"x": [[1, 2], [3]]}, (B, N)),
        ({"x": [[1e300]]}, (B, N)),
        ({}, (B, N)),
    ],
)
def test_every_refusal_has_a_remedy(feeds: dict[str, Any], shape: tuple[Dim | int, ...]) -> None:
    with pytest.raises(ShapeMismatch) as caught:
        check(feeds, spec(shape=shape))
    assert caught.value.remedy


def test_a_spec_reads_as_text() -> None:
    x = spec("x", (B, 3, N))
    assert str(x) == "x float32[b, 3, n]"
    assert repr((x,)) == "(TensorSpec(x float32[b, 3, n]),)"
    assert str(spec("s", None, container="sequence")) == "s sequence of float32, of any rank"


def test_equal_symbols_must_be_equal() -> None:
    with pytest.raises(ShapeMismatch, match=r"y: axis 0 \(b\) is 4, expected 2: .*given \[4, 3\]"):
        check({"x": X, "y": np.zeros((4, 3), np.float32)}, spec(), spec("y"))


@pytest.mark.parametrize(
    ("bounds", "text"), [((3, 8), r"3\.\.8"), ((3, None), r"3\.\."), ((None, 1), r"\.\.1")]
)
def test_declared_ranges_are_kept(bounds: Range, text: str) -> None:
    with pytest.raises(ShapeMismatch, match=rf"dim b is 2, outside of its declared range {text}"):
        check({"x": X}, spec(), b=bounds)
    check({"x": X}, spec(), b=(2, 2), n=(None, None), other=(9, 9))


# --- arrays ---------------------------------------------------------------------------------------


class Wrapped:
    """Something with ``__array__`` only."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        del dtype, copy
        return X


class Exported:
    """Something with DLPack only."""

    def __dlpack__(self, **options: Any) -> Any:
        return X.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return X.__dlpack_device__()


def test_arrays_of_other_libraries_are_taken() -> None:
    for value in (Wrapped(), Exported()):
        np.testing.assert_array_equal(as_array(value, spec()), X)


class Raising(Wrapped):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        raise KeyError(dtype, copy)


class Nonsense(Wrapped):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return dtype, copy


class Elsewhere(Exported):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError(f"not on this device: {options}")


def _nested(levels: int) -> Any:
    return 1.0 if not levels else [_nested(levels - 1)]


@pytest.mark.parametrize("value", [Raising(), Nonsense(), Elsewhere(), _nested(70)])
def test_what_gives_no_array_is_refused(value: Any) -> None:
    wanted = f"expected float32, given {type(value).__name__}, of which no array can be made"
    with pytest.raises(ShapeMismatch, match=wanted) as caught:
        as_array(value, spec())
    assert caught.value.remedy


@pytest.mark.parametrize("dtype", ["f4", ">f4"])
def test_rows_that_memory_cannot_hold_are_refused(dtype: str) -> None:
    vast = np.broadcast_to(np.zeros(3, dtype), (2**40, 3))
    with pytest.raises(OutOfMemory, match=r"input x needs 12\.0 TiB, this machine has"):
        check({"x": vast}, spec())
    with pytest.raises(ShapeMismatch, match="axis 1 is 3, expected 4"):
        check({"x": vast}, spec(shape=(B, 4)))
    with pytest.raises(OutOfMemory, match="input x needs"):
        as_array(np.broadcast_to(np.array("a"), 2**40), spec(shape=None, dtype=STRING))


class Subclass(np.ndarray[Any, Any]):
    """Its arithmetic may be another, as that of ``np.matrix`` is."""


def test_subclasses_become_plain_arrays() -> None:
    for value in (X.view(Subclass), np.ma.masked_array(X)):
        assert type(as_array(value, spec())) is np.ndarray


def test_a_name_is_given_once() -> None:
    with pytest.raises(ShapeMismatch, match="given x in the mapping and as keywords"):
        by_name({"x": X}, {"x": X}, (spec(),))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 2), np.float32).T,
        np.zeros((2, 6), np.float32)[:, ::2],
        np.zeros((2, 3), ">f4"),
        np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32).reshape(2, 3),
        np.broadcast_to(np.float32(0), (2, 3)),
    ],
    ids=["transposed", "strided", "big-endian", "unaligned", "broadcast"],
)
def test_kernels_get_rows_of_aligned_elements(array: Any) -> None:
    taken = as_array(array, spec())
    assert taken.flags.c_contiguous
    assert taken.flags.aligned
    assert taken.dtype.isnative
    np.testing.assert_array_equal(taken, array)


def test_scalars_stay_scalars() -> None:
    for value in (np.float32(2), np.array(2, np.float32), 2.0, 2):
        taken = as_array(value, spec(shape=()))
        assert taken.shape == ()
        assert taken.dtype == np.float32


# --- plain numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], INT8),
        ([1, 2], FLOAT32),
        ([True, False], BOOL),
        ([0, 1], BOOL),
        ([True, False], INT64),
        ([0.1, float("nan"), float("inf")], FLOAT32),
        ([0.1], BFLOAT16),
        ([7, -8], INT4),
        ([], FLOAT32),
    ],
)
def test_plain_numbers_take_the_declared_type(value: list[Any], dtype: DType) -> None:
    taken = as_array(value, spec(shape=None, dtype=dtype))
    assert taken.dtype == dtype.numpy
    np.testing.assert_allclose(taken.astype(np.float64), np.array(value, np.float64), rtol=2**-8)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([300], INT8),
        ([-1], UINT8),
        ([2], BOOL),
        ([8], INT4),
        ([2**24 + 1], FLOAT32),
        ([1e6], FLOAT16),
        ([1e300], FLOAT32),
    ],
)
def test_plain_numbers_that_the_type_does_not_hold_are_refused(
    value: list[Any], dtype: DType
) -> None:
    with pytest.raises(ShapeMismatch, match=f"{dtype.name} does not hold these numbers"):
        as_array(value, spec(shape=None, dtype=dtype))


@pytest.mark.parametrize("dtype", [INT64, BOOL])
def test_real_numbers_are_not_made_whole(dtype: DType) -> None:
    with pytest.raises(ShapeMismatch, match=f"expected {dtype.name}, given float64"):
        as_array([1.0], spec(shape=None, dtype=dtype))


def test_small_floats_of_ml_dtypes_are_taken() -> None:
    x = np.zeros(3, ml_dtypes.bfloat16)
    assert as_array(x, spec(shape=None, dtype=BFLOAT16)) is x


# --- strings, sequences, optionals ----------------------------------------------------------------


def test_strings() -> None:
    text = spec(shape=None, dtype=STRING)
    for value in (["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object)):
        assert as_array(value, text).tolist() == ["a", "b"]
    junk: list[Any] = [[1, 2], ["a", 5], ["a", None], np.array(["a", 1], object), {"a": 1}, 5]
    for wrong in junk:
        with pytest.raises(ShapeMismatch, match="expected strings, given") as caught:
            as_array(wrong, text)
        assert caught.value.remedy == "give an array of str"
    with pytest.raises(ShapeMismatch, match="expected strings, given int64"):
        as_array(np.zeros(2, np.int64), text)


def test_bytes_are_read_as_utf8() -> None:
    text = spec(shape=None, dtype=STRING)
    for value in ([b"\xc3\xa9", "b"], np.array([b"\xc3\xa9", b"b"])):
        assert as_array(value, text).tolist() == ["é", "b"]
    with pytest.raises(ShapeMismatch, match=r"given b'\\xff' \(bytes\)"):
        as_array([b"\xff"], text)


def test_text_keeps_its_last_characters() -> None:
    """NumPy's fixed strings drop zeros at their ends."""
    assert as_array(["a\0", "b"], spec(shape=None, dtype=STRING)).tolist() == ["a\0", "b"]


def test_sequences_are_lists_of_arrays() -> None:
    values, _ = check({"s": [X, X]}, spec("s", None, container="sequence"))
    assert len(values["s"]) == 2
    with pytest.raises(ShapeMismatch, match="expected a list of arrays, given ndarray"):
        check({"s": X}, spec("s", None, container="sequence"))
    with pytest.raises(ShapeMismatch, match="expected float32"):
        check({"s": [X, X.astype(int)]}, spec("s", None, container="sequence"))


def test_optionals_may_be_absent() -> None:
    maybe = spec("o", None, container="optional")
    assert check({}, maybe)[0] == {"o": None}
    assert check({"o": None}, maybe)[0] == {"o": None}
    assert check({"o": X}, maybe)[0]["o"] is X


def test_a_shape_of_unknown_rank_binds_nothing() -> None:
    symbols: dict[str, int] = {}
    bind_shape(spec(shape=None), X, symbols)
    assert symbols == {}
