"""The timing store: what is kept, and files that are none, damaged, locked or not ours to write."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilewright.core.errors import CacheError
from tilewright.tune import store as store_module
from tilewright.tune.store import (
    Scope,
    Stage,
    Timing,
    TimingStore,
    parse_sizes,
    sizes_text,
)

SCOPE = Scope(target="znver4", compiler="tilewright 0, LLVM 22", threads=1)
STAGE = Stage("abc", 0)


def timing(schedule: str = "s", us: float = 1.0, sizes: str = "") -> Timing:
    return Timing(sizes=sizes, schedule=schedule, us=us, formula_us=2.0, samples=3)


def filled(path: Path) -> TimingStore:
    store = TimingStore(path, write=True)
    store.write(SCOPE, {STAGE: [timing()]}, {"abc": "kernel text"})
    return store


def test_timings_come_back_for_their_scope_only(tmp_path: Path) -> None:
    filled(tmp_path / "t.sqlite")
    store = TimingStore(tmp_path / "t.sqlite", write=False)
    assert store.read(SCOPE).timings == {STAGE: [timing()]}
    for other in ("target", "compiler", "threads"):
        fields = {"target": SCOPE.target, "compiler": SCOPE.compiler, "threads": SCOPE.threads}
        fields[other] = 2 if other == "threads" else "other"
        assert store.read(Scope(**fields)).timings == {}  # type: ignore[arg-type]


def test_a_later_timing_replaces_one_of_the_same_schedule_and_sizes(tmp_path: Path) -> None:
    store = filled(tmp_path / "t.sqlite")
    more = [timing(us=0.5), timing("t"), timing(sizes="s0=2")]
    store.write(SCOPE, {STAGE: more}, {"abc": "kernel text"})
    assert store.read(SCOPE).timings == {STAGE: [timing(us=0.5), timing("t"), timing(sizes="s0=2")]}


def test_the_file_can_be_read_with_any_sqlite(tmp_path: Path) -> None:
    filled(tmp_path / "t.sqlite")
    with sqlite3.connect(tmp_path / "t.sqlite") as db:
        found = db.execute(
            "SELECT text, schedule, us FROM timings JOIN kernels ON kernel = hash"
        ).fetchall()
    assert found == [("kernel text", "s", 1.0)]


def test_several_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"

    def write(number: int) -> None:
        store = TimingStore(path, write=True)
        for k in range(5):
            found = {Stage(f"k{number}", k): [timing()]}
            store.write(SCOPE, found, {f"k{number}": "text"})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(TimingStore(path, write=False).read(SCOPE).timings) == 40


# --- files that are no good -----------------------------------------------------------------------


def refused(path: Path, message: str, *, write: bool = True) -> None:
    with pytest.raises(CacheError, match=message) as error:
        store = TimingStore(path, write=write)
        store.write(SCOPE, {STAGE: [timing()]}, {"abc": ""})
    assert error.value.file == str(path)
    assert error.value.remedy


def test_a_store_that_is_only_read_must_exist(tmp_path: Path) -> None:
    refused(tmp_path / "none.sqlite", "no such timing store", write=False)
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize("write", [True, False])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, write: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are notes, not timings\n" * 100)
    refused(path, "damaged or none at all", write=write)
    assert path.read_bytes().startswith(b"these are notes")


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE people (name TEXT)")
    before = path.read_bytes()
    refused(path, "it is a database, but no timing store")
    assert path.read_bytes() == before


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    refused(path, "has format 99")


def test_a_store_without_its_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE timings")
    refused(path, "damaged")


def test_a_truncated_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    filled(path)
    path.write_bytes(path.read_bytes()[:5000])
    refused(path, "damaged")


def test_a_store_that_another_program_has_locked_is_refused_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.sqlite"
    filled(path)
    monkeypatch.setattr(store_module, "_WAIT_S", 0.1)
    other = sqlite3.connect(path)
    try:
        other.execute("BEGIN EXCLUSIVE")
        refused(path, "another program has locked")
        refused(path, "another program has locked", write=False)
    finally:
        other.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everything")
def test_a_store_that_cannot_be_written_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    filled(path)
    path.chmod(0o444)
    assert TimingStore(path, write=False).read(SCOPE).timings
    refused(path, "cannot be written")


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none" / "t.sqlite", "cannot be written")


@pytest.mark.parametrize("us", ["fast", -1.0, 0.0, float("inf"), 7])
def test_rows_that_hold_no_time_are_counted_and_left_out(tmp_path: Path, us: object) -> None:
    path = tmp_path / "t.sqlite"
    store = filled(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE timings SET us = ?", (us,))
    found = store.read(SCOPE)
    if us == 7:  # SQLite keeps whole numbers of a REAL column as floats
        assert found.timings[STAGE][0].us == 7.0
    else:
        assert (found.timings, found.ignored) == ({}, 1)


def test_sizes_are_text_and_back() -> None:
    assert sizes_text({"s1": 128, "s0": 1}) == "s0=1 s1=128"
    assert parse_sizes("s0=1 s1=128") == {"s0": 1, "s1": 128}
    assert parse_sizes("") == {}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("sizes", "s0=" + "9" * 5000),  # more digits than Python reads
        ("sizes", "s0=" + "9" * 13),
        ("sizes", "s0=-4"),
        ("sizes", "s0=\u0663"),  # a digit, but not ours
        ("sizes", "s0=\u00b2"),
        ("sizes", "s0=many s1"),
        ("sizes", "s0=1 "),
        ("sizes", b"s0=1"),
        ("schedule", b"\xff\x00"),
        ("kernel", b"\xff\x00"),
        ("stage", "first"),
        ("stage", 0.5),
        ("stage", -1),
        ("samples", 0),
        ("samples", "many"),
        ("us", 5e-324),
        ("formula_us", 1e308),
    ],
)
def test_rows_of_other_types_and_sizes_are_counted_and_left_out(
    tmp_path: Path, column: str, value: object
) -> None:
    store = filled(tmp_path / "t.sqlite")
    with sqlite3.connect(tmp_path / "t.sqlite") as db:
        db.execute(f"UPDATE timings SET {column} = ?", (value,))
    found = store.read(SCOPE)
    assert (found.timings, found.ignored) == ({}, 1)


def test_a_store_that_refuses_rows_says_so(tmp_path: Path) -> None:
    filled(tmp_path / "t.sqlite")
    with sqlite3.connect(tmp_path / "t.sqlite") as db:
        db.execute("CREATE TRIGGER t BEFORE INSERT ON timings BEGIN SELECT RAISE(ABORT, 'no'); END")
    refused(tmp_path / "t.sqlite", "refuses new rows: no")
