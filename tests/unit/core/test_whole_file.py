"""Files are written whole or not at all."""

import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tilewright.core.errors import BadOption, CacheError
from tilewright.core.whole_file import check_folder, check_output, whole_file, whole_files


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "out.tw"
    with whole_file(target) as unfinished:
        unfinished.write_text("all")
        assert not target.exists()
        assert unfinished.suffix == ".tw"
    assert target.read_text() == "all"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out.tw"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_file(target) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_explained(tmp_path: Path) -> None:
    with (
        pytest.raises(CacheError, match="no such folder"),
        whole_file(tmp_path / "none" / "out.tw"),
    ):
        pytest.fail("the block must not run")


def test_a_failing_write_is_explained(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    (target / "full").mkdir(parents=True)
    with pytest.raises(CacheError, match="folder"), whole_file(target) as unfinished:
        unfinished.write_text("a file cannot replace a folder")


def _write(path: Path) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_bytes(b"new")


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    _write(path)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path, exists: bool) -> None:
    target, link, second = tmp_path / "far" / "file", tmp_path / "link", tmp_path / "second"
    target.parent.mkdir()
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(Path("far") / "file")
    second.symlink_to(link)
    _write(second)
    assert second.is_symlink()
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [file.name for file in target.parent.iterdir()] == ["file"]


def test_pipes_devices_and_folders_are_refused(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, tmp_path):
        before = path.lstat()
        with pytest.raises(CacheError, match="is a (folder|device or a pipe)") as caught:
            _write(path)
        assert caught.value.remedy
        assert path.lstat().st_ino == before.st_ino
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "pipe"]


def test_the_longest_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 255)
    _write(path)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("path", [None, 5, b"file", "", "a\0"])
def test_what_is_no_path(path: Any) -> None:
    for begin in (whole_file, whole_files, check_output, check_folder):
        with pytest.raises(BadOption, match=r"(path|folder) is"), ExitStack() as stack:
            opened = begin(path)
            stack.enter_context(opened)  # type: ignore[arg-type]
