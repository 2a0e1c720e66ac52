"""Verbs end with the right exit code and leave stdout to data."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Invoked

from tilewright.cli import app, demo
from tilewright.core.errors import InvalidModel


def _invoke(*arguments: str) -> Invoked:
    return CliRunner().invoke(app.build_app(), list(arguments))


def _with_verb(monkeypatch: pytest.MonkeyPatch, verb: Callable[[], None]) -> None:
    monkeypatch.setitem(app.VERBS, "try", verb)


def test_every_verb_has_help() -> None:
    for name in app.VERBS:
        result = _invoke(name, "--help")
        assert result.exit_code == 0
        assert "--json" in result.stdout
        assert f"Example: tilewright {name} " in " ".join(result.stdout.split())


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


def test_demo_names_the_packages_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr("tilewright.demo.networks.PACKAGE", "no-such-package")
    result = _invoke("demo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Pillow and no-such-package are not installed" in result.stderr
    assert "pip install 'tilewright[demo]'; pip install --no-deps rapidocr==" in result.stderr


def test_demo_outside_of_the_source_tree_asks_for_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "EXAMPLES", tmp_path / "examples")
    monkeypatch.setattr("tilewright.demo.networks.require_packages", lambda: None)
    result = _invoke("demo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tilewright demo PICTURE" in result.stderr


def test_demo_counts_the_lines_that_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    from tilewright.demo.compare import STAGES, Mistake, Result, Side

    side = Side(
        runtime="r",
        version="1",
        precision="fp32",
        prepare_s=0.0,
        how="loaded",
        files=[],
        lines=[],
        stage_s=dict.fromkeys(STAGES, 1.0),
    )
    wrong = [
        Mistake(runtime="r", number=1, expected="a", read="b"),
        Mistake(runtime="r", number=3, expected="c", read=None),
        Mistake(runtime="r", number=4, expected=None, read="d"),
    ]
    result = Result(picture=Path("p"), threads=1, sides=[side], mistakes=wrong, num_expected=3)
    demo._print_result(result)
    written = capsys.readouterr()
    assert "r: 1 of 3 lines as expected" in written.out
    assert "1 thread," in written.out
    assert written.err.count("error: r: line ") == 3


def test_bench_refuses_an_unknown_peer_before_it_starts_anything() -> None:
    result = _invoke("bench", "m.onnx", "--against", "mxnet")
    assert result.exit_code == 1
    assert "unknown peers mxnet" in result.stderr


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
