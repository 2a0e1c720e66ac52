"""Faults of the entry points: what callers give, keep and get back, each as small as it gets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import tilewright as tw
from integration.faults import engine_of, f32, i64, model_of, own_cache
from tilewright.core.errors import (
    BadOption,
    CacheError,
    CorruptEngine,
    OutOfMemory,
    ShapeMismatch,
    UserError,
)
from tilewright.runtime import reference

__all__ = ["own_cache"]

X = f32([[1, -2, 3], [4, 5, -6]])
SIMPLE = "g (float[n, 3] x) => (y) { y = Relu(x) }"


@pytest.fixture(scope="module")
def engine() -> tw.Engine:
    return engine_of(SIMPLE)


# --- memory ---------------------------------------------------------------------------------------


def _parts(value: Any) -> list[Any]:
    return [part for item in value for part in _parts(item)] if isinstance(value, list) else [value]


class Holder:
    """Something with ``__array__`` that gives the same array each time."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        del dtype, copy
        return self.array


class Exporter(Holder):
    """The same by DLPack."""

    __array__ = None  # type: ignore[assignment]

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __getattribute__(self, name: str) -> Any:
        if name == "__array__":
            raise AttributeError(name)
        return super().__getattribute__(name)


_SEQUENCES = (
    "seq(float[2, 3]) a, float[2, 3] b, float[2, 3] c, optional(float[2, 3]) d, seq(float[2, 3]) e"
)
_VIEWS = {
    "views of a constant": "a = Identity(w) b = Reshape(w, k) c = Slice(w, one, two) "
    "d = Squeeze(w1) e = Transpose<perm=[1, 0]>(w)",
    "views of an input": "a = Identity(x) b = Reshape(x, k) c = Slice(x, one, two) "
    "d = Unsqueeze(x, one) e = Transpose<perm=[1, 0]>(x)",
    "views of a value": "r = Relu(x) a = Identity(r) b = Reshape(r, k) c = Slice(r, one, two) "
    "d = Unsqueeze(r, one) e = Transpose<perm=[1, 0]>(r)",
    "sequences": "s = SequenceConstruct(x, w) a = Identity(s) b = SequenceAt(s, zero) "
    "c = SequenceAt(s, first) d = Optional(x) e = SequenceInsert(s, x)",
    "a branch": "a = If<then_branch=t () => (p) { p = Identity(x) }, "
    "else_branch=f () => (q) { q = Identity(w) }>(yes) "
    "b = If<then_branch=t2 () => (p2) { p2 = Identity(w) }, "
    "else_branch=f2 () => (q2) { q2 = Identity(x) }>(yes) c = Identity(a) "
    "d = Identity(b) e = Identity(x)",
}


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("give", [lambda x: x, Holder, Exporter], ids=["array", "held", "dlpack"])
@pytest.mark.parametrize("body", _VIEWS.values(), ids=list(_VIEWS))
def test_results_may_be_written_to(
    body: str, give: Callable[[Any], Any], reload: bool, tmp_path: Path
) -> None:
    """Whatever an output is a view of, the engine, its inputs and other outputs stay the same."""
    weights = {
        "w": f32(np.arange(1, 7).reshape(2, 3)),
        "w1": f32([[1, 2, 3]]),
        "k": i64([-1]),
        "one": i64([1]),
        "two": i64([2]),
        "zero": np.asarray(0),
        "first": np.asarray(1),
        "yes": np.asarray(True),
    }
    outputs = _SEQUENCES if "SequenceAt" in body else "a, b, c, d, e"
    engine = engine_of(f"g (float[2, 3] x) => ({outputs}) {{ {body} }}", weights)
    if reload:
        engine.save(tmp_path / "engine.tw")
        engine = tw.load(tmp_path / "engine.tw")
    x = X.copy()
    wanted = [np.array(part) for value in engine.run({"x": x}).values() for part in _parts(value)]
    given = give(x)
    for _ in range(2):
        found = [part for value in engine.run({"x": given}).values() for part in _parts(value)]
        np.testing.assert_array_equal(x, X)
        for part, right in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(part, right)
            part[...] = 99  # and what comes after must not see it


def test_elements_of_sequences_that_are_given_are_copied() -> None:
    text = (
        "g (seq(float[2, 3]) s) => (seq(float[2, 3]) t, float[2, 3] a) "
        "{ t = Identity(s) a = SequenceAt(s, k) }"
    )
    engine = engine_of(text, {"k": np.asarray(0)})
    x = X.copy()
    found = engine.run({"s": [x, Holder(x)]})
    for part in (*found["t"], found["a"]):
        part[...] = 99
    np.testing.assert_array_equal(x, X)


def test_arrays_of_the_model_may_change_after_it_is_compiled() -> None:
    weights = f32([1, 2, 3])
    data = model_of("g (float[n, 3] x) => (y) { y = Mul(x, w) }", {"w": weights})
    model = ir.from_proto(onnx.load_from_string(data))
    model.graph.initializers["w"].const_value = ir.Tensor(weights, name="w")
    engine = tw.compile(model, threads=1, verify=False)
    before = engine.run({"x": X})["y"]
    weights[:] = 99
    np.testing.assert_array_equal(engine.run({"x": X})["y"], before)


def test_modules_may_be_trained_further_after_they_are_compiled() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    engine = tw.compile(module, (torch.ones(2, 3),), threads=1)
    feeds = {engine.inputs[0].name: X}
    before = engine.run(feeds)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7.0)
    for name, value in engine.run(feeds).items():
        np.testing.assert_array_equal(value, before[name])


def test_what_an_engine_tells_of_itself_may_be_changed(engine: tw.Engine) -> None:
    tellers: list[Callable[[], Any]] = [
        lambda: engine.info,
        lambda: engine.summary,
        lambda: engine.metadata,
    ]
    for tell in tellers:
        told = tell()
        for value in told.values():
            if isinstance(value, dict):
                value.clear()
        told.clear()
        assert tell() != told or tell() == {}
    assert engine.summary["seconds"]


# --- inputs ---------------------------------------------------------------------------------------


def test_inputs_that_memory_cannot_hold(engine: tw.Engine) -> None:
    with pytest.raises(OutOfMemory, match=r"input x needs 12\.0 TiB") as caught:
        engine.run({"x": np.broadcast_to(np.float32(0), (2**40, 3))})
    assert caught.value.remedy
    with pytest.raises(OutOfMemory, match="a random input x needs"):
        engine.explain(sizes={"n": 2**45})


def test_values_that_memory_cannot_hold_name_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("g (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct(x) }")

    def refuse(*_inputs: Any, **_options: Any) -> Any:
        raise MemoryError("Unable to allocate 12.0 TiB")

    monkeypatch.setattr(reference, "evaluate", refuse)
    with pytest.raises(OutOfMemory, match=r"SequenceConstruct.*12\.0 TiB") as caught:
        engine.run({"x": X[0]})
    assert caught.value.remedy


def test_numbers_that_overflow_are_refused_without_a_warning(engine: tw.Engine) -> None:
    vast: list[Any] = [[[1e300] * 3], [[10**300] * 3], [[-1e39, 0, 0]]]
    for value in vast:
        with pytest.raises(ShapeMismatch) as caught:
            engine.run({"x": value})
        assert "float32" in caught.value.message
        assert caught.value.remedy


# --- options --------------------------------------------------------------------------------------

_WRONG: dict[str, list[Any]] = {
    "cache": [5, "", b"x", "\0", True, np.ones(2)],
    "dump_graph": [5, "", b"x", "\0"],
    "dump_kernels": [5, "", b"x", "\0"],
    "verify_feeds": [5, [X], "x", {5: X}],
    "verify": [5, "no", None, np.ones(2)],
    "verify_passes": [5, "no", None],
    "progress": [5, "x"],
    "example_inputs": [(X,), (), 5],
    "dynamic_shapes": [{}, 5],
    "require": [5, [5], b"compiled", 0],
    "disable": [5, [5], ""],
    "dims": [5, {"n": "a"}, {"n": 2**63}],
    "threads": ["2", "abc", float("nan"), [1], 1.5, True, 0, -1],
}
_REFUSED = [{option: value} for option, values in _WRONG.items() for value in values]
_REFUSED.append({"verify_feeds": {"x": X}, "verify": False})


@pytest.mark.parametrize("options", _REFUSED, ids=str)
def test_options_that_are_refused(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadOption, match=next(iter(options))) as caught:
        tw.compile(model_of(SIMPLE), **{"threads": 1, **options})
    assert caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_one_name_is_no_list_of_letters() -> None:
    model = model_of(SIMPLE)
    assert tw.compile(model, require="compiled", disable="winograd", threads=1).runs_here
    assert tw.compile(model, disable=None, threads=1).info["disabled"] == ()


@pytest.mark.parametrize("threads", ["2", "abc", float("nan"), [1], 1.5, True, 0, -1, 1 << 70])
def test_threads_of_an_engine_that_exists(engine: tw.Engine, threads: Any, tmp_path: Path) -> None:
    path = tmp_path / "engine.tw"
    engine.save(path)
    with pytest.raises(BadOption, match="threads is"):
        tw.load(path, threads=threads)


def test_options_of_what_an_engine_does(engine: tw.Engine) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda value: engine.profile({"x": X}, runs=value),
        lambda value: engine.explain({"x": X}, runs=value),
        lambda value: engine.explain(sizes={"n": value}),
        lambda value: engine.arena_bytes({"n": value}),
    ]
    numbers: list[Any] = ["a", 1.5, True, -1, 2**63]
    for call in calls:
        for value in numbers:
            with pytest.raises(BadOption, match="is") as caught:
                call(value)
            assert caught.value.remedy
    junk: list[Any] = [5, [("n", 1)], {5: 1}]
    for wrong in junk:
        with pytest.raises(BadOption):
            engine.explain(sizes=wrong)
        with pytest.raises(BadOption, match="board is"):
            engine.explain(board=wrong)
    with pytest.raises(BadOption, match=r"use tilewright\.load\(path\)"):
        tw.Engine("model.tw")  # type: ignore[arg-type]


def test_an_explanation_without_times(engine: tw.Engine) -> None:
    told = engine.explain({"x": X}, runs=0)
    assert not told.json()["runs"]
    assert not any("not here" in warning for warning in told.warnings)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 5, True, 1.5, b"engine.tw", "", "a\0", "\ud800", [], X],
                         ids=str)  # fmt: skip
def test_what_is_no_path(engine: tw.Engine, path: Any) -> None:
    for use in (engine.save, tw.load):
        with pytest.raises(BadOption, match="path is") as caught:
            use(path)
        assert caught.value.remedy == "give a path as str or pathlib.Path"


def test_paths_of_what_is_no_file(engine: tw.Engine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/", str(tmp_path), str(pipe)):
        inode = os.stat(path).st_ino
        with pytest.raises(CacheError, match="is a") as saved:
            engine.save(path)
        with pytest.raises(CorruptEngine, match="not a regular file|cannot be read") as loaded:
            tw.load(path)
        assert saved.value.remedy
        assert loaded.value.remedy
        assert os.stat(path).st_ino == inode


def test_saving_keeps_links_and_permissions(engine: tw.Engine, tmp_path: Path) -> None:
    target, link = tmp_path / "engine.tw", tmp_path / "current.tw"
    engine.save(target)
    target.chmod(0o640)
    link.symlink_to(target.name)
    engine.save(link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    np.testing.assert_array_equal(tw.load(link).run({"x": X})["y"], np.maximum(X, 0))


# --- threads --------------------------------------------------------------------------------------


def test_submit_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(SIMPLE)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OutOfMemory, match="can't start new thread") as caught:
            engine.submit({"x": X})
    assert "use run" in str(caught.value.remedy)
    assert isinstance(caught.value, UserError)
    np.testing.assert_array_equal(engine.submit({"x": X}).result(60)["y"], np.maximum(X, 0))


# --- arguments of the wrong type ------------------------------------------------------------------


@pytest.mark.parametrize("given", [5, "x", X, [("x", X)]])
def test_tools_take_feeds_as_run_does(engine: tw.Engine, given: Any) -> None:
    for use in (engine.run, engine.sizes, engine.checked, engine.stage_clock, engine.profile):
        with pytest.raises(ShapeMismatch, match="expected a mapping of input names"):
            use(given)
    with pytest.raises(UserError):
        list(engine.stream(given))


@pytest.mark.parametrize("given", [None, 5, "x", X])
def test_a_program_is_a_program(engine: tw.Engine, given: Any) -> None:
    with pytest.raises(BadOption, match="program is"):
        engine.with_program(given)
