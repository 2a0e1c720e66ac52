"""The driver's functions are called as they must be, and everything is given back."""

import ctypes
from typing import Any

import pytest

from tilewright.core.errors import BadTarget
from tilewright.hw import cuda_driver
from tilewright.hw.cuda_driver import FUNCTION_REGISTERS, CudaDriver, open_driver
from unit.hw.fake_cuda import FakeCuda


def test_a_gpu_is_described() -> None:
    (gpu,) = CudaDriver(FakeCuda()).gpus()
    assert (gpu.name, gpu.capability, gpu.num_sms) == ("NVIDIA H200", (9, 0), 132)
    assert (gpu.clock_hz, gpu.l2_bytes, gpu.driver) == (1.98e9, 60 << 20, "CUDA 13.1")
    assert (gpu.max_blocks_per_sm, gpu.max_shared_bytes_per_block) == (32, 227 << 10)


def test_an_error_has_the_drivers_name() -> None:
    driver = CudaDriver(FakeCuda(failing=("cuDeviceGetCount",)))
    with pytest.raises(BadTarget, match="cuDeviceGetCount failed: CUDA_ERROR_INVALID_VALUE"):
        driver.gpus()


def test_a_function_that_an_old_driver_lacks() -> None:
    with pytest.raises(BadTarget, match="the driver has no cuSomethingNew"):
        CudaDriver(FakeCuda()).call("cuSomethingNew")


def test_everything_is_given_back_even_after_an_error() -> None:
    fake = FakeCuda()
    driver = CudaDriver(fake)
    with (
        pytest.raises(ZeroDivisionError),
        driver.context(0),
        driver.device_memory(1024) as device,
        driver.pinned_memory(1024) as host,
        driver.module(".version 7.0") as module,
        driver.events() as (start, end),
    ):
        driver.copy("HtoD", device, host, 1024)
        driver.copy("DtoH", host, device, 1024)
        driver.copy("DtoD", device, device, 512)
        driver.fill_varied(device, 1000)
        function = driver.function(module, "kernel")
        assert driver.function_fact(function, FUNCTION_REGISTERS) == 32
        driver.allow_shared_bytes(function, 227 << 10)
        driver.launch(function, 4, 128, (ctypes.c_uint64(device),))
        driver.record(start)
        assert driver.elapsed_s(start, end) == pytest.approx(2e-3)
        raise ZeroDivisionError
    assert not any(fake.open.values())
    assert fake.copied == [("HtoD", 1024), ("DtoH", 1024), ("DtoD", 512)]


def test_the_drivers_occupancy_is_asked_without_raising() -> None:
    fake = FakeCuda()
    driver = CudaDriver(fake)
    assert driver.max_active_blocks(ctypes.c_void_p(3), 128, 0) == (8, "")
    fake.failing = ("cuOccupancyMaxActiveBlocksPerMultiprocessor",)
    found = driver.max_active_blocks(ctypes.c_void_p(3), 128, 0)
    assert found == (0, "CUDA_ERROR_INVALID_VALUE")


def test_no_driver_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "libno-such-driver.so.1")
    reason = open_driver()
    assert isinstance(reason, str)
    assert "no NVIDIA GPU was found" in reason
    assert "libno-such-driver.so.1" in reason


@pytest.mark.parametrize("failing", [(), ("cuInit",)])
def test_a_driver_is_opened_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]
) -> None:
    def load(_: str) -> Any:
        return FakeCuda(failing=failing)

    monkeypatch.setattr(ctypes, "CDLL", load)
    found = open_driver()
    if failing:
        assert found == "no NVIDIA GPU was found: cuInit says CUDA_ERROR_INVALID_VALUE"
    else:
        assert isinstance(found, CudaDriver)
