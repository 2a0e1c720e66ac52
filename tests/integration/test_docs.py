"""What the documentation shows works: every block of code runs, every link leads somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.compiler.bench.peers import PEERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NOT_RUN = ("", "text", "diff")
Sandbox = Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: its language, its text, and the file named in the paragraph before it."""

    page: Path
    line: int
    language: str
    text: str
    file: str | None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    named: str | None = None
    position = 0
    while position < len(lines):
        line = lines[position]
        if not line.startswith("```"):
            found = re.fullmatch(r"`([\w./]+)`", line)
            named = found[1] if found else named if not line else None
            position += 1
            continue
        end = lines.index("```", position + 1)
        text = "\n".join(lines[position + 1 : end]) + "\n"
        yield Block(page=page, line=position + 1, language=line[3:].strip(), text=text, file=named)
        named, position = None, end + 1


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def _chosen(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and block.file is None]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what examples read: ``model.onnx``, inputs for it, an older engine."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "small_model.py"), run_name="__main__")
    return tmp_path


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    known = {"python", "sh", *NOT_RUN}
    assert [block.place for block in BLOCKS if block.language not in known] == []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\n\n    (tilewright|make|pip|python)\b", text), page.name


@pytest.mark.parametrize("block", _chosen("python"), ids=lambda block: block.place)
def test_python_runs(block: Block, sandbox: Sandbox) -> None:
    if "import torch" in block.text:
        pytest.importorskip("torch", reason="torch is not installed")
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.text],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=sandbox,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", _chosen("sh"), ids=lambda block: block.place)
def test_commands_run(block: Block, sandbox: Sandbox) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            _check_command(words, sandbox)


def _check_command(words: list[str], sandbox: Path) -> None:
    """Runs ``tilewright``; of set-up commands only sees that they exist."""
    match words[0]:
        case "tilewright":
            quick = ["--rounds", "1", "--batch-ms", "1"] if words[1:2] == ["bench"] else []
            # VERB stands for any; the others are tested by themselves, and take their time.
            if words[1] in ("demo", "VERB") or "--probe" in words:
                return
            words = ["tilewright", *map(_installed_peers, words[1:])]
            result = CliRunner().invoke(app.build_app(), [*words[1:], *quick])
            assert result.exit_code == 0, (words, result.stderr, result.exception)
        case "make":
            rules = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{re.escape(words[1])}:", rules, re.MULTILINE), words
        case "pip":
            assert words[1] == "install", words
            extras = re.findall(r"\[(\w+)\]", words[-1])
            assert set(extras) <= set(_extras()), words
        case "python":
            runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        case ".ci/run" | "bash":
            assert (ROOT / words[-1]).is_file(), words
        case _:
            pytest.fail(f"no test for the command {' '.join(words)}")
    del sandbox


def _extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return found


def test_bench_installs_the_peers_that_the_readme_compares_with() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (peers,) = re.findall(r"^tilewright bench .*--against (\S+)", text, re.MULTILINE)
    installed = {requirement.split("==")[0] for requirement in _extras()["bench"]}
    assert set(peers.split(",")) <= installed


def _installed_peers(word: str) -> str:
    """Of the runtimes that ``bench`` is told, those that the tests install."""
    peers = [name for name in word.split(",") if name in PEERS]
    return ",".join(name for name in peers if find_spec(name)) or word


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            file, _, anchor = target.partition("#")
            if "://" in target:
                continue
            other = (page.parent / file).resolve() if file else page
            if not other.exists() or (anchor and anchor not in _anchors(other)):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_of_verbs_names_real_ones() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert named
    assert set(named) <= set(app.VERBS)


# --- the worked examples of CONTRIBUTING.md -------------------------------------------------------


def _examples() -> dict[str, list[Block]]:
    """The blocks with a file, by the title they stand under."""
    page = ROOT / "CONTRIBUTING.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    found: dict[str, list[Block]] = {}
    for block in blocks_of(page):
        if block.file is not None:
            titles = [line for line in lines[: block.line] if line.startswith("### ")]
            found.setdefault(titles[-1][4:], []).append(block)
    return found


def _patched(text: str, diff: str) -> str:
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(old) == 1, f"not found once:\n{old}"
        text = text.replace(old, new)
    return text


def test_additions_are_shown_in_three_files_each() -> None:
    examples = _examples()
    assert list(examples) == ["A graph pass", "A rewrite", "An elementwise operator"]
    for title, blocks in examples.items():
        source, test, entry = (str(block.file) for block in blocks)
        assert source.startswith("src/"), title
        assert not (ROOT / source).exists(), f"{source} exists: choose another example"
        assert test.startswith("tests/"), title
        assert (ROOT / entry).is_file(), title
        assert [block.language for block in blocks] == ["python", "python", "diff"], title


def test_additions_work_in_a_copy(tmp_path: Path) -> None:
    for folder in ("src", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    tests, written = [], []
    for blocks in _examples().values():
        for block in blocks:
            target = tmp_path / str(block.file)
            if block.language == "diff":
                target.write_text(_patched(target.read_text(encoding="utf-8"), block.text))
            else:
                target.write_text(block.text, encoding="utf-8")
                tests += [str(block.file)] if str(block.file).startswith("tests/") else []
            written.append(str(block.file))
    _succeeds(["-m", "ruff", "check", *written], tmp_path)
    _succeeds(["-m", "ruff", "format", "--check", *written], tmp_path)
    _succeeds(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *tests], tmp_path)


def _succeeds(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=folder,
        env={"PATH": "", "HOME": str(folder), "PYTHONPATH": str(folder / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
