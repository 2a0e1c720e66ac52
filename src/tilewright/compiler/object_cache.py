"""Object code on disk, by the hash of everything that it depends on.

Input -> Output: LLVM IR texts by key -> object code; what is missing is compiled, several modules
at a time.
Guarantees: an entry is written whole or not at all; when it is read, a hash shows that it is whole
and belongs to its key, else it is compiled again; two processes may share a folder, and a folder
that can only be read is read. What was used least recently goes when the folder is full.
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
from tilewright.compiler.processes import source_path, start_undisturbed
from tilewright.core.cache_folder import VARIABLE, make_room, most_bytes
from tilewright.core.errors import CacheError, InternalError, OutOfMemory
from tilewright.core.whole_file import drop_unfinished, whole_files

Progress = Callable[[str, int, int], None]
MOST_BYTES = 1 << 30
_MIN_MODULES_FOR_WORKERS = 12
_HASH_BYTES = 32
_KEPT = frozenset(
    "PATH HOME PYTHONHOME TMPDIR TEMP TMP SYSTEMROOT LANG LC_ALL "
    "LD_LIBRARY_PATH DYLD_LIBRARY_PATH".split()
)
_TEMP_REMEDY = "free some space, or set TMPDIR to another folder"


class ObjectCache:
    """A folder of object code; ``folder=None`` keeps nothing.

    Args:
        folder: made if need be. One that can only be read is used as far as it goes.
        jobs: processes that compile at once; by default one a processor.
        required: whether a folder that is of no use at all is an error, or only a note.

    Attributes:
        notes: what was not kept, and why.

    Raises:
        CacheError: the folder is required, does not exist and cannot be made.
    """

    def __init__(
        self, folder: Path | None, jobs: int | None = None, *, required: bool = True
    ) -> None:
        self.folder = folder
        self.jobs = jobs or len(os.sched_getaffinity(0))
        self.required = required
        self.notes: list[str] = []
        if folder is not None and not folder.is_dir():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self._complain(error.strerror or str(error), useful=False)
                self.folder = None

    def compile_all(
        self, texts: Mapping[str, str], target: CpuTarget, progress: Progress | None
    ) -> dict[str, bytes]:
        """Object code for every text."""
        found = {key: code for key in texts if (code := self._read(key)) is not None}
        missing = [key for key in texts if key not in found]
        if missing and self.folder is not None and not os.access(self.folder, os.W_OK | os.X_OK):
            self._complain("the folder cannot be written", useful=bool(found))
            self.folder = None

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
        self._write(made, useful=bool(found))
        found.update(made)
        return {key: found[key] for key in texts}

    # --- files -----------------------------------------------------------------------------------

    def _read(self, key: str) -> bytes | None:
        if self.folder is None:
            return None
        path = self.folder / f"{key}.o"
        try:
            data = path.read_bytes() if path.is_file() else b""
        except OSError:
            return None
        code = data[_HASH_BYTES:]
        if _digest(key, code) != data[:_HASH_BYTES]:
            return None
        with suppress(OSError):  # of a folder that can only be read
            os.utime(path)  # used just now
        return code

    def _write(self, made: Mapping[str, bytes], *, useful: bool) -> None:
        """Keeps what was compiled; ``useful`` says that the folder had something to give."""
        if self.folder is None or not made:
            return
        blocked = [key for key in made if (self.folder / f"{key}.o").is_dir()]
        if blocked:
            self.notes.append(f"not kept in the cache {self.folder}: {blocked[0]}.o is a folder")
        drop_unfinished(self.folder)
        limit = most_bytes(MOST_BYTES)
        try:
            with whole_files(self.folder) as scratch:
                for key in made.keys() - blocked:
                    (scratch / f"{key}.o").write_bytes(_digest(key, made[key]) + made[key])
            make_room(self.folder, "*.o", limit)
        except OSError as error:
            self.notes.append(f"the cache {self.folder} is not cleared: {error.strerror}")
        except CacheError as error:
            self._complain(error.message, useful=useful)

    def _complain(self, reason: str, *, useful: bool) -> None:
        if self.required and not useful:
            raise CacheError(
                f"cannot write the cache {self.folder}: {reason}",
                remedy=f"set {VARIABLE} to a writable folder with space (or pass cache=None)",
            )
        self.notes.append(f"kernels are not kept in the cache {self.folder}: {reason}")

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


def _digest(key: str, code: bytes) -> bytes:
    """Ties an entry to its name: a whole file under the name of another one is of no use."""
    return hashlib.sha256(key.encode() + b"\0" + code).digest()


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
        worker = start_undisturbed(
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
    return {**kept, "PYTHONPATH": source_path()}
