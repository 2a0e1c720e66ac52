"""The short way for inputs gives what the long way gives, and refuses what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32, INT64, STRING, DType
from tilewright.core.errors import ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.runtime import feeds as long_way
from tilewright.runtime import known_feeds
from tilewright.runtime.cpu.allocator import address_of
from tilewright.runtime.known_feeds import KnownFeeds
from tilewright.runtime.program import TensorSpec


def _spec(name: str, dtype: DType, *dims: Any) -> TensorSpec:
    shape = tuple(Dim.symbol(dim) if isinstance(dim, str) else Dim.of(dim) for dim in dims)
    return TensorSpec(name=name, dtype=dtype, shape=shape)


_SPECS = (_spec("x", FLOAT32, "n", 3), _spec("k", INT64, "n"))


def _feeds(n: int) -> dict[str, Any]:
    return {"x": np.zeros((n, 3), np.float32), "k": np.zeros(n, np.int64)}


@pytest.fixture
def feeds() -> KnownFeeds:
    return KnownFeeds(_SPECS, {"n": (1, 8)})


def test_shapes_are_checked_once(feeds: KnownFeeds, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(given: Any, specs: Any, ranges: Any) -> Any:
        seen.append(len(given["k"]))
        return long_way.check_feeds(given, specs, ranges)

    monkeypatch.setattr(known_feeds, "check_feeds", counted)
    for n in (2, 3, 2, 2, 3):
        given = _feeds(n)
        values, symbols = feeds.check(given)
        assert values == given
        assert values is not given
        assert symbols == {"n": n}
        symbols["more"] = 1  # a run adds its own
    assert seen == [2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": np.zeros((2, 3), np.float64)},
        {"x": np.zeros((2, 3), ">f4")},
        {"x": np.zeros((2, 4), np.float32)},
        {"x": np.zeros((3, 3), np.float32)},
        {"k": np.zeros((2, 1), np.int64)},
        {"y": np.zeros(2)},
        {"x": None},
    ],
)
def test_what_does_not_fit_is_refused_after_what_fits(
    feeds: KnownFeeds, wrong: dict[str, Any]
) -> None:
    feeds.check(_feeds(2))
    if "y" not in wrong and wrong.get("x") is not None and wrong["x"].dtype == ">f4":
        values, _ = feeds.check({**_feeds(2), **wrong})
        assert values["x"].dtype.isnative
        return
    with pytest.raises(ShapeMismatch):
        feeds.check({**_feeds(2), **wrong})
    with pytest.raises(ShapeMismatch, match="range"):
        feeds.check(_feeds(9))
    with pytest.raises(ShapeMismatch, match="missing"):
        feeds.check({"x": _feeds(2)["x"]})


def test_rows_that_lie_apart_are_copied(feeds: KnownFeeds) -> None:
    feeds.check(_feeds(2))
    apart = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
    values, _ = feeds.check({**_feeds(2), "x": apart})
    assert values["x"].flags.c_contiguous
    np.testing.assert_array_equal(values["x"], apart)


def test_text_and_subclasses_take_the_long_way() -> None:
    words = KnownFeeds((_spec("t", STRING, "n"),), {})
    for _ in range(2):
        values, symbols = words.check({"t": np.array([b"a", b"b"])})
        assert values["t"].tolist() == ["a", "b"]
        assert symbols == {"n": 2}


def test_few_shapes_are_kept(feeds: KnownFeeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_feeds, "_MAX_KNOWN", 2)
    for n in (1, 2, 3, 4, 5):
        assert feeds.check(_feeds(n))[1] == {"n": n}
    assert len(feeds._known) <= 2


@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0), (2, 3)])
@pytest.mark.parametrize("writeable", [True, False])
def test_addresses(shape: tuple[int, ...], writeable: bool) -> None:
    array = np.zeros(shape, np.float32)
    array.flags.writeable = writeable
    assert address_of(array) == array.ctypes.data
    objects = array.astype(object)
    assert address_of(objects) == objects.ctypes.data
