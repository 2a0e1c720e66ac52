"""What happens to engines in use when somebody changes their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.core.errors import CorruptEngine
from tilewright.runtime import archive, piece_hash
from tilewright.runtime.mapped_file import MappedFile

X = {"x": np.ones((2, 64), np.float32)}


@pytest.fixture(autouse=True)
def _map_what_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAPPED_FROM_BYTES", 1)


def _write(path: Path, seed: int) -> Path:
    weights = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(weights, "w")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    tw.compile(model, verify=False).save(path)
    return path


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return _write(tmp_path / "live.tw", 0)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An engine of the same network with other weights."""
    return _write(tmp_path / "other.tw", 1)


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("change", ["copy", "cut"])
def test_a_file_that_is_written_over_is_no_engine_any_more(
    live: Path, other: Path, has_run: bool, change: str
) -> None:
    """Neither do the other weights count, nor do pages that are gone end the process."""
    engine = tw.load(live)
    if has_run:
        engine.run(X)
    if change == "copy":
        shutil.copyfile(other, live)
    else:
        os.truncate(live, 100)
    with pytest.raises(CorruptEngine, match="written over") as found:
        engine.run(X)
    assert found.value.file == str(live)
    assert "load it again" in str(found.value)
    with pytest.raises(CorruptEngine, match="written over"):
        engine.profile(X)
    kept = other.read_bytes()
    with pytest.raises(CorruptEngine, match="written over"):
        engine.save(other)
    assert other.read_bytes() == kept


@pytest.mark.parametrize("has_run", [False, True])
def test_a_file_that_is_written_over_during_a_run_gives_no_result(
    live: Path, other: Path, has_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tw.load(live)
    if has_run:
        engine.run(X)
    place = engine._steady if has_run else engine._executor
    kind, name = type(place), "__call__" if has_run else "run"
    before = getattr(kind, name)

    def written_over(*given: object) -> object:
        shutil.copyfile(other, live)
        return before(*given)

    monkeypatch.setattr(kind, name, written_over)
    with pytest.raises(CorruptEngine, match="written over"):
        engine.run(X)


@pytest.mark.parametrize(
    "change",
    [
        lambda live, other: other.replace(live),
        lambda live, other: tw.load(other).save(live),
        lambda live, _: live.unlink(),
        lambda live, _: os.utime(live, (0, 0)),
        lambda live, _: live.write_bytes(live.read_bytes()),
    ],
    ids=["moved", "saved", "removed", "touched", "the same"],
)
def test_files_may_be_replaced_removed_and_touched(
    live: Path, other: Path, change: Callable[[Path, Path], object]
) -> None:
    engine = tw.load(live)
    before = engine.run(X)["y"]
    change(live, other)
    for _ in range(2):
        np.testing.assert_array_equal(engine.run(X)["y"], before)


def test_a_file_that_stays_is_hashed_once(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live.open("rb") as file:
        mapped = MappedFile(file.fileno(), "live.tw")
    part = memoryview(mapped.pages)[5:1000]
    mapped.watch(part, piece_hash.hash_of(part))
    os.utime(live, (0, 0))
    mapped.check()
    monkeypatch.setattr(piece_hash, "hash_of", lambda _: pytest.fail("hashed"))
    mapped.check()


def test_descriptors_go_with_engines(live: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        tw.load(live)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
