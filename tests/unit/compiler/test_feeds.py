"""Inputs from files and from seeds."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler import feeds
from tilewright.compiler.feeds import InputSpec
from tilewright.core.dtypes import BFLOAT16, BOOL, INT4
from tilewright.core.errors import BadOption, UserError
from tilewright.core.shape import Dim
from tilewright.runtime.program import TensorSpec

SPECS = (
    InputSpec(name="x", dtype="float32", shape=("batch", 3)),
    InputSpec(name="ids", dtype="int64", shape=("batch", "length")),
    InputSpec(name="flag", dtype="bool", shape=()),
    InputSpec(name="half", dtype="bfloat16", shape=(4,)),
)


def test_random_feeds_follow_the_specs_and_the_seed() -> None:
    sizes = {"batch": 2, "length": 5}
    made = feeds.random_feeds(SPECS, sizes, seed=3)
    again = feeds.random_feeds(SPECS, sizes, seed=3)
    other = feeds.random_feeds(SPECS, sizes, seed=4)
    described = {name: (str(array.dtype), array.shape) for name, array in made.items()}
    assert described == {
        "x": ("float32", (2, 3)),
        "ids": ("int64", (2, 5)),
        "flag": ("bool", ()),
        "half": ("bfloat16", (4,)),
    }
    assert set(made["ids"].ravel().tolist()) <= {0, 1}
    assert all(np.array_equal(made[name], again[name]) for name in made)
    assert not np.array_equal(made["x"], other["x"])


def test_every_symbolic_dim_needs_a_size() -> None:
    with pytest.raises(BadOption, match="length") as caught:
        feeds.random_feeds(SPECS, {"batch": 2})
    assert "--dim length=SIZE" in str(caught.value)


def test_a_size_for_no_dim_is_refused() -> None:
    with pytest.raises(BadOption, match="widht"):
        feeds.random_feeds(SPECS, {"batch": 2, "length": 5, "widht": 9})


def test_text_cannot_be_random() -> None:
    spec = InputSpec(name="words", dtype="string", shape=(1,))
    with pytest.raises(BadOption, match="words"):
        feeds.random_feeds([spec], {})


def test_dims_without_a_name_get_one() -> None:
    spec = InputSpec.of("x", "float32", [1, "n", None, -1, "?", "8"])
    assert spec.shape == (1, "n", "x.2", "x.3", "x.4", 8)


def test_files_are_read_back(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "in.npz", x=array)
    np.save(tmp_path / "x.npy", array)
    assert np.array_equal(feeds.load_npz(tmp_path / "in.npz")["x"], array)
    assert np.array_equal(feeds.load_npy(tmp_path / "x.npy"), array)


@pytest.mark.parametrize("load", [feeds.load_npz, feeds.load_npy])
def test_bad_files_are_refused(load: object, tmp_path: Path) -> None:
    assert callable(load)
    bad = tmp_path / "bad"
    bad.write_bytes(b"no array")
    for path, message in ((bad, "not an"), (tmp_path / "none", "no such file")):
        with pytest.raises(UserError, match=message) as caught:
            load(path)
        assert caught.value.file == str(path)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"code": "runs"}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"code": "runs"}], dtype=object))
    (tmp_path / "y.npy").write_bytes(b"no array")
    for read, name, reason in (
        (feeds.load_npy, "x.npy", "not an .npy file: it holds Python objects, which are never"),
        (
            partial(feeds.load_npy, mapped=True),
            "x.npy",
            "not an .npy file: it holds Python objects",
        ),
        (feeds.load_npz, "x.npz", "not an .npz file: it holds Python objects"),
        (feeds.load_npy, "y.npy", "not an .npy file: it does not begin as one"),
    ):
        with pytest.raises(UserError, match=reason) as caught:
            read(tmp_path / name)
        assert "allow_pickle" not in str(caught.value)  # what NumPy advises would run the file


def test_sizes_are_given_by_bare_names_whatever_their_characters() -> None:
    names = ["x.d0", "batch size", "a+b", "名前", "n"]
    shape = [*map(Dim.symbol, names), Dim.symbol("x.d0") * 2, 3]
    spec = InputSpec.of("x", "float32", shape)
    assert spec.shape == (*names, "2*`x.d0`", 3)
    named = InputSpec.of("x", "float32", shape[:5])
    found = feeds.random_feeds([named], dict.fromkeys(names, 2))["x"]
    assert found.shape == (2,) * 5


def test_one_array_is_no_set_of_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    with pytest.raises(UserError, match="holds one array"):
        feeds.load_npz(tmp_path / "x.npy")
    with pytest.raises(UserError, match="holds arrays by name"):
        feeds.load_npy(tmp_path / "x.npz")


def test_types_that_files_cannot_hold_are_converted_and_noted(tmp_path: Path) -> None:
    values = {
        "half": np.array([1.5, -2]).astype(BFLOAT16.numpy),
        "small": np.array([-8, 7]).astype(INT4.numpy),
        "text": np.array(["a", "é"], object),
        "list": [np.array([1]), np.array([2.0])],
        "none": None,
        "plain": np.array([True]),
    }
    arrays, notes = feeds.to_files(values)
    assert notes == [
        "output half: bfloat16 written as float32",
        "output small: int4 written as int8",
        "output none is empty and not written",
    ]
    np.savez(tmp_path / "out.npz", allow_pickle=False, **arrays)
    kept = feeds.load_npz(tmp_path / "out.npz")
    assert {name: array.tolist() for name, array in kept.items()} == {
        "half": [1.5, -2.0],
        "small": [-8, 7],
        "text": ["a", "é"],
        "list.0": [1],
        "list.1": [2.0],
        "plain": [True],
    }
    specs = [
        TensorSpec(name="half", dtype=BFLOAT16, shape=None),
        TensorSpec(name="plain", dtype=BOOL, shape=None),
    ]
    back, notes = feeds.from_files(kept, specs)
    assert back["half"].dtype == BFLOAT16.numpy
    assert back["plain"] is kept["plain"]
    assert notes == ["input half: float32 of the file converted to bfloat16"]
