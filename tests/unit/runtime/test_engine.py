"""An engine checks what it is given, owns what it returns, and may be used from anywhere."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tilewright.core.errors import BadOption, BadTarget, OutOfMemory, OutOfRange, ShapeMismatch
from tilewright.runtime import executor
from tilewright.runtime.cpu import allocator
from unit.compiler.models import compiled, feeds_of, network, normal
from unit.graph.models import model_of, node, tensor_info


@pytest.fixture(scope="module")
def engine() -> tw.Engine:
    return compiled(network(), dims={"batch": (1, 16)})


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# --- what it is -----------------------------------------------------------------------------------


def test_inputs_and_outputs_have_symbolic_shapes(engine: tw.Engine) -> None:
    (x,) = engine.inputs
    assert (x.name, x.dtype.name) == ("x", "float32")
    assert [str(dim).strip("`") for dim in x.shape or ()] == ["batch", "3", "height", "8"]
    assert [spec.name for spec in engine.outputs] == ["y", "r"]


def test_the_summary_says_what_was_built(engine: tw.Engine) -> None:
    summary = engine.summary
    assert 0 < summary["kernels"] <= summary["kernels_before_fusion"]
    assert summary["interpreted"] == ()
    assert 0 <= summary["max_error"] < 1e-5
    assert summary["arena_bytes"] > 0
    assert {"import", "lower", "fuse", "compile kernels", "verify"} <= summary["seconds"].keys()
    stages = {decision.stage for decision in engine.decisions}
    assert {"tactic", "verify"} <= stages


def test_metadata_of_the_model_are_kept() -> None:
    model = network()
    entry = model.metadata_props.add()
    entry.key, entry.value = "character", "a\nb"
    assert compiled(model, verify=False).metadata == {"character": "a\nb"}


# --- what it is given -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [
        ({}, "expected inputs x, given none; missing x"),
        ({"z": normal(1)}, "expected inputs x, given z; missing x; unknown z"),
        ({"x": normal(1, 3, 4)}, r"x: expected rank 4 .*given rank 3 \[1, 3, 4\]"),
        ({"x": normal(1, 2, 6, 8)}, r"x: axis 1 is 2, expected 3.*given \[1, 2, 6, 8\]"),
        ({"x": normal(1, 3, 6, 8).astype(np.float64)}, "x: expected float32, given float64"),
        ({"x": normal(17, 3, 6, 8)}, r"dim batch is 17, outside of its declared range 1\.\.16"),
        ({"x": normal(0, 3, 6, 8)}, r"dim batch is 0, outside of its declared range 1\.\.16"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(
    engine: tw.Engine, feeds: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ShapeMismatch, match=expected):
        engine.run(feeds)


@pytest.mark.parametrize("feeds", [normal(2, 3), [normal(2)], "x.npy", 0], ids=str)
def test_feeds_are_a_mapping(engine: tw.Engine, feeds: Any) -> None:
    for use in (engine.run, engine.profile, engine.explain, lambda x: engine.submit(x).result()):
        with pytest.raises(ShapeMismatch, match="expected a mapping of input names") as caught:
            use(feeds)
        assert caught.value.remedy == "give a mapping of input names: {'x': ...}"


def test_an_engine_prints_what_it_is(engine: tw.Engine) -> None:
    text = str(engine)
    assert "x float32[batch, 3, height, 8] -> y float32[batch, 5], r float32[" in text
    assert "2 threads" in text


def test_feeds_may_be_keywords_lists_and_views(engine: tw.Engine) -> None:
    x = feeds_of()["x"]
    wanted = engine.run({"x": x})
    assert _same(engine(x=x), wanted)
    assert _same(engine.run({"x": x.tolist()}), wanted)
    swapped = np.ascontiguousarray(x.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    assert not swapped.flags.c_contiguous
    assert _same(engine.run({"x": swapped}), wanted)
    assert _same(engine.run({"x": x.astype(">f4")}), wanted)


def test_inputs_are_not_written(engine: tw.Engine) -> None:
    x = feeds_of()["x"]
    x.flags.writeable = False
    before = x.copy()
    engine.run({"x": x})
    np.testing.assert_array_equal(x, before)


def test_dims_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(BadOption, match="unknown dims width") as caught:
        compiled(network(), dims={"width": (1, 2)})
    assert "batch, height" in str(caught.value)


def test_an_index_outside_of_its_tensor_names_the_node() -> None:
    model = model_of(
        [node("Gather", ["x", "i"], ["y"], name="pick")],
        inputs=[tensor_info("x", (4,)), tensor_info("i", ("n",), TensorProto.INT64)],
        opset=21,
    )
    engine = compiled(model)
    np.testing.assert_array_equal(engine(x=normal(4), i=np.array([3, -4]))["y"], normal(4)[[3, 0]])
    with pytest.raises(OutOfRange, match="pick"):
        engine(x=normal(4), i=np.array([0, 4]))


# --- what it returns ------------------------------------------------------------------------------


def _passing_through() -> tw.Engine:
    """Outputs that are an input, a weight, a view of a weight, and one value twice."""
    model = model_of(
        [
            node("Identity", ["x"], ["same"], name="same"),
            node("Reshape", ["x", "shape"], ["flat"], name="flat"),
            node("Identity", ["w"], ["weight"], name="weight"),
            node("Reshape", ["w", "shape"], ["flat_weight"], name="flat_weight"),
            node("Relu", ["x"], ["one"], name="relu"),
            node("Identity", ["one"], ["two"], name="two"),
            node("Reshape", ["one", "shape"], ["three"], name="three"),
        ],
        inputs=[tensor_info("x", (2, 3))],
        outputs=["same", "flat", "weight", "flat_weight", "one", "two", "three"],
        weights={"w": normal(2, 3), "shape": np.array([-1])},
        opset=21,
    )
    return compiled(model)


@pytest.mark.parametrize("reload", [False, True])
def test_results_share_no_memory(reload: bool, tmp_path: Path) -> None:
    engine = _passing_through()
    if reload:
        engine.save(tmp_path / "engine.tw")
        engine = tw.load(tmp_path / "engine.tw")
    x = normal(2, 3, seed=5)
    first = engine.run({"x": x})
    kept = {name: value.copy() for name, value in first.items()}
    for name, value in first.items():
        assert not np.may_share_memory(value, x), name
        for other, array in first.items():
            assert other == name or not np.may_share_memory(value, array), (name, other)
    second = engine.run({"x": x})
    for value in second.values():
        value[...] = 7.0
    assert _same(first, kept)
    assert _same(engine.run({"x": x}), kept)


# --- from several threads and processes -----------------------------------------------------------


def test_runs_from_many_threads_equal_sequential_ones(engine: tw.Engine) -> None:
    feeds = [feeds_of(batch, height, seed) for seed, batch, height in ((1, 2, 6), (2, 8, 64))]
    wanted = [engine.run(feed) for feed in feeds]

    def work(worker: int) -> bool:
        return all(
            _same(engine.run(feeds[k % 2]), wanted[k % 2]) for k in range(worker, worker + 60)
        )

    with ThreadPoolExecutor(8) as workers:
        assert all(workers.map(work, range(8)))


def test_more_shapes_than_plans_are_kept(engine: tw.Engine) -> None:
    wanted = {height: engine.run(feeds_of(1, height)) for height in range(1, 30)}
    for height, outputs in wanted.items():
        assert _same(engine.run(feeds_of(1, height)), outputs)


def test_submit_gives_the_result_or_the_error(engine: tw.Engine) -> None:
    futures = [engine.submit(feeds_of(seed=seed)) for seed in range(6)]
    for seed, future in enumerate(futures):
        assert _same(future.result(timeout=60), engine.run(feeds_of(seed=seed)))
    assert _same(engine.submit(**feeds_of()).result(timeout=60), engine.run(feeds_of()))
    with pytest.raises(ShapeMismatch):
        engine.submit({}).result(timeout=60)


_FORK = """
import os, sys
import numpy as np
import tilewright as tw
engine = tw.load(sys.argv[1])
x = np.load(sys.argv[2])
wanted = engine.run({"x": x})
engine.submit({"x": x}).result()
child = os.fork()
again = engine.run({"x": x})
later = engine.submit({"x": x}).result()
same = all(np.array_equal(wanted[n], again[n]) and np.array_equal(wanted[n], later[n])
           for n in wanted)
if child == 0:
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
sys.exit(0 if same and status == 0 else 4)
"""


def test_a_forked_child_runs_the_engine(engine: tw.Engine, tmp_path: Path) -> None:
    engine.save(tmp_path / "engine.tw")
    np.save(tmp_path / "x.npy", feeds_of(8, 64)["x"])
    files = [str(tmp_path / "engine.tw"), str(tmp_path / "x.npy")]
    command = [sys.executable, "-c", _FORK, *files]
    done = subprocess.run(command, timeout=120, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


# --- threads, memory, processors ------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_does_not_change_the_result(threads: int) -> None:
    two = compiled(network(), threads=2, verify=False)
    other = compiled(network(), threads=threads, verify=False)
    assert _same(two.run(feeds_of(8, 40)), other.run(feeds_of(8, 40)))


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_bad_numbers_of_threads_are_refused(
    engine: tw.Engine, tmp_path: Path, threads: int
) -> None:
    engine.save(tmp_path / "engine.tw")
    with pytest.raises(BadOption, match=f"threads is {threads}"):
        tw.load(tmp_path / "engine.tw", threads=threads)
    with pytest.raises(BadOption, match=f"threads is {threads}"):
        compiled(network(), threads=threads)


def test_a_plan_beyond_the_memory_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(
        [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
        inputs=[tensor_info("x", ("n", 8))],
        weights={"w": normal(8, 8)},
        opset=21,
    )
    engine = compiled(model)
    monkeypatch.setattr(allocator, "memory_limit_bytes", lambda: 4096)
    assert engine(x=normal(64, 8))["y"].shape == (64, 8)
    wanted = r"memory plan of a run needs 8\.0 KiB, this machine has 4\.0 KiB"
    with pytest.raises(OutOfMemory, match=wanted) as caught:
        _run_without_output(engine, monkeypatch)
    assert "smaller" in str(caught.value)


def _run_without_output(engine: tw.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena is as large as the output, which would be refused first."""

    def made(shape: tuple[int, ...], dtype: Any, _purpose: str) -> tuple[Any, int]:
        array = np.empty(shape, dtype)
        return array, array.ctypes.data

    monkeypatch.setattr(executor, "empty_at", made)
    engine(x=normal(256, 8))


def test_an_output_beyond_the_memory_says_how_much() -> None:
    model = model_of(
        [node("Expand", ["x", "shape"], ["y"], name="grow")],
        inputs=[tensor_info("x", (1,)), tensor_info("shape", (2,), TensorProto.INT64)],
        opset=21,
    )
    engine = compiled(model, verify=False)
    assert engine(x=normal(1), shape=np.array([2, 3]))["y"].shape == (2, 3)
    with pytest.raises(OutOfMemory, match=r"the value y needs 4\.0 TiB, this machine has"):
        engine(x=normal(1), shape=np.array([1 << 20, 1 << 20]))


def test_code_for_an_older_processor_gives_the_same_values() -> None:
    here = compiled(network())
    if here.info["vector_bytes"] < 32:
        pytest.skip("this processor has no AVX2")
    older = compiled(network(), cpu="haswell")
    assert older.info["vector_bytes"] == 32
    for name, value in here.run(feeds_of()).items():
        np.testing.assert_allclose(older.run(feeds_of())[name], value, rtol=1e-5, atol=1e-6)


def test_an_engine_for_another_architecture_is_built_but_not_run(tmp_path: Path) -> None:
    here = compiled(network(), verify=False)
    foreign = "haswell" if here.info["triple"].startswith(("aarch64", "arm64")) else "neoverse-v1"
    engine = compiled(network(), cpu=foreign)
    assert "skipped" in engine.summary["verification"]
    assert not engine.runs_here
    engine.save(tmp_path / "foreign.tw")
    for run in _ways_to_run(engine, tmp_path / "foreign.tw"):
        with pytest.raises(BadTarget, match=f"compiled for {foreign}; this processor lacks"):
            run()
    seen = tw.load(tmp_path / "foreign.tw", inspect=True)
    assert [spec.name for spec in seen.inputs] == ["x"]
    with pytest.raises(tw.UserError, match="max_error is required"):
        compiled(network(), cpu=foreign, require=["max_error=1e-4"])


def _ways_to_run(engine: tw.Engine, file: Path) -> list[Callable[[], object]]:
    return [
        lambda: engine.run(feeds_of()),
        lambda: engine.submit(feeds_of()).result(),
        lambda: tw.load(file),
        lambda: tw.load(file, inspect=True).run(feeds_of()),
    ]


def test_an_engine_that_is_pickled_says_what_to_do(engine: tw.Engine) -> None:
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(BadOption, match="cannot be pickled or copied") as caught:
            attempt(engine)
        assert "engine.save(path)" in str(caught.value)
