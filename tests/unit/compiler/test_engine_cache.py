"""Engines that are kept: when they are found, and when they must be built again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.compiler import build, engine_cache
from tilewright.compiler.engine_cache import EngineCache, key_of
from tilewright.compiler.options import CompileOptions, Wishes, make_options, make_wishes
from tilewright.core.errors import BadOption, ShapeMismatch
from unit.compiler.models import feeds_of, network, saved

NOTE = "taken whole from the cache"


def options(**given: Any) -> CompileOptions:
    asked = {"target": "cpu", "cpu": None, "precision": "fp32", "threads": 1}
    return make_options(**{**asked, "dims": None, "require": None, **given})


def wishes(**given: Any) -> Wishes:
    asked: dict[str, Any] = {"verify": True, "verify_passes": False, "verify_feeds": None}
    dumps = {"dump_graph": None, "dump_kernels": None}
    return make_wishes(**{**asked, **dumps, "cache": None, "progress": None, **given})


@pytest.fixture(autouse=True)
def _cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for users; other tests keep no engines."""
    monkeypatch.setattr(build, "key_of", engine_cache.key_of)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(network(), tmp_path)


def is_taken(engine: tw.Engine) -> bool:
    return any(NOTE in note for note in engine.summary["notes"])


def test_the_second_build_is_taken_from_the_cache_and_equal(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    built, taken = (tw.compile(model, threads=1, cache=folder) for _ in range(2))
    assert (is_taken(built), is_taken(taken)) == (False, True)
    for engine, name in ((built, "a.tw"), (taken, "b.tw")):
        engine.save(tmp_path / name)
    assert (tmp_path / "a.tw").read_bytes() == (tmp_path / "b.tw").read_bytes()
    for name, array in built.run(feeds_of()).items():
        np.testing.assert_array_equal(array, taken.run(feeds_of())[name])


def test_nothing_is_kept_without_a_cache(model: Path) -> None:
    assert not any(is_taken(tw.compile(model, threads=1, cache=None)) for _ in range(2))


@pytest.mark.parametrize(
    "other",
    [
        {"threads": 2},
        {"cpu": "haswell"},
        {"dims": {"batch": (1, 4)}},
        {"require": ["compiled"]},
        {"disable": ["winograd"]},
    ],
)
def test_another_option_is_another_key(model: Path, other: dict[str, Any]) -> None:
    key = key_of(model, options(), wishes())
    assert key is not None
    assert key_of(model, options(**other), wishes()) not in (key, None)


def test_whatever_the_build_depends_on_is_in_the_key(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "times.sqlite"
    store.write_bytes(b"one")
    keys = [
        key_of(model, options(), wishes()),
        key_of(model, options(), wishes(verify=False)),
        key_of(model, options(), wishes(verify_feeds=feeds_of())),
        key_of(model, options(), wishes(verify_feeds=feeds_of(seed=2))),
        key_of(model, options(), wishes(timing_store=store)),
        key_of(model.rename(model.with_name("renamed.onnx")), options(), wishes()),
    ]
    store.write_bytes(b"two")
    renamed = model.with_name("renamed.onnx")
    keys.append(key_of(renamed, options(), wishes(timing_store=store)))
    renamed.write_bytes(renamed.read_bytes() + b"\0")
    keys.append(key_of(renamed, options(), wishes()))
    monkeypatch.setattr(engine_cache, "_surroundings", lambda: "another version")
    keys.append(key_of(renamed, options(), wishes()))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_what_needs_a_build_has_no_key(model: Path, tmp_path: Path) -> None:
    more: list[dict[str, Any]] = [
        {"verify_passes": True},
        {"dump_graph": tmp_path / "g.onnx"},
        {"dump_kernels": tmp_path / "k"},
        {"tune": True},
    ]
    assert [key_of(model, options(), wishes(**one)) for one in more] == [None] * len(more)
    missing = wishes(timing_store=tmp_path / "none.sqlite")
    assert key_of(model, options(), missing) is None
    assert key_of(model, options(target="sm_90"), wishes()) is None
    assert key_of(network(), options(), wishes()) is None
    assert key_of(tmp_path / "none.onnx", options(), wishes()) is None


def test_a_model_with_files_beside_it_has_no_key(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(network(), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    assert key_of(path, options(), wishes()) is None


@pytest.mark.parametrize("extra", [{"example_inputs": (1,)}, {"dynamic_shapes": {}}])
def test_what_a_build_refuses_is_refused_with_a_full_cache(
    model: Path, tmp_path: Path, extra: dict[str, Any]
) -> None:
    tw.compile(model, threads=1, cache=tmp_path / "cache")
    with pytest.raises(BadOption):
        tw.compile(model, threads=1, cache=tmp_path / "cache", **extra)


def test_an_engine_that_could_not_be_verified_is_not_kept(model: Path, tmp_path: Path) -> None:
    foreign = "neoverse-v1" if platform.machine() == "x86_64" else "haswell"
    for verify in (True, True, False, False):
        engine = tw.compile(model, threads=1, cache=tmp_path, verify=verify, cpu=foreign)
    assert is_taken(engine)
    assert len(list((tmp_path / "engines").iterdir())) == 1


@pytest.mark.parametrize("keep", [0.0, 0.4, 0.99])
def test_a_damaged_entry_is_built_again(model: Path, tmp_path: Path, keep: float) -> None:
    folder = tmp_path / "cache"
    tw.compile(model, threads=1, cache=folder)
    (entry,) = (folder / "engines").iterdir()
    data = entry.read_bytes()
    entry.write_bytes(data[: int(keep * len(data))])
    assert not is_taken(tw.compile(model, threads=1, cache=folder))
    assert entry.read_bytes() == data


def test_an_entry_under_the_name_of_another_is_none(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    engine = tw.compile(model, threads=1, cache=folder)
    (entry,) = (folder / "engines").iterdir()
    data = entry.read_bytes()
    cache = EngineCache(folder / "engines")
    cache.keep("other", engine._parts)
    entry.write_bytes((folder / "engines" / "other.tw").read_bytes())
    assert not is_taken(tw.compile(model, threads=1, cache=folder))
    assert entry.read_bytes() == data
    engine.save(entry)  # a whole engine that no cache wrote
    assert not is_taken(tw.compile(model, threads=1, cache=folder))


def test_what_was_used_least_recently_goes_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EngineCache(tmp_path / "engines")
    parts = tw.compile(model, threads=1, cache=None)._parts
    for number, key in enumerate(("a", "b", "c")):
        cache.keep(key, parts)
        os.utime(tmp_path / "engines" / f"{key}.tw", (number, number))
    assert cache.find("a") is not None  # and so was used last
    size = (tmp_path / "engines" / "a.tw").stat().st_size
    monkeypatch.setattr(engine_cache, "MOST_BYTES", 3 * size)
    cache.keep("d", parts)
    assert sorted(path.stem for path in (tmp_path / "engines").iterdir()) == ["a", "c", "d"]
    monkeypatch.setattr(engine_cache, "MOST_ENGINE_BYTES", 10)
    cache.keep("e", parts)
    assert cache.find("e") is None


def test_a_folder_that_cannot_be_written_only_costs_time(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "engines").write_bytes(b"in the way")
    for _ in range(2):
        engine = tw.compile(model, threads=1, cache=tmp_path / "cache")
        (note,) = engine.summary["notes"]
        assert note.startswith("the engine is not kept in the cache: ")


@pytest.mark.parametrize("verify_feeds", [{"x": [1, [2]]}, {"x": {1, 2}}, {"x": None}, {"x": ...}])
def test_feeds_that_are_none_are_refused_as_without_a_cache(
    model: Path, tmp_path: Path, verify_feeds: dict[str, Any]
) -> None:
    for source in (model.read_bytes(), model):
        with pytest.raises(ShapeMismatch, match="x: expected float32"):
            tw.compile(source, threads=1, cache=tmp_path, verify_feeds=verify_feeds)


def test_sequences_that_differ_in_a_part_have_other_keys(model: Path) -> None:
    long = np.zeros(5000, np.float32)
    changed = long.copy()
    changed[2500] = 1
    lists: list[Any] = [[long], [changed], [long, long], [long, long[:3]], [long[:3]], "ab", ["ab"]]
    objects = [np.empty(1, object) for _ in range(4)]
    for array, part in zip(objects, ("a", "b", long, changed), strict=True):
        array[0] = part
    keys = [key_of(model, options(), wishes(verify_feeds={"x": x})) for x in (*lists, *objects)]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    endless: list[Any] = []
    endless.append(endless)
    for foreign in (endless, object(), np.ma.masked_array(long)):
        assert key_of(model, options(), wishes(verify_feeds={"x": foreign})) is None


def test_a_model_that_changes_while_it_is_compiled_is_not_kept(model: Path, tmp_path: Path) -> None:
    """The key is of the bytes that were there first, the engine may be of the others."""
    other = network()
    other.graph.node[5].op_type = "Sigmoid"
    first, second = model.read_bytes(), other.SerializeToString()

    def exchange(*_: Any) -> None:
        model.write_bytes(second)

    for _ in range(2):
        model.write_bytes(first)
        engine = tw.compile(model, threads=1, cache=tmp_path, progress=exchange)
        assert not is_taken(engine)
    model.write_bytes(first)
    rebuilt = tw.compile(model, threads=1, cache=tmp_path)
    assert not is_taken(rebuilt)


def test_what_a_killed_process_left_goes(model: Path, tmp_path: Path) -> None:
    left = [tmp_path / "engines" / f".tilewright-{name}" for name in ("old", "new")]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "part.tw").write_bytes(bytes(100))
    os.utime(left[0], (1, 1))
    tw.compile(model, threads=1, cache=tmp_path)
    assert [folder.exists() for folder in left] == [False, True]


def test_names_of_files_need_not_be_text(model: Path, tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> bytes:
            return os.fsencode(strange)

    strange = model.rename(os.fsdecode(os.fsencode(model.parent) + b"/\xff.onnx"))
    for source in (strange, Named()):
        assert tw.compile(source, threads=1, cache=tmp_path).run(feeds_of())


def test_a_file_beyond_protobuf_is_not_read_for_its_key(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**40)
    assert key_of(path, options(), wishes()) is None


def test_no_compiler_is_loaded_for_an_engine_that_is_kept(model: Path, tmp_path: Path) -> None:
    code = f"""
import sys, tilewright
engine = tilewright.compile({str(model)!r}, threads=1, cache={str(tmp_path / "cache")!r})
print(any({NOTE!r} in note for note in engine.summary["notes"]))
heavy = ("onnx", "onnx_ir", "sympy", "tilewright.compiler.pipeline")
print(*[name for name in heavy if name in sys.modules])
"""
    lines = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        lines.append(done.stdout.splitlines())
    assert lines[0][0] == "False"
    assert "onnx_ir" in lines[0][1]
    assert lines[1] == ["True", ""]
