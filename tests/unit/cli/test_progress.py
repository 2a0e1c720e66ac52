"""Progress is for people at a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from tilewright.cli import console, progress
from tilewright.cli.progress import STAGES, stages
from unit.compiler.models import compiled, network


class Terminal(io.StringIO):
    """Text that claims to be shown on a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_a_line_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with stages("net.onnx") as report:
        assert report is not None
        for call in (("import", 0, 0), ("compile kernels", 0, 0), ("compile kernels", 3, 7)):
            report(*call)
    assert file.getvalue() == "net.onnx: [1/9] import\nnet.onnx: [8/9] compile kernels\n"


def test_tuning_tells_a_pipe_every_ten_seconds_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with stages("net.onnx") as report:
        assert report is not None
        for seconds in (3, 4, 13, 14, 25):
            monkeypatch.setattr(progress, "perf_counter", lambda now=seconds: float(now))
            report("tune", seconds, 20)
    assert file.getvalue().splitlines() == [
        "net.onnx: tune, 17 s left",
        "net.onnx: tune, 7 s left",
        "net.onnx: tune, 0 s left",
    ]


def test_a_long_stage_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with stages("net.onnx") as report:
        assert report is not None
        calls = [(0, 0), (5, 1), (20, 4), (25, 5), (100, 20), (500, 100), (520, 0), (540, 2)]
        for now, done in calls:
            monkeypatch.setattr(progress, "perf_counter", lambda now=now: float(now))
            report("moves", done, 118)
    assert file.getvalue().splitlines() == [
        "net.onnx: moves",
        "net.onnx: moves, 4 of 118, about 10 min left",
        "net.onnx: moves, 20 of 118, about 8 min left",
        "net.onnx: moves, 100 of 118, about 90 s left",
        "net.onnx: moves, 2 of 118, about 19 min left",
    ]


def test_quiet_and_json_show_nothing() -> None:
    with stages("net.onnx", quiet=True) as report:
        assert report is None
    with console.json_mode(True), stages("net.onnx") as report:
        assert report is None


def test_the_stages_are_those_of_a_build() -> None:
    seen: list[str] = []
    compiled(network(), progress=lambda *call: seen.append(call[0]))
    assert tuple(dict.fromkeys(seen)) == STAGES


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
    assert "net.onnx: [8/9] compile kernels" in terminal.getvalue()
    assert "3/7" in terminal.getvalue()
    assert capsys.readouterr().out == ""
