"""A probe of a fake GPU: rates follow from times, and what cannot be measured is said."""

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilewright.core.errors import BadTarget
from tilewright.hw import cublas, gpu_probe
from tilewright.hw.cublas import Cublas, open_cublas
from tilewright.hw.cuda_driver import CudaDriver
from tilewright.hw.gpu_probe import GpuProbeOptions, probe_gpu, probe_ptx
from tilewright.hw.roofs import Roofs
from unit.hw.fake_cuda import EVENT_MS, FUNCTION_FACTS, FakeCublas, FakeCuda

OPTIONS = GpuProbeOptions(batches=2, memory_bytes=16 << 20, matrix_size=256)
EVENT_S = EVENT_MS / 1e3
BENCH = Path(__file__).resolve().parents[3] / "bench" / "occupancy_device.py"


def _probe(fake: FakeCuda) -> Roofs:
    driver = CudaDriver(fake)
    return probe_gpu(driver, driver.gpus()[0], OPTIONS)


def test_bandwidths_follow_from_sizes_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "open_cublas", lambda: "cuBLAS cannot be loaded")
    fake = FakeCuda()
    roofs = _probe(fake)
    size = 8 << 20  # half of the memory: there are two copies of it
    near, far = roofs.levels
    assert (far.name, far.working_set_bytes) == ("DRAM", size)
    assert far.patterns == {
        "copy": pytest.approx(2 * size / EVENT_S),
        "read": pytest.approx(size / EVENT_S),
        "write": pytest.approx(size / EVENT_S),
    }
    assert far.bytes_per_s == far.patterns["copy"]
    assert near.name == "L2"
    assert near.patterns["read"] == pytest.approx(20 * size / EVENT_S)  # 20 in one batch
    assert roofs.costs["host_to_device_bytes_per_s"] == pytest.approx((16 << 20) / EVENT_S)
    assert roofs.costs["launch_device_us"] == pytest.approx(1e6 * EVENT_S / 500)
    assert 0 < roofs.costs["launch_submit_us"] <= roofs.costs["launch_round_trip_us"] * 2
    assert roofs.source.endswith("CUDA 13.1")
    assert not any(fake.open.values())


def test_an_l2_that_reads_slower_than_dram_is_no_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "open_cublas", lambda: "cuBLAS cannot be loaded")
    best_s = gpu_probe._Bench.best_s

    def launch_bound(bench: gpu_probe._Bench, call: gpu_probe.Call, repeats: int = 1) -> float:
        return best_s(bench, call, repeats) * (1000 if repeats == 20 else 1)

    monkeypatch.setattr(gpu_probe._Bench, "best_s", launch_bound)
    roofs = _probe(FakeCuda())
    assert [level.name for level in roofs.levels] == ["DRAM"]
    assert "L2 was left out" in roofs.notes[0]


def test_without_cublas_peaks_are_absent_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_probe, "open_cublas", lambda: "cuBLAS cannot be loaded")
    roofs = _probe(FakeCuda())
    assert roofs.peaks_flops == {}
    assert roofs.notes == ("peaks were not measured: cuBLAS cannot be loaded",)


def test_matrix_products_give_the_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeCublas()
    monkeypatch.setattr(gpu_probe, "open_cublas", lambda: Cublas(library))
    roofs = _probe(FakeCuda())
    assert set(roofs.peaks_flops) == {"float64", "float32", "tf32", "float16", "bfloat16"}
    for peak in roofs.peaks_flops.values():
        assert peak == pytest.approx(2 * 256**3 / EVENT_S)
    assert roofs.notes == ("int8 was not measured: cuBLAS status 15",)
    assert library.open == 0


def test_a_failing_launch_is_a_user_error() -> None:
    fake = FakeCuda(failing=("cuLaunchKernel",))
    with pytest.raises(BadTarget, match="cuLaunchKernel failed"):
        _probe(fake)
    assert not any(fake.open.values())


def test_kernels_are_for_the_oldest_target_that_fits() -> None:
    assert ".target sm_70" in probe_ptx((7, 0))
    for capability in ((7, 5), (9, 0), (12, 1)):
        text = probe_ptx(capability)
        assert ".target sm_75" in text
        assert text.count(".visible .entry") == 3
        assert text.count("ld.global.v4.u32") == text.count("st.global.v4.u32") == 4
        assert "{name}" not in text
        assert "{{" not in text


def test_cublas_is_found_or_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert open_cublas() == "cuBLAS cannot be loaded (package nvidia-cublas)"
    monkeypatch.setattr(cublas, "_packaged", lambda: [str(tmp_path / "libcublas.so.13")])
    monkeypatch.setattr(ctypes, "CDLL", lambda _: FakeCublas())
    assert isinstance(open_cublas(), Cublas)


# --- the comparison that runs on a GPU ------------------------------------------------------------


@pytest.fixture
def bench() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("occupancy_device", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _Calculator(FakeCuda):
    """Answers like Hopper for 32 registers a thread, or wrongly for one size."""

    def __init__(self, wrong_threads: int = 0) -> None:
        super().__init__()
        self.wrong_threads = wrong_threads

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(  # noqa: N802
        self, blocks: Any, _: Any, threads: int, size: Any
    ) -> None:
        warps = -(-threads // 32)
        taken = -(-(size.value + 1024) // 128) * 128
        by_memory = (228 << 10) // taken
        blocks._obj.value = min(64 // warps, 32, by_memory) + (threads == self.wrong_threads)


def test_equal_answers_leave_no_mismatch(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "BARRIERS", (1,))
    driver = CudaDriver(_Calculator())
    result = bench.run(driver, driver.gpus()[0])
    assert (result["mismatches"], result["table_mismatches"]) == ([], [])
    assert result["cases"] > 500
    assert result["device"]["name"] == "NVIDIA H200"


def test_a_different_answer_is_found(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BARRIERS", (1,))
    driver = CudaDriver(_Calculator(wrong_threads=96))
    result = bench.run(driver, driver.gpus()[0])
    assert {case["threads"] for case in result["mismatches"]} == {96}


def test_generated_kernels_keep_their_values_alive(bench: ModuleType) -> None:
    text = bench.ptx(
        bench.Kernel(live_values=3, static_shared=64, barriers=2, most_registers=12), "sm_75"
    )
    assert text.count("ld.volatile.global.u32") == text.count("st.volatile.global.u32") == 3
    assert text.index("bar.sync 1;") > text.index("ld.volatile.global.u32 %r2")
    assert text.index("bar.sync 1;") < text.index("st.volatile.global.u32 [%rd1+0]")
    assert ".maxnreg 12" in text
    assert "buffer[64]" in text
    assert FUNCTION_FACTS[4] == 32
