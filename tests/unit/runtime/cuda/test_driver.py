"""What the driver answers becomes an error that says what to do; no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.core.errors import BadTarget, DeviceFault, OutOfMemory
from tilewright.runtime.cuda import driver, modules

_OUT_OF_MEMORY, _ILLEGAL_ADDRESS, _NO_DEVICE = 2, 700, 100


def _fake(**answers: Any) -> SimpleNamespace:
    """A driver of one H200, but for the given answers."""
    usual: dict[str, Any] = {
        "CUresult": SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=_OUT_OF_MEMORY),
        "CUdevice_attribute": SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        ),
        "cuInit": (0,),
        "cuDriverGetVersion": (0, 13000),
        "cuDeviceGetCount": (0, 1),
        "cuDeviceGet": (0, 0),
        "cuDeviceGetAttribute": lambda which, _: (0, {"major": 9, "minor": 0}[which]),
        "cuDeviceGetName": (0, b"NVIDIA H200\0"),
        "cuDevicePrimaryCtxRetain": (0, "context"),
        "cuGetErrorName": lambda status: (0, f"ERROR_{status}".encode()),
        "cuGetErrorString": (0, b"what it means"),
        "cuMemAlloc": (0, 4096),
        "cuMemGetInfo": (0, 2**20, 2**30),
    }
    known = {**usual, **answers}
    return SimpleNamespace(
        **{
            name: value if not isinstance(value, tuple) else (lambda *_, v=value: v)
            for name, value in known.items()
        }
    )


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    driver.open_device.cache_clear()

    def install(**answers: Any) -> None:
        fake = _fake(**answers)
        for module in (driver, modules):
            monkeypatch.setattr(module, "bindings", lambda: fake)

    yield install
    driver.open_device.cache_clear()


def test_a_gpu_is_opened(use: Any) -> None:
    use()
    device = driver.open_device()
    assert (device.name, device.capability) == ("NVIDIA H200", 90)
    assert device.allocate(100, "a buffer") == 4096


def test_no_driver_no_gpu_and_an_old_driver(use: Any) -> None:
    def missing(_: int) -> None:
        raise RuntimeError("cannot open libcuda.so.1")

    use(cuInit=missing)
    with pytest.raises(BadTarget, match="no NVIDIA driver here"):
        driver.open_device()
    use(cuInit=(_NO_DEVICE,))
    with pytest.raises(BadTarget, match="no NVIDIA GPU can be used: ERROR_100"):
        driver.open_device()
    use(cuDriverGetVersion=(0, 12040))
    with pytest.raises(BadTarget, match=r"of CUDA 12.4, the engine needs 13.0"):
        driver.open_device()


def test_full_memory_says_how_much_is_needed_and_free(use: Any) -> None:
    use(cuMemAlloc=(_OUT_OF_MEMORY, None), cuMemHostAlloc=(_OUT_OF_MEMORY, None))
    with pytest.raises(OutOfMemory, match=r"the arena needs 8.0 MiB .* 1.0 of 1024.0 MiB are free"):
        driver.open_device().allocate(2**23, "the arena")
    with pytest.raises(OutOfMemory, match="1.0 MiB of pinned memory"):
        driver.pin(2**20)


def test_other_answers_name_what_was_done(use: Any) -> None:
    use()
    with pytest.raises(DeviceFault, match=r"launching k: .* ERROR_700 \(what it means\)"):
        driver.check((_ILLEGAL_ADDRESS,), "launching k")
    assert driver.check((0, 7), "asking") == 7


def test_code_of_another_architecture(use: Any) -> None:
    use()
    device = driver.open_device()
    with pytest.raises(BadTarget, match="older than all of them"):
        modules.Modules({"k.sm_100.cubin": b"", "k.ptx": b""}, device)
    with pytest.warns(RuntimeWarning, match="the driver compiles its PTX"):
        modules.Modules({"k.sm_80.cubin": b"", "k.ptx": b""}, device)
    assert modules.Modules({"k.sm_90.cubin": b""}, device).overlap
