"""The timing store: what schedules took, in a SQLite file that can be read, shipped and shared.

    kernels  hash, text                      the canonical kernel, readable
    timings  kernel, stage, target, compiler, threads, sizes, schedule -> us, formula_us, samples
Input -> Output: a path -> ``TimingStore``; a ``Scope`` -> the timings that hold for it.
Guarantees: a timing is written whole or not at all; several programs may write at once, the last
timing of a schedule stays; rows that make no sense are counted and left out; what is read is one
snapshot.  ``us`` and ``formula_us`` come from the same turns of the same measurement.
Not here: what is made of timings (tune.choice).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tilewright.core.errors import CacheError

_APPLICATION = 0x54574B54  # "TWKT"
_FORMAT = 1
_WAIT_S = 10.0  # for another program that writes
_LEAST_US, _MOST_US = 1e-6, 1e12  # less than any instruction, longer than anyone waits
_SIZES = re.compile(r"(?:[^\s=]+=[0-9]{1,12}(?: (?=\S)|\Z))*")  # larger ones fit no memory
_SCHEMA = """
CREATE TABLE IF NOT EXISTS kernels (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS timings (
    kernel TEXT NOT NULL, stage INTEGER NOT NULL,
    target TEXT NOT NULL, compiler TEXT NOT NULL, threads INTEGER NOT NULL,
    sizes TEXT NOT NULL, schedule TEXT NOT NULL,
    us REAL NOT NULL, formula_us REAL NOT NULL, samples INTEGER NOT NULL,
    PRIMARY KEY (kernel, stage, target, compiler, threads, sizes, schedule)
) WITHOUT ROWID;
"""
_READ = (
    "SELECT kernel, stage, sizes, schedule, us, formula_us, samples FROM timings "
    "WHERE target = ? AND compiler = ? AND threads = ? "
    "ORDER BY kernel, stage, sizes, schedule"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where timings hold: a processor, a compiler, a number of threads."""

    target: str
    compiler: str
    threads: int


@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """A stage of a kernel: the hash of the canonical text, and the stage's number."""

    kernel: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a stage took with a schedule, and with the formula's in the same turns.

    Attributes:
        sizes: of the kernel's symbols, ``s0=1 s1=128``; empty where there are none.
        schedule: its text.
        us, formula_us: least microseconds of a run.
        samples: runs of each.
    """

    sizes: str
    schedule: str
    us: float
    formula_us: float
    samples: int

    @property
    def ratio(self) -> float:
        """The part of the formula's time."""
        return self.us / self.formula_us


@dataclass(slots=True)
class Snapshot:
    """Timings by stage; ``ignored`` counts rows that made no sense."""

    timings: dict[Stage, list[Timing]] = field(default_factory=dict)
    ignored: int = 0


class TimingStore:
    """A store in a file.

    Args:
        path: the file.
        write: make the file if it is missing, and check that it can be written; False only reads.

    Raises:
        CacheError: it is missing (to read), no timing store, of another version, locked for long,
            or cannot be written.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = path
        if not write and not path.is_file():
            raise CacheError(
                "no such timing store",
                file=str(path),
                remedy="tune first: --time-budget SECONDS, or tune=True",
            )
        with self._connection(write=write) as db:
            self._check(db, write=write)

    def read(self, scope: Scope) -> Snapshot:
        """All timings of a scope."""
        with self._connection(write=False) as db:
            rows = db.execute(_READ, (scope.target, scope.compiler, scope.threads)).fetchall()
        found = Snapshot()
        for kernel, number, sizes, schedule, us, formula_us, samples in rows:
            texts = all(isinstance(part, str) for part in (kernel, sizes, schedule))
            counts = _is_count(number, least=0) and _is_count(samples, least=1)
            times = _is_time(us) and _is_time(formula_us)
            if not (texts and counts and times and _SIZES.fullmatch(sizes)):
                found.ignored += 1
                continue
            timing = Timing(
                sizes=sizes, schedule=schedule, us=us, formula_us=formula_us, samples=samples
            )
            found.timings.setdefault(Stage(kernel, number), []).append(timing)
        return found

    def write(
        self,
        scope: Scope,
        timings: Mapping[Stage, list[Timing]],
        texts: Mapping[str, str],
    ) -> None:
        """Adds timings; one of the same schedule and sizes is replaced.

        Args:
            texts: canonical text by kernel hash.
        """
        place = (scope.target, scope.compiler, scope.threads)
        rows = [
            (
                *(stage.kernel, stage.number),
                *place,
                *(t.sizes, t.schedule, t.us, t.formula_us, t.samples),
            )
            for stage, found in timings.items()
            for t in found
        ]
        kernels = sorted({stage.kernel for stage in timings})
        with self._connection(write=True) as db, db:
            db.executemany(
                "INSERT OR IGNORE INTO kernels VALUES (?, ?)",
                [(kernel, texts[kernel]) for kernel in kernels],
            )
            marks = ", ".join("?" * 10)
            db.executemany(f"INSERT OR REPLACE INTO timings VALUES ({marks})", rows)

    # --- the file --------------------------------------------------------------------------------

    @contextmanager
    def _connection(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        mode = "rwc" if write else "ro"
        address = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        try:
            db = sqlite3.connect(address, uri=True, timeout=_WAIT_S)
            try:
                yield db
            finally:
                db.close()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _check(self, db: sqlite3.Connection, *, write: bool) -> None:
        if write:
            with db:
                db.execute("BEGIN IMMEDIATE")  # one program makes the tables, others wait
                if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    db.execute(f"PRAGMA application_id = {_APPLICATION}")
                    db.execute(f"PRAGMA user_version = {_FORMAT}")
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        db.execute(statement)
        if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise CacheError(
                "it is a database, but no timing store",
                file=str(self.path),
                remedy="name another file",
            )
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != _FORMAT:
            raise CacheError(
                f"the timing store has format {version}, this program reads {_FORMAT}",
                file=str(self.path),
                remedy="name another file and tune again",
            )
        db.execute("SELECT count(*) FROM timings JOIN kernels ON kernel = hash").fetchone()

    def _explained(self, error: sqlite3.Error) -> CacheError:
        text = str(error)
        if "locked" in text:
            message, remedy = "another program has locked the timing store", "wait for it to end"
        elif "readonly" in text or "unable to open" in text:
            message, remedy = f"the timing store cannot be written: {text}", "name another file"
        elif isinstance(error, sqlite3.IntegrityError):
            message, remedy = f"the timing store refuses new rows: {text}", "name another file"
        else:
            message = f"the timing store is damaged or none at all: {text}"
            remedy = "delete it, or name another file"
        return CacheError(message, file=str(self.path), remedy=remedy)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes as a store keeps them: ``s0=1 s1=128``."""
    return " ".join(f"{name}={size}" for name, size in sorted(sizes.items()))


def parse_sizes(text: str) -> dict[str, int]:
    """The inverse, for the sizes of a ``Timing`` that was read."""
    pairs = (word.partition("=") for word in text.split())
    return {name: int(size) for name, _, size in pairs}


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _is_time(value: object) -> bool:
    return isinstance(value, float) and _LEAST_US <= value <= _MOST_US
