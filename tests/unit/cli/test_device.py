"""``tilewright device``: answers, JSON, and what it says about questions that have none."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tilewright.cli import app, device
from tilewright.cli.device import Request, find_device, parse_request
from tilewright.core.errors import BadOption, BadTarget
from tilewright.hw import cuda_driver, gpu_probe
from tilewright.hw.cuda_driver import CudaDriver
from tilewright.hw.roofs import load_measured
from unit.hw.fake_cuda import FakeCuda

PROBE = ("--probe", "--seconds", "0.2", "--threads", "1")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and no GPU."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libno-such-driver.so.1")


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "open_driver", lambda: CudaDriver(FakeCuda()))


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app.build_app(), ["device", *arguments])


def _json(*arguments: str) -> Any:
    result = _invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- this machine ---------------------------------------------------------------------------------


def test_before_a_probe_the_roofs_are_said_to_be_unknown() -> None:
    result = _invoke()
    assert result.exit_code == 0
    assert "processor" in result.stdout
    assert "roofs: not measured; tilewright device --probe does it" in result.stdout
    assert "no NVIDIA GPU was found" in result.stdout
    assert _json()["roofs"] == []


def test_a_probe_is_kept_and_used(tmp_path: Path) -> None:
    result = _invoke(*PROBE)
    assert result.exit_code == 0, result.stderr
    assert "kept in" in result.stderr
    assert "measured on 20" in result.stdout
    assert "float32" in result.stdout
    assert list((tmp_path / "roofs").glob("cpu-*.json"))
    measured = load_measured(1)
    assert measured is not None
    assert measured.peaks_flops["float32"] > 1e9
    answer = _json()
    assert answer["roofs"][0]["peaks_flops"] == dict(measured.peaks_flops)
    assert answer["machine"]["processors"]
    assert "not measured;" not in _invoke().stdout


def test_progress_does_not_mix_with_json() -> None:
    assert _json(*PROBE)["roofs"][0]["threads"] == 1


def test_more_threads_than_processors_are_refused() -> None:
    result = _invoke("--probe", "--threads", "100000")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "this process may use 1 to" in result.stderr


def test_a_damaged_cache_is_explained(tmp_path: Path) -> None:
    _invoke(*PROBE)
    next((tmp_path / "roofs").glob("cpu-*.json")).write_text("{")
    result = _invoke()
    assert result.exit_code == 1
    assert "remedy: measure again" in result.stderr


@pytest.mark.usefixtures("_gpu")
def test_a_gpu_is_shown_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "open_cublas", lambda: "cuBLAS cannot be loaded")
    assert "NVIDIA H200, compute capability 9.0, 132 SMs, CUDA 13.1" in _invoke().stdout
    result = _invoke(*PROBE)
    assert result.exit_code == 0, result.stderr
    assert "Roofs of NVIDIA H200" in result.stdout
    assert "launch_submit_us" in result.stdout
    measured = load_measured(gpu="NVIDIA H200")
    assert measured is not None
    assert [level.name for level in measured.levels] == ["L2", "DRAM"]


# --- limits ---------------------------------------------------------------------------------------


def test_an_architecture_shows_its_limits_and_sources() -> None:
    result = _invoke("--arch", "sm_90")
    assert result.exit_code == 0
    for text in ("Hopper", "2048 threads", "228 KiB per SM", "227 KiB per block", "Programming"):
        assert text in result.stdout
    answer = _json("--arch", "9.0")
    assert (answer["arch"]["name"], answer["board"]) == ("sm_90", None)
    assert answer["arch"]["source"]


def test_a_board_shows_its_roofs() -> None:
    result = _invoke("--board", "H200")
    assert "989.4 TFLOP/s" in result.stdout
    assert "4.8 TB/s" in result.stdout
    answer = _json("--board", "H200")
    assert answer["board"]["num_sms"] == 132
    assert answer["roofs"]["levels"][-1]["bytes_per_s"] == 4.8e12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "sm_91"), "unknown CUDA architecture 'sm_91'"),
        (("--board", "H300"), "unknown board 'H300'"),
        (("--board", "A100"), "several boards are called 'A100'"),
        (("--board", "H200", "--arch", "sm_80"), "H200 is sm_90, not sm_80"),
        (("--occupancy", "block=256"), "no NVIDIA GPU was found"),
        (("--occupancy", "block=2000", "--arch", "90"), "sm_90 has 1 to 1024 threads"),
        (("--occupancy", "block=32,regs=256", "--arch", "90"), "0 to 255 registers per thread"),
        (("--occupancy", "block=32,smem=228KiB", "--arch", "90"), "bytes per block (227 KiB)"),
    ],
)
def test_what_does_not_exist_is_explained(arguments: tuple[str, ...], message: str) -> None:
    result = _invoke(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert "remedy:" in result.stderr


# --- occupancy ------------------------------------------------------------------------------------


def test_occupancy_names_the_limit_and_what_would_help() -> None:
    result = _invoke("--occupancy", "regs=64,smem=48KiB,block=256", "--arch", "sm_90")
    assert result.exit_code == 0
    assert "32 of 64 (50%)" in result.stdout
    assert "limited by             registers, shared memory" in result.stdout
    assert "5 blocks per SM need at most 48 registers per thread" in result.stdout
    assert "cuda_occupancy.h" in result.stdout


def test_occupancy_as_json() -> None:
    answer = _json("--occupancy", "regs=64,smem=48KiB,block=256", "--arch", "sm_90")
    assert answer["blocks_per_sm"] == 4
    assert answer["limited_by"] == ["registers", "shared memory"]
    assert answer["block"]["shared_bytes"] == 49152
    assert answer["waves"] is None


def test_a_board_adds_waves() -> None:
    request = "regs=64,smem=48KiB,block=256,threads=135169"  # 529 blocks, 528 slots
    answer = _json("--occupancy", request, "--board", "H200")
    assert (answer["waves"]["full_waves"], answer["waves"]["tail_blocks"]) == (1, 1)
    text = _invoke("--occupancy", request, "--board", "H200").stdout
    assert "529 blocks in 1.00 waves of 528: 50.1% of the slots are used" in text
    assert "1 blocks on at most 1 SMs" in text


def test_a_block_that_cannot_run_says_why() -> None:
    result = _invoke("--occupancy", "regs=128,block=1024", "--arch", "sm_90")
    assert result.exit_code == 0
    assert "1024 threads with 128 registers need 131072 registers" in result.stdout


def test_a_carveout_is_respected() -> None:
    request = "block=128,smem=15KiB,carveout=64KiB"
    assert _json("--occupancy", request, "--arch", "90")["blocks_per_sm"] == 4


def test_advice_marks_the_best_size() -> None:
    result = _invoke("--occupancy", "regs=40", "--advise", "--arch", "sm_86")
    assert result.exit_code == 0
    marked = [line.split() for line in result.stdout.splitlines() if line.startswith(" *")]
    assert len(marked) == 1
    answer = _json("--occupancy", "regs=40", "--advise", "--arch", "sm_86")
    assert answer["best"] == int(marked[0][1])
    assert len(answer["candidates"]) == 32
    assert answer["reason"] in " ".join(result.stdout.split())


def test_advice_with_memory_that_grows() -> None:
    answer = _json("--occupancy", "smem_per_thread=1KiB", "--advise", "--arch", "sm_90")
    assert [one["threads"] for one in answer["candidates"]][-1] == 224


@pytest.mark.usefixtures("_gpu")
def test_without_a_name_the_gpu_of_this_machine_is_meant() -> None:
    found = find_device(None, None)
    assert (found.arch.name, found.num_sms) == ("sm_90", 132)
    assert found.board is not None
    assert found.board.name == "H200"
    assert _json("--occupancy", "block=256,threads=1000000")["waves"]["slots"] == 132 * 8


def test_devices_that_contradict_are_refused() -> None:
    with pytest.raises(BadTarget):
        find_device("sm_1", "H200")
    with pytest.raises(BadOption, match="is sm_90"):
        find_device("sm_80", "H200")


# --- parsing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("block=256", Request(block=256)),
        ("regs=64, smem=48KiB, block=256", Request(regs=64, smem=49152, block=256)),
        ("smem=1.5k,barriers=4", Request(smem=1536, barriers=4)),
        ("smem=1000", Request(smem=1000)),
        ("smem=100B,carveout=1MiB", Request(smem=100, carveout=1 << 20)),
        ("threads=7,smem_per_thread=4", Request(threads=7, smem_per_thread=4)),
    ],
)
def test_requests(text: str, expected: Request) -> None:
    assert parse_request(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "regs", "regs=", "regs=x", "regs=-1", "registers=3", "smem=4GB", "smem=1.3", "regs=1k"],
)
def test_bad_requests_are_bad_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_request(text)
    result = _invoke("--occupancy", text, "--arch", "90")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--occupancy", "regs=3,regs=4", "--arch", "90"),
        ("--occupancy", "regs=3", "--arch", "90"),  # neither a block nor --advise
        ("--advise", "--arch", "90"),
        ("--probe", "--arch", "90"),
        ("--probe", "--seconds", "0"),
        ("--probe", "--threads", "none"),
    ],
)
def test_contradictions_are_bad_usage(arguments: tuple[str, ...]) -> None:
    result = _invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


def test_the_parser_names_its_keys() -> None:
    with pytest.raises(typer.BadParameter, match=", ".join(device._KEYS)):
        parse_request("warps=3")
