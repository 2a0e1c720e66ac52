"""Where data come from, and what is refused."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compress.data import BadData, open_data
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.score import Scorer, read_labels
from tilewright.core.errors import BadOption, UserError
from tilewright.graph.load import load_model, view
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
HOW = Preprocessing(mean=127, std=128)


def _inputs(shape: tuple[Any, ...] = ("n", 3), second: bool = False) -> Any:
    inputs = [tensor_info("x", shape)]
    nodes = [node("Neg", ["x"], ["y"])]
    if second:
        inputs.append(tensor_info("z", shape))
        nodes = [node("Add", ["x", "z"], ["y"])]
    return view(load_model(model_of(nodes, inputs=inputs, opset=21))).inputs


def _pictures(folder: Path, size: tuple[int, int] = (8, 6), count: int = 10) -> Path:
    rng = np.random.default_rng(0)
    (folder / "sub").mkdir(parents=True)
    for number in range(count):
        pixels = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(pixels).save(folder / "sub" / f"{number}.png")
    return folder


def test_rows_of_a_file_come_in_batches(tmp_path: Path) -> None:
    x = normal(20, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    for name in ("x.npy", "x.npz"):
        batches = list(open_data(tmp_path / name, _inputs()))
        assert [len(feeds["x"]) for feeds in batches] == [8, 8, 4]
        np.testing.assert_array_equal(np.concatenate([feeds["x"] for feeds in batches]), x)


def test_a_fixed_batch_size_is_the_models(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", normal(4, 3))
    batches = list(open_data(tmp_path / "x.npy", _inputs((2, 3))))
    assert [len(feeds["x"]) for feeds in batches] == [2, 2]


def test_iterables_functions_and_folders(tmp_path: Path) -> None:
    arrays = [normal(2, 3, seed=seed) for seed in range(3)]
    for number, array in enumerate(arrays):
        np.savez(tmp_path / f"{number}.npz", x=array)
    for data in (arrays, [{"x": array} for array in arrays], lambda: iter(arrays), tmp_path):
        batches = open_data(data, _inputs())
        for _ in range(2):
            for feeds, array in zip(batches, arrays, strict=True):
                np.testing.assert_array_equal(feeds["x"], array)
    assert not open_data(iter(arrays), _inputs()).again
    assert len(list(open_data(arrays, _inputs(), limit=3))) == 2


@pytest.mark.parametrize(("rows", "sizes"), [("n", [8, 3]), (8, [8, 8])])
def test_a_limit_ends_within_rows_of_any_number(
    rows: Any, sizes: list[int], tmp_path: Path
) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", normal(8, 3))
    found = open_data(tmp_path, _inputs((rows, 3)), limit=11)
    for _ in range(2):
        assert [len(feeds["x"]) for feeds in found] == sizes


def test_pictures_are_scaled_cropped_and_ordered(tmp_path: Path) -> None:
    folder = _pictures(tmp_path / "p")
    batches = open_data(folder, _inputs(("n", 3, 6, 8)), preprocessing=HOW)
    assert batches.num_samples == 10
    first = next(iter(batches))["x"]
    with Image.open(folder / "sub" / "0.png") as picture:
        pixels = np.asarray(picture, np.float32)
    np.testing.assert_array_equal(first[0], ((pixels - 127) / 128).transpose(2, 0, 1))
    how = Preprocessing(mean=[1, 2, 3], std=1, size=(4, 4), colour="BGR", layout="NHWC")
    (batch, *_) = open_data(folder, _inputs(("n", 4, 4, 3)), preprocessing=how)
    assert batch["x"].shape == (8, 4, 4, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": [1, 2], "std": 1}, "mean is"),
        ({"mean": 0, "std": 0}, "std is 0"),
        ({"mean": 0, "std": 1, "colour": "CMYK"}, "unknown colour"),
        ({"mean": 0, "std": 1, "layout": "CHW"}, "unknown layout"),
    ],
)
def test_preprocessing_is_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Preprocessing(**given)


def test_pictures_need_a_stated_preprocessing_and_only_they(tmp_path: Path) -> None:
    folder = _pictures(tmp_path / "p")
    with pytest.raises(BadOption, match="nothing says what the model expects"):
        open_data(folder, _inputs(("n", 3, 6, 8)))
    np.save(tmp_path / "x.npy", normal(4, 3))
    with pytest.raises(BadOption, match="preprocessing is for pictures"):
        open_data(tmp_path / "x.npy", _inputs(), preprocessing=HOW)


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no folder"):
        open_data(tmp_path / "absent", _inputs())
    with pytest.raises(BadData, match="neither pictures nor"):
        open_data(tmp_path, _inputs())
    (tmp_path / "x.npy").write_bytes(b"nothing")
    with pytest.raises(BadData, match="not an .npy file"):
        list(open_data(tmp_path / "x.npy", _inputs()))
    _pictures(tmp_path / "p")
    (tmp_path / "p" / "sub" / "0.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match="no picture that can be read"):
        list(open_data(tmp_path / "p", _inputs(("n", 3, 6, 8)), preprocessing=HOW))
    with pytest.raises(BadOption, match="data is int"):
        open_data(3, _inputs())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"z": normal(2, 3)}, "a batch has \\['z'\\]"),
        ({"x": normal(2, 3, 1)}, "the model takes 2 dims"),
        ({"x": np.ones((2, 3), np.int64)}, "x is int64, the model takes float32"),
        ({"x": np.full((2, 3), np.nan, np.float32)}, "x holds NaN or infinities"),
        ({"x": np.full((2, 3), np.inf, np.float32)}, "x holds NaN or infinities"),
    ],
)
def test_batches_are_checked(batch: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        list(open_data([batch], _inputs()))


def test_one_array_is_not_enough_for_two_inputs() -> None:
    with pytest.raises(BadData, match="the model has inputs"):
        list(open_data([normal(2, 3)], _inputs(second=True)))


# --- labels and scores ----------------------------------------------------------------------------


def _run(feeds: Any) -> Any:
    return {"y": feeds["x"]}


def _scorer(**options: Any) -> Scorer:
    batches = open_data([np.eye(4, dtype=np.float32)[:, :3]] * 2, _inputs())
    return Scorer(batches, _run, **options)


def test_accuracy_and_noise_are_counted() -> None:
    scores = _scorer(labels=[0, 1, 2, 1, 0, 1, 2, 0])(_run)
    assert scores.metric == pytest.approx(7 / 8)
    assert scores.noise == 0
    scores = _scorer()(lambda feeds: {"y": feeds["x"] * 1.1})
    assert scores.metric is None
    assert scores.sqnr_db == pytest.approx(20, abs=1e-3)


def test_a_callers_metric_is_called_with_the_run() -> None:
    assert _scorer(metric=lambda run: run({"x": np.ones(3)})["y"].sum())(_run).metric == 3


def _raise(_: Any) -> float:
    raise KeyError("logits")


@pytest.mark.parametrize(
    ("metric", "message"),
    [(_raise, "the metric raised KeyError: 'logits'"), (lambda _: "good", "returned 'good'")],
)
def test_a_metric_that_fails_says_so(metric: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message) as caught:
        _scorer(metric=metric)(_run)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "2 labels for 8 samples"),
        ([0.5] * 8, "labels are float64"),
        ([7] * 8, "the model has 3 classes"),
    ],
)
def test_labels_that_do_not_match_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        _scorer(labels=labels)


def test_labels_of_files_are_looked_up_by_name(tmp_path: Path) -> None:
    folder = _pictures(tmp_path / "p")
    batches = open_data(folder, _inputs(("n", 3, 6, 8)), preprocessing=HOW)
    rows = [f"elsewhere/{number}.png,{number}" for number in reversed(range(10))]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]))
    assert read_labels(tmp_path / "labels.csv", batches) == list(range(10))
    (tmp_path / "labels.csv").write_text("file,label\n0.png,1\n")
    with pytest.raises(BadData, match="no label for 9 of 10 files"):
        read_labels(tmp_path / "labels.csv", batches)
    (tmp_path / "labels.csv").write_text("name,class\n0.png,1\n")
    with pytest.raises(BadData, match="cannot be read as labels"):
        read_labels(tmp_path / "labels.csv", batches)


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_whatever_is_wrong_with_a_file_is_said(suffix: str, tmp_path: Path) -> None:
    """Archives, the ways to pack them and headers have errors of many libraries."""
    whole, path = tmp_path / "whole", tmp_path / f"x{suffix}"
    rng = np.random.default_rng(0)
    for save in (np.savez, np.savez_compressed, lambda file, x: np.save(file, x)):
        with whole.open("wb") as file:
            save(file, x=normal(20, 3))
        data = whole.read_bytes()
        damaged = [data[:size] for size in rng.integers(0, len(data), 12)]
        damaged += [
            data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
            for place in rng.integers(0, len(data), 60)
        ]
        for changed in damaged:
            path.write_bytes(changed)
            with contextlib.suppress(UserError):
                list(open_data(path, _inputs()))


def test_an_array_beyond_all_memory_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, archive.open("x.npy", "w") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**45, 3)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(UserError, match="does not fit into memory"):
        list(open_data(tmp_path / "x.npz", _inputs()))


def test_pictures_that_decoders_stumble_over(tmp_path: Path) -> None:
    folder = _pictures(tmp_path / "p", count=1)
    (path,) = folder.rglob("*.png")
    data, rng = path.read_bytes(), np.random.default_rng(1)
    for place in rng.integers(8, len(data), 200):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        with contextlib.suppress(UserError):
            list(open_data(folder, _inputs(("n", 3, 6, 8)), preprocessing=HOW))


def test_pixels_of_more_than_8_bits_are_not_cut_off(tmp_path: Path) -> None:
    Image.fromarray(np.full((6, 8), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match="more than 8 bits"):
        list(open_data(tmp_path, _inputs(("n", 3, 6, 8)), preprocessing=HOW))
