"""Progress is for people at a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from tilewright.cli.progress import stages


class Terminal(io.StringIO):
    """Text that claims to be shown on a terminal."""

    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with stages("net.onnx") as report:
        assert report is None
    assert file.getvalue() == ""


def test_stages_are_shown_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with stages("net.onnx") as report:
        assert report is not None
        report("import", 0, 0)
        report("compile kernels", 3, 7)
    assert "compile kernels" in terminal.getvalue()
    assert "3/7" in terminal.getvalue()
    assert capsys.readouterr().out == ""
