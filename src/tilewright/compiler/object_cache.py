"""Object code on disk, by the hash of everything that it depends on.

Input -> Output: LLVM IR texts by key -> object code; what is missing is compiled, several modules
at a time.
Guarantees: an entry is written whole or not at all, and checked by its own hash when it is read;
a damaged entry is compiled again; two processes may share a folder.
Why processes: LLVM's Python binding holds one lock for all compilations of a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.compiler.compile_worker import CANNOT_WRITE
from tilewright.core.errors import CacheError, InternalError, OutOfMemory

Progress = Callable[[str, int, int], None]
_MIN_MODULES_FOR_WORKERS = 12
_HASH_BYTES = 32
_KEPT = frozenset(
    "PATH HOME PYTHONHOME TMPDIR TEMP TMP SYSTEMROOT LANG LC_ALL "
    "LD_LIBRARY_PATH DYLD_LIBRARY_PATH".split()
)
_TEMP_REMEDY = "free some space, or set TMPDIR to another folder"


def default_folder() -> Path:
    """``$TILEWRIGHT_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("TILEWRIGHT_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tilewright"


class ObjectCache:
    """A folder of object code; ``folder=None`` keeps nothing.

    Raises:
        CacheError: the folder cannot be written.
    """

    def __init__(self, folder: Path | None, jobs: int | None = None) -> None:
        self.folder = folder
        self.jobs = jobs or len(os.sched_getaffinity(0))
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                probe, name = tempfile.mkstemp(dir=folder, prefix=".probe")
                os.close(probe)
                os.unlink(name)
            except OSError as error:
                raise CacheError(
                    f"cannot write the cache {folder}: {error.strerror}",
                    remedy="set TILEWRIGHT_CACHE to a writable folder (or pass cache=None)",
                ) from error

    def compile_all(
        self, texts: Mapping[str, str], target: CpuTarget, progress: Progress | None
    ) -> dict[str, bytes]:
        """Object code for every text."""
        found = {key: code for key in texts if (code := self._read(key)) is not None}
        missing = [key for key in texts if key not in found]

        def report(done: int) -> None:
            if progress is not None:
                progress("compile kernels", len(found) + done, len(texts))

        report(0)
        if len(missing) >= _MIN_MODULES_FOR_WORKERS and self.jobs > 1 and sys.executable:
            made = self._in_workers({key: texts[key] for key in missing}, target, report)
        else:
            made = {}
            for key in missing:
                made[key] = compile_module(texts[key], target)
                report(len(made))
        for key, code in made.items():
            self._write(key, code)
        found.update(made)
        return {key: found[key] for key in texts}

    # --- files -----------------------------------------------------------------------------------

    def _path(self, key: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{key}.o"

    def _read(self, key: str) -> bytes | None:
        path = self._path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        code = data[_HASH_BYTES:]
        return code if hashlib.sha256(code).digest() == data[:_HASH_BYTES] else None

    def _write(self, key: str, code: bytes) -> None:
        path = self._path(key)
        if path is None:
            return
        scratch: Path | None = None
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".object")
            scratch = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            scratch.replace(path)
        except OSError as error:
            raise CacheError(
                f"cannot write the cache {path.parent}: {error.strerror}",
                remedy="free some space, or set TILEWRIGHT_CACHE to another folder",
            ) from error
        finally:
            if scratch is not None:
                scratch.unlink(missing_ok=True)

    # --- workers ---------------------------------------------------------------------------------

    def _in_workers(
        self, texts: Mapping[str, str], target: CpuTarget, report: Callable[[int], None]
    ) -> dict[str, bytes]:
        try:
            with tempfile.TemporaryDirectory(
                prefix="tilewright-", ignore_cleanup_errors=True
            ) as scratch:
                folder = Path(scratch)
                for key, text in texts.items():
                    (folder / f"{key}.ll").write_text(text)
                # The longest modules first, dealt out in turn, so that workers end together.
                order = sorted(texts, key=lambda key: (-len(texts[key]), key))
                jobs = min(self.jobs, len(order))
                _run_workers(
                    folder, [order[number::jobs] for number in range(jobs)], target, report
                )
                report(len(texts))
                return {key: (folder / f"{key}.o").read_bytes() for key in texts}
        except OSError as error:
            raise CacheError(
                f"cannot write to {tempfile.gettempdir()}: {error.strerror}", remedy=_TEMP_REMEDY
            ) from error


def _run_workers(
    folder: Path, shares: list[list[str]], target: CpuTarget, report: Callable[[int], None]
) -> None:
    """Compiles each share in a process of its own; all of them have ended on return.

    Those are plain Python programs: a caller's script needs no guard against being run again.
    """
    workers: list[subprocess.Popen[bytes]] = []
    logs = [folder / f"worker{number}.log" for number in range(len(shares))]
    try:
        for keys, log in zip(shares, logs, strict=True):
            workers.append(_start(folder, keys, target, log))  # what started must end
        while any(worker.poll() is None for worker in workers):
            report(sum(1 for _ in folder.glob("*.o")))
            time.sleep(0.05)
        for worker, log in zip(workers, logs, strict=True):
            _check(worker, log)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
            worker.wait()
            if worker.stdin is not None:
                with suppress(BrokenPipeError):
                    worker.stdin.close()


def _check(worker: subprocess.Popen[bytes], log: Path) -> None:
    if not worker.returncode:
        return
    detail = log.read_text("utf-8", "replace").strip()
    if worker.returncode == CANNOT_WRITE:
        raise CacheError(detail, remedy=_TEMP_REMEDY)
    if worker.returncode == -signal.SIGKILL:
        raise OutOfMemory(
            "the system killed a compile worker, most likely for want of memory",
            remedy="free some memory, or let this process use fewer processors",
        )
    raise InternalError(f"a compile worker failed ({worker.returncode}): {detail[-2000:]}")


def _start(folder: Path, keys: list[str], target: CpuTarget, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:  # a pipe that nobody reads would stop a worker that warns a lot
        worker = subprocess.Popen(
            # -P: a file of the user's in the current folder must not shadow a module.
            [sys.executable, "-P", "-m", "tilewright.compiler.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=_environment(),
        )
    if worker.stdin is not None:
        with suppress(BrokenPipeError):  # it has failed already, and its exit code will tell
            worker.stdin.write(json.dumps([str(folder), keys, asdict(target)]).encode() + b"\n")
            worker.stdin.flush()  # and stays open: a worker ends when its parent is gone
    return worker


def _environment() -> dict[str, str]:
    """What Python needs to start, and to find this package and its libraries."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT}
    source = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return {**kept, "PYTHONPATH": os.pathsep.join([source, *([given] if given else [])])}
