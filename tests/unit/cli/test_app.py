"""Verbs end with the right exit code and leave stdout to data."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tilewright.cli import app
from tilewright.core.errors import InvalidModel


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app.build_app(), list(arguments))


def _with_verb(monkeypatch: pytest.MonkeyPatch, verb: Callable[[], None]) -> None:
    monkeypatch.setitem(app.VERBS, "try", verb)


def test_every_verb_has_help() -> None:
    for name in app.VERBS:
        result = _invoke(name, "--help")
        assert result.exit_code == 0
        assert "--json" in result.stdout


def test_version_is_data() -> None:
    result = _invoke("--version")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("tilewright ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-verb",),
        ("compile",),
        ("compile", "m.onnx", "-o", "m.tw", "--threads", "0"),
        ("compile", "m.onnx", "-o", "m.tw", "--dim", "batch"),
        ("run", "m.onnx", "--input", "x"),
        ("bench", "m.onnx", "--threads", "one"),
    ],
)
def test_bad_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = _invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


def test_a_user_error_is_a_message_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise InvalidModel("it is empty", file="m.onnx", remedy="export it again")

    _with_verb(monkeypatch, fail)
    result = _invoke("try")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: m.onnx: it is empty\n  remedy: export it again\n"


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    _with_verb(monkeypatch, interrupt)
    assert _invoke("try").exit_code == 130


def test_our_own_mistakes_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    _with_verb(monkeypatch, fail)
    assert isinstance(_invoke("try").exception, ZeroDivisionError)


def test_demo_explains_a_missing_picture(tmp_path: Path) -> None:
    result = _invoke("demo", str(tmp_path / "none.png"), "--folder", str(tmp_path / "engines"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no such picture" in result.stderr
    assert not (tmp_path / "engines").exists()


def test_bench_refuses_an_unknown_peer_before_it_starts_anything() -> None:
    result = _invoke("bench", "m.onnx", "--against", "mxnet")
    assert result.exit_code == 1
    assert "unknown peers ['mxnet']" in result.stderr


def test_json_helpers_write_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    from tilewright.cli import console
    from tilewright.demo.compare import Mistake

    mistake = Mistake(runtime="r", number=1, expected=None, read="é")
    console.write_json({"mistakes": [mistake], "nan": float("nan"), "path": Path("a")})
    assert json.loads(capsys.readouterr().out) == {
        "mistakes": [{"runtime": "r", "number": 1, "expected": None, "read": "é"}],
        "nan": "nan",
        "path": "a",
    }
