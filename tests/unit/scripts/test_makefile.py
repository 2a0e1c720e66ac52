"""An installation that was interrupted does not stop the next one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the Makefile whose environments are made at once."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "make_venv.sh"
    script.write_text('#!/bin/sh\nmkdir -p "$1/bin" && touch "$1/bin/python" "$1/fresh"\n')
    script.chmod(0o755)
    return tmp_path


def _make(tree: Path, pip: str) -> subprocess.CompletedProcess[str]:
    command = ["make", f"PIP={pip}", ".venv/.demo-stamp"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_what_was_left_half_installed_is_made_again(tree: Path) -> None:
    assert _make(tree, "kill -9 $$PPID; true").returncode != 0
    assert (tree / ".venv" / "bin" / "python").exists()
    (tree / ".venv" / "half").write_text("installed")
    done = _make(tree, "true")
    assert done.returncode == 0, done.stderr
    assert "was interrupted: starting afresh" in done.stdout
    assert not (tree / ".venv" / "half").exists()
    assert (tree / ".venv" / ".demo-stamp").exists()
    assert not (tree / ".venv.unfinished").exists()


def test_what_is_whole_stays(tree: Path) -> None:
    assert _make(tree, "true").returncode == 0
    (tree / ".venv" / "fresh").unlink()
    done = _make(tree, "true")
    assert (done.returncode, "afresh" in done.stdout) == (0, False)
    assert not (tree / ".venv" / "fresh").exists()
