"""Object code is kept, checked, shared by processes and compiled by workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.codegen.cpu.emit import Module
from tilewright.codegen.cpu.objects import module_key
from tilewright.codegen.cpu.target import host_target
from tilewright.compiler import object_cache
from tilewright.compiler.object_cache import ObjectCache
from tilewright.core.cache_folder import cache_folder
from tilewright.core.errors import CacheError, InternalError, OutOfMemory

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
    assert cache_folder() == tmp_path / "cache"
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


# --- what workers do not depend on ----------------------------------------------------------------


def test_workers_ignore_the_current_folder_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's json.py must not be imported, nor half a megabyte of variables be copied."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 60_000)
    started = _remember_workers(monkeypatch)
    assert len(ObjectCache(None, jobs=2).compile_all(_texts(14), TARGET, None)) == 14
    assert len(started) == 2
    assert not any(name.startswith("LARGE") for name in object_cache._environment())


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """Workers are plain programs; multiprocessing would start the script in each of them."""
    script = tmp_path / "script.py"
    script.write_text(
        "from unit.compiler.test_object_cache import TARGET, _texts\n"
        "from tilewright.compiler.object_cache import ObjectCache\n"
        "print(len(ObjectCache(None, jobs=2).compile_all(_texts(14), TARGET, None)))\n"
    )
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "14\n"


def test_a_worker_that_writes_much_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    """A pipe holds 64 KiB; the log of a worker holds everything."""
    log = tmp_path / "log"
    worker = object_cache._start(tmp_path, [f"{'long' * 500}{k}" for k in range(3)], TARGET, log)
    assert worker.wait(timeout=60)
    assert worker.stdin is not None
    worker.stdin.close()
    with pytest.raises((CacheError, InternalError)):
        object_cache._check(worker, log)


@pytest.mark.parametrize(
    ("code", "error"), [(-9, OutOfMemory), (-11, InternalError), (1, InternalError)]
)
def test_the_end_of_a_worker_is_explained(
    tmp_path: Path, code: int, error: type[Exception]
) -> None:
    log = tmp_path / "log"
    log.write_text("the last words")
    worker = subprocess.Popen([sys.executable, "-c", ""])
    worker.wait()
    object_cache._check(worker, log)
    worker.returncode = code
    with pytest.raises(error):
        object_cache._check(worker, log)


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Two at once compile the same modules into one folder; each gets all of them."""
    script = (
        "from pathlib import Path\n"
        "from unit.compiler.test_object_cache import TARGET, _texts\n"
        "from tilewright.compiler.object_cache import ObjectCache\n"
        f"cache = ObjectCache(Path({str(tmp_path)!r}), jobs=1)\n"
        "made = cache.compile_all(_texts(20), TARGET, None)\n"
        "print(sum(map(len, made.values())))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    both = [
        subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    sizes = {one.communicate(timeout=120)[0] for one in both}
    assert [one.returncode for one in both] == [0, 0]
    assert len(sizes) == 1
    assert len(list(tmp_path.glob("*.o"))) == 20
    assert len(list(tmp_path.iterdir())) == 20


def test_what_was_used_least_recently_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = _texts(4)
    first, second, third, fourth = texts
    cache = ObjectCache(tmp_path)
    cache.compile_all({key: texts[key] for key in (first, second, third)}, TARGET, None)
    for number, key in enumerate((first, second, third)):
        os.utime(tmp_path / f"{key}.o", (number, number))
    cache.compile_all({first: texts[first]}, TARGET, None)  # and so was used last
    most = sum((tmp_path / f"{key}.o").stat().st_size for key in (first, second, third))
    monkeypatch.setenv("TILEWRIGHT_CACHE_GIB", str((most + 100) / 2**30))
    cache.compile_all({fourth: texts[fourth]}, TARGET, None)
    assert {path.stem for path in tmp_path.glob("*.o")} == {first, third, fourth}
    assert cache.notes == []


@pytest.mark.parametrize("size", ["much", "-1", "0", "nan"])
def test_a_limit_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_GIB", size)
    with pytest.raises(CacheError, match="is no size of a cache"):
        ObjectCache(tmp_path).compile_all(_texts(1), TARGET, None)
