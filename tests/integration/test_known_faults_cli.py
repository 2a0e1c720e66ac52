"""Faults of the command: lost files, replaced inputs, tracebacks, entries of the cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tilewright as tw
from tilewright.cli import app
from tilewright.core.errors import BadOption, CacheError
from tilewright.hw import roofs
from unit.compiler.models import feeds_of, network, saved

ENTRY = [sys.executable, "-m", "tilewright"]
SMALL_FILES = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300));"
    "from tilewright.cli import main; sys.exit(main())"
)
IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the network, its engine, and a cache that holds all of its kernels."""
    folder = tmp_path_factory.mktemp("warm")
    saved(network(), folder)
    np.savez(folder / "in.npz", **feeds_of(2, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        tw.compile(folder / "model.onnx", threads=1).save(folder / "net.tw")
    return folder


@pytest.fixture
def folder(warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: copies of the network and its engine."""
    for name in ("model.onnx", "net.tw", "in.npz"):
        (tmp_path / name).write_bytes((warm / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(warm / "cache"))
    return tmp_path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app.build_app(), [str(part) for part in arguments])


def _process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = options.pop("command", ENTRY)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([*command, *arguments], text=True, check=False, timeout=120, **options)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# --- files ----------------------------------------------------------------------------------------

SIZES = ("--dim", "batch=2", "--dim", "height=8")


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "model.onnx", "-o", "old/net.tw", "--threads", "1"),
        ("compile", "model.onnx", "-o", "/dev/null", "--dump-graph", "old/graph.onnx"),
        ("compile", "model.onnx", "-o", "/dev/null", "--dump-kernels", "old"),
        ("compile", "model.onnx", "-o", "/dev/null", "--dump-kernels", "new/deep"),
        ("run", "net.tw", "--npz", "in.npz", "-o", "old/out.npz"),
        ("profile", "net.tw", *SIZES, "--runs", "1", "--trace", "old/trace.json"),
        ("explain", "net.tw", *SIZES, "--runs", "1", "--no-probe", "--html", "old/page.html"),
    ],
)
def test_a_full_disk_keeps_the_old_files(folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "old").mkdir()
    for name in ("net.tw", "graph.onnx", "out.npz", "trace.json", "page.html"):
        (folder / "old" / name).write_text("old")
    if "/dev/null" in arguments:
        arguments = tuple("new.tw" if part == "/dev/null" else part for part in arguments)
    before = _contents(folder)
    done = _process(*arguments, command=[sys.executable, "-c", SMALL_FILES])
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert _contents(folder) == before
    assert not list(folder.rglob(".*"))
    assert not (folder / "new").exists()


def test_a_reproducer_is_written_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model and inputs belong together: without the inputs no model is left."""
    from tilewright.compiler import check

    other = network()
    (weight,) = (part for part in other.graph.initializer if part.name == "v")
    weight.raw_data = bytes(len(weight.raw_data))
    (folder / "other").mkdir()
    engine = tw.compile(saved(other, folder / "other"), threads=1)
    found = check.verify(folder / "model.onnx", engine)
    assert not found.passed

    def full(*_args: Any, **_arrays: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(CacheError, match="No space left on device"):
        check.reproduce(folder / "model.onnx", found, folder / "small", engine)
    assert not (folder / "small").exists()


@pytest.mark.parametrize("alias", ["{}", "./{}", "hard", "soft"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "@model.onnx", "-o", "="),
        ("compile", "@model.onnx", "-o", "new.tw", "--dump-graph", "="),
        ("compile", "model.onnx", "--npz", "@in.npz", "-o", "="),
        ("run", "@net.tw", "--npz", "in.npz", "-o", "="),
        ("run", "net.tw", "--npz", "@in.npz", "-o", "="),
        ("profile", "@net.tw", *SIZES, "--trace", "="),
        ("explain", "@net.tw", *SIZES, "--html", "="),
        ("explain", "model.onnx", "--npz", "@in.npz", "--html", "="),
    ],
)
def test_an_input_is_not_replaced(folder: Path, arguments: tuple[str, ...], alias: str) -> None:
    """``@`` marks the input, ``=`` is the same file under another name."""
    name = next(part[1:] for part in arguments if part.startswith("@"))
    (folder / "hard").hardlink_to(folder / name)
    (folder / "soft").symlink_to(folder / name)
    before = _contents(folder)
    given = [alias.format(name) if part == "=" else part.removeprefix("@") for part in arguments]
    result = _run(*given)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"is the same file as {name}" in result.stderr
    assert _contents(folder) == before


@pytest.mark.usefixtures("folder")
def test_outputs_do_not_replace_each_other_or_the_model() -> None:
    result = _run("compile", "model.onnx", "-o", "a.tw", "--dump-graph", "a.tw")
    assert "is the same file as" in result.stderr
    result = _run("verify", "model.onnx", "--reproducer", ".")
    assert "is the same file as model.onnx" in result.stderr
    with pytest.raises(BadOption, match="is the same file as"):
        tw.compile("model.onnx", dump_graph="model.onnx")


def test_a_link_is_followed_and_a_device_refused(folder: Path) -> None:
    (folder / "real.npz").write_text("old")
    (folder / "link.npz").symlink_to("real.npz")
    assert _run("run", "net.tw", "--npz", "in.npz", "-o", "link.npz").exit_code == 0
    assert (folder / "link.npz").is_symlink()
    assert (folder / "real.npz").read_bytes()[:2] == b"PK"
    result = _run("run", "net.tw", "--npz", "in.npz", "-o", os.devnull)
    assert "not a plain file" in result.stderr


# --- streams and signals --------------------------------------------------------------------------


@pytest.mark.usefixtures("folder")
def test_a_closed_stdout_is_an_error() -> None:
    for arguments in (["--version"], ["--help"], ["run", "net.tw", "--npz", "in.npz"]):
        done = _process(*arguments, command=["sh", "-c", 'exec "$@" >&-', "sh", *ENTRY])
        assert done.returncode == 1
        assert done.stderr == "error: stdout cannot be written: Bad file descriptor\n"


def test_closed_streams_do_not_stop_the_work(folder: Path) -> None:
    compile_it = ("compile", "model.onnx", "-o", "new.tw")
    done = _process(*compile_it, command=["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *ENTRY])
    assert done.returncode == 0
    assert done.stdout.startswith("engine")
    assert tw.load(folder / "new.tw").inputs


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["device"], ["run", "net.tw", "--npz", "in.npz"]]
)
@pytest.mark.usefixtures("folder")
def test_full_streams_are_explained(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = _process(*arguments, stdout=full)
        assert done.returncode == 1
        assert done.stderr == "error: stdout cannot be written: No space left on device\n"
        compiled = _process("compile", "model.onnx", "-o", "new.tw", stderr=full)
    assert compiled.returncode == 0
    assert compiled.stdout.startswith("engine")


@pytest.mark.parametrize("arguments", [["--help"], ["device"], ["device", "--json"]])
def test_a_reader_that_leaves_early(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = _process(*arguments, stdout=pipe)
        assert (done.returncode, done.stderr) == (1, "")
        both = _process(*arguments, stdout=pipe, stderr=pipe)
    assert both.returncode == 1


def test_characters_that_stdout_lacks_are_escaped(folder: Path) -> None:
    (folder / "modèle.onnx").write_bytes((folder / "model.onnx").read_bytes())
    done = _process(
        *("compile", "modèle.onnx", "-o", "new.tw", "--json"),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["model"] == "modèle.onnx"
    assert done.stdout.isascii()


@pytest.mark.parametrize("milliseconds", [30, 60, 100, 150, 200, 300, 450])
def test_ctrl_c_at_any_time_is_short(folder: Path, milliseconds: int) -> None:
    """While Python loads modules, too; before our first line it is Python that answers."""
    with (folder / "began").open("w+") as began:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", *ENTRY[1:], "verify", "model.onnx"],
            stdout=subprocess.PIPE,
            stderr=began,
            text=True,
        )
        while "tilewright.cli.interrupts" not in (folder / "began").read_text():
            time.sleep(0.001)
        time.sleep(milliseconds / 1e3)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    text = (folder / "began").read_text()
    if process.returncode == 0:
        pytest.skip("it was done before")
    assert (process.returncode, stdout) == (130, "")
    assert text.endswith("interrupted\n")  # behind half a line of what Python says of imports
    said = text.removesuffix("interrupted\n").splitlines()
    assert all(line.startswith(("import time:", "model.onnx: [")) for line in said if line), said


LOST = """
import signal, sys, time, weakref
from tilewright.cli import app, main

class Thing:
    pass

class Loud:
    def __del__(self) -> None:
        signal.raise_signal(signal.{signal})

def verb() -> None:
    thing = Thing()
    ref = weakref.ref(thing, lambda _: signal.raise_signal(signal.{signal}))
    if {finalizer}:
        thing = Loud()
    del thing
    time.sleep(60)

app.VERBS["try"] = verb
sys.argv = ["tilewright", "try"]
sys.exit(main())
"""


@pytest.mark.parametrize("finalizer", [False, True])
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_a_callback_is_not_lost(name: str, code: int, finalizer: bool) -> None:
    start = time.perf_counter()
    script = LOST.format(signal=name, finalizer=finalizer)
    done = _process(command=[sys.executable, "-c", script])
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted\n")
    assert time.perf_counter() - start < 30


AGAIN = """
import signal, sys
from tilewright.cli import app, main

plain = signal.setitimer

def loud(*arguments):
    signal.raise_signal(signal.SIGINT)
    return plain(*arguments)

def verb() -> None:
    signal.setitimer = loud  # what is called last of all
    {first}

app.VERBS["try"] = verb
sys.argv = ["tilewright", "try"]
sys.exit(main())
"""


@pytest.mark.parametrize("first", ["signal.raise_signal(signal.SIGINT)", "pass"])
def test_ctrl_c_while_a_command_ends_is_short(first: str) -> None:
    done = _process(command=[sys.executable, "-c", AGAIN.format(first=first)])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("gap", [0.0, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("verb", ["device", "profile net.tw --npz in.npz"])
def test_ctrl_c_twice_is_short(verb: str, gap: float) -> None:
    script = "import sys; from tilewright.cli import main; print(0, flush=True); sys.exit(main())"
    for wait in (0.05, 0.3, 0.6):
        process = subprocess.Popen(
            [sys.executable, "-c", script, *verb.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        time.sleep(gap)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        # Whoever comes when Python itself ends meets the system's answer, for a shell the same.
        assert process.returncode in (0, 130, -signal.SIGINT)
        assert "Traceback" not in stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("milliseconds", [100, 500, 1500])
def test_ctrl_c_ends_a_comparison_with_all_of_its_processes(milliseconds: int) -> None:
    """A terminal sends it to every process of the group at once."""
    process = subprocess.Popen(
        [*ENTRY, "bench", "model.onnx", *SIZES, "--rounds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    time.sleep(milliseconds / 1e3)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    if "onnxruntime is not installed" in stderr:
        pytest.skip("onnxruntime is not installed")
    assert "preparing onnxruntime" in first
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith("interrupted\n")
    assert "Traceback" not in stderr
    with pytest.raises(ProcessLookupError):  # nobody is left in the group
        os.killpg(process.pid, 0)


def test_what_the_system_refuses_is_a_message(folder: Path) -> None:
    pytest.importorskip("PIL")
    for arguments in (("demo", folder), ("run", folder), ("run", "net.tw", "--npz", folder)):
        result = _run(*arguments)
        assert (result.exit_code, result.stdout) == (1, ""), result.exception
        assert "error: " in result.stderr
        assert "remedy: " in result.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verb", ["run", "verify", "profile", "explain"])
def test_inputs_are_read_before_a_model_is_compiled(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise AssertionError("nothing is to be compiled")

    monkeypatch.setattr("tilewright.compile", refuse, raising=False)
    result = _run(verb, "model.onnx", "--npz", "none.npz")
    assert (result.exit_code, result.stdout) == (1, ""), result.exception
    assert "none.npz: no such file" in result.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("size", [10**11, 10**20])
def test_sizes_beyond_any_memory_are_explained(size: int) -> None:
    result = _run("run", "net.tw", "--random", "--dim", f"batch={size}", "--dim", "height=8")
    assert (result.exit_code, result.stdout) == (1, ""), result.exception
    assert "error: " in result.stderr
    assert "remedy: " in result.stderr


def test_a_demo_folder_that_is_a_file_is_told_before_the_work(folder: Path) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    Image.new("L", (300, 200), 255).save(folder / "page.png")
    result = _run("demo", "page.png", "--folder", "in.npz", "--with", "tilewright")
    if "not installed" in result.stderr:
        pytest.skip("the demo's networks are not installed")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "in.npz: is no folder" in result.stderr


# --- the cache ------------------------------------------------------------------------------------


def _built(cache: Path) -> tw.Engine:
    """An engine of a model that is no file, and so of kernels from the cache."""
    return tw.compile(Path("model.onnx").read_bytes(), threads=1, cache=cache)


def _swap(files: list[Path]) -> None:
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(content)


def _flip(files: list[Path]) -> None:
    for file in files:
        data = bytearray(file.read_bytes())
        data[-len(data) // 3] ^= 16
        file.write_bytes(data)


def _each(change: Callable[[Path], object]) -> Callable[[list[Path]], None]:
    def all_of_them(files: list[Path]) -> None:
        for file in files:
            change(file)

    return all_of_them


@pytest.mark.parametrize(
    "damage",
    [
        _swap,
        _flip,
        _each(lambda file: file.write_bytes(b"")),
        _each(lambda file: file.write_bytes(bytes(4096))),
        _each(lambda file: os.truncate(file, 100)),
    ],
    ids=["swapped", "flipped bits", "empty", "zeros", "truncated"],
)
def test_entries_that_are_not_what_they_are_called_are_made_again(
    folder: Path, damage: Callable[[list[Path]], None]
) -> None:
    cache = folder / "objects"
    first = _built(cache)
    good = _contents(cache)
    damage(sorted(cache.iterdir()))
    assert _contents(cache) != good
    second = _built(cache)
    feeds = feeds_of(2, 8)
    np.testing.assert_array_equal(second.run(feeds)["y"], first.run(feeds)["y"])
    assert _contents(cache) == good
    assert second.summary["notes"] == []


@pytest.mark.parametrize("filled", [False, True])
def test_folders_in_place_of_entries_are_told(folder: Path, filled: bool) -> None:
    cache = folder / "objects"
    _built(cache)
    for file in list(cache.iterdir()):
        file.unlink()
        file.mkdir()
        if filled:
            (file / "file").write_text("")
    engine = _built(cache)
    (note,) = engine.summary["notes"]
    assert note.endswith(".o is a folder")
    assert engine.run(feeds_of(2, 8))["y"].shape == (2, 5)


def _cannot_write(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """As for a user who only may read; root may do everything."""
    access = os.access

    def refuse(path: Any, mode: int, **options: Any) -> bool:
        below = Path(path).resolve().is_relative_to(cache.resolve())
        return access(path, mode, **options) and not (below and mode & os.W_OK)

    monkeypatch.setattr(os, "access", refuse)


def test_a_cache_that_can_only_be_read_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = folder / "objects"
    _built(cache)
    _cannot_write(monkeypatch, cache)
    full = _built(cache)
    assert full.summary["notes"] == []
    next(cache.iterdir()).unlink()
    some = _built(cache)
    (note,) = some.summary["notes"]
    assert note == f"kernels are not kept in the cache {cache}: the folder cannot be written"
    assert some.run(feeds_of(2, 8))["y"].shape == (2, 5)
    for file in cache.iterdir():
        file.unlink()
    with pytest.raises(CacheError, match="cannot write the cache"):
        _built(cache)


def test_the_users_own_cache_may_be_of_no_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for it: a home that cannot be written is no reason not to compile."""
    (folder / "file").write_text("no folder")
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    result = _run("compile", "model.onnx", "-o", "new.tw")
    assert result.exit_code == 0, result.stderr
    assert "kernels are not kept in the cache" in result.stdout
    assert _run("run", "model.onnx", "--npz", "in.npz").stderr.count("note: ") == 1


def test_notes_are_no_part_of_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal builds give equal files, whatever the cache could do."""
    cache = folder / "objects"
    tw.compile("model.onnx", threads=1, cache=cache).save("a.tw")
    next(cache.iterdir()).unlink()
    _cannot_write(monkeypatch, cache)
    noted = tw.compile("model.onnx", threads=1, cache=cache)
    noted.save("b.tw")
    assert noted.summary["notes"]
    assert (folder / "a.tw").read_bytes() == (folder / "b.tw").read_bytes()


# --- roofs ----------------------------------------------------------------------------------------


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Roofs that are measured at once; returns for how many threads they were."""
    from tilewright.compiler import roofs as ensured

    calls: list[int] = []

    def probe(options: Any) -> tuple[roofs.Roofs, ...]:
        calls.extend(options.threads)
        level = roofs.Level(name="L1", bytes_per_s=1e11)
        peaks = {"float32": 1e11}
        return tuple(
            roofs.Roofs(device="c", threads=n, peaks_flops=peaks, levels=(level,), source="here")
            for n in options.threads
        )

    monkeypatch.setattr(ensured, "probe_cpu", probe)
    monkeypatch.setattr(roofs, "_unsaved", {})
    return calls


@pytest.mark.parametrize(
    "arguments",
    [
        ("net.tw", "--npz", "none.npz"),
        ("net.tw", "--dim", "width=3"),
        ("none.tw",),
        ("none.onnx",),
        ("model.onnx", "--dim", "width=3"),
        ("net.tw", "--diff", "none.tw"),
        ("net.tw", "--html", "none/page.html"),
    ],
)
def test_explain_measures_only_for_an_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, quick_probe: list[int], arguments: Any
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
    result = _run("explain", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert quick_probe == []


@pytest.mark.parametrize("subject", [("net.tw", *SIZES, "--runs", "1"), ("model.onnx", *SIZES)])
def test_explain_answers_where_roofs_cannot_be_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, quick_probe: list[int], subject: Any
) -> None:
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "file"))
    result = _run("explain", *subject)
    assert result.exit_code == 0, result.stderr
    assert "note: " in result.stderr
    assert "measured roofs cannot be kept" in result.stderr
    assert "here" in result.stdout
    assert len(quick_probe) == 1
