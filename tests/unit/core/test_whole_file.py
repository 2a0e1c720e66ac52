"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from tilewright.core.errors import CacheError
from tilewright.core.whole_file import whole_file


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
