"""Object code is kept, checked, shared by processes and compiled by workers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.codegen.cpu.emit import Module
from tilewright.codegen.cpu.objects import module_key
from tilewright.codegen.cpu.target import host_target
from tilewright.compiler import object_cache
from tilewright.compiler.object_cache import ObjectCache, default_folder
from tilewright.core.errors import CacheError, InternalError

TARGET = host_target()


def _texts(count: int) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number in range(count):
        module = Module(TARGET)
        builder = module.function(f"f{number}", [])
        builder.ret()
        text = module.text()
        texts[module_key(text, TARGET)[:32]] = text
    return texts


def _refuse(*_args: Any) -> bytes:
    raise AssertionError("nothing is to be compiled")


def test_what_is_kept_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = _texts(3)
    made = ObjectCache(tmp_path / "new" / "folder").compile_all(texts, TARGET, None)
    assert list(made) == list(texts)
    monkeypatch.setattr(object_cache, "compile_module", _refuse)
    again = ObjectCache(tmp_path / "new" / "folder").compile_all(texts, TARGET, None)
    assert again == made


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:0], lambda d: d + b"x"])
def test_a_damaged_entry_is_compiled_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    texts = _texts(1)
    cache = ObjectCache(tmp_path)
    made = cache.compile_all(texts, TARGET, None)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert cache.compile_all(texts, TARGET, None) == made
    assert file.read_bytes() == whole


def test_no_folder_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    assert default_folder() == tmp_path / "cache"
    assert ObjectCache(None).compile_all(_texts(1), TARGET, None)
    assert list(tmp_path.iterdir()) == []


def test_workers_give_what_this_process_gives(tmp_path: Path) -> None:
    texts = _texts(14)
    told: list[tuple[str, int, int]] = []
    many = ObjectCache(tmp_path, jobs=2).compile_all(
        texts, TARGET, lambda stage, done, total: told.append((stage, done, total))
    )
    assert many == ObjectCache(None, jobs=1).compile_all(texts, TARGET, None)
    assert told[0] == ("compile kernels", 0, 14)
    assert told[-1] == ("compile kernels", 14, 14)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_all_workers_end_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    started = _remember_workers(monkeypatch)
    texts = {**_texts(13), "0" * 32: "this is no module"}
    with pytest.raises(InternalError, match="a compile worker failed"):
        ObjectCache(None, jobs=2).compile_all(texts, TARGET, None)
    assert [worker.poll() is None for worker in started] == [False, False]


def test_all_workers_end_on_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    started = _remember_workers(monkeypatch)

    def interrupt(_stage: str, _done: int, _total: int) -> None:
        if started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ObjectCache(None, jobs=2).compile_all(_texts(14), TARGET, interrupt)
    assert [worker.poll() is None for worker in started] == [False, False]


def _remember_workers(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    started: list[subprocess.Popen[bytes]] = []
    start = object_cache._start

    def remembering(*args: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args))
        return started[-1]

    monkeypatch.setattr(object_cache, "_start", remembering)
    return started


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CacheError, match="cannot write the cache") as caught:
        ObjectCache(tmp_path / "file" / "objects")
    assert "TILEWRIGHT_CACHE" in str(caught.value)


def test_a_full_disk_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path)

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CacheError, match="No space left on device"):
        cache.compile_all(_texts(1), TARGET, None)
    assert list(tmp_path.iterdir()) == []


def test_a_full_temporary_folder_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: Path, _text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CacheError, match="No space left on device") as caught:
        ObjectCache(None, jobs=2).compile_all(_texts(14), TARGET, None)
    assert "TMPDIR" in str(caught.value)
