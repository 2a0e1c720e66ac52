"""Engines for a GPU on a driver without one: arrays on the device, graphs, streams, errors."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import (
    BadOption,
    BadTarget,
    DeviceFault,
    OutOfMemory,
    OutOfRange,
    ShapeMismatch,
)
from tilewright.core.shape import Dim
from tilewright.runtime.cuda import (
    arrays,
    context,
    driver,
    executor,
    graph,
    memory,
    modules,
    timing,
    weights,
)
from tilewright.runtime.cuda.arrays import DeviceArray
from tilewright.runtime.engine import Engine
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.program import KernelCall, Launch, Program, Reshape, Segment, TensorSpec
from unit.runtime.cuda.fake_driver import ILLEGAL_ADDRESS, FakeDriver, floats

pytestmark = pytest.mark.usefixtures("fake")

N, ONE = Dim.symbol("n"), Dim.of(1)
OWN = 7  # a stream of the caller


def _add(a: int, w: int, out: int, n: int, *_: int) -> None:
    floats(out, n)[:] = floats(a, n) + floats(w, 1)[0]


def _double(a: int, out: int, n: int, _: int, status: int, number: int) -> None:
    floats(out, n)[:] = 2 * floats(a, n)
    if status and floats(a, n)[0] < 0:
        ctypes.c_int32.from_address(status).value = number + 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver({"add": _add, "double": _double})
    for module in (arrays, context, driver, executor, graph, memory, modules, timing, weights):
        monkeypatch.setattr(module, "bindings", lambda: made)
    driver.open_device.cache_clear()
    yield made
    gc.collect()  # engines give back what they have while there is a driver
    driver.open_device.cache_clear()


def _spec(name: str, *shape: Dim) -> TensorSpec:
    return TensorSpec(name=name, dtype=FLOAT32, shape=shape)


def _call(symbol: str, *buffers: str, checked: bool = False) -> KernelCall:
    launch = Launch(symbol=symbol, grid=(N.ceildiv(128), ONE, ONE), threads=128, checked=checked)
    return KernelCall(
        kernel="k",
        name=f"kernel_{symbol}",
        sources=(f"node_{symbol}",),
        buffers=buffers,
        dims=(N,),
        stages=(launch,),
        traffic=(4 * N,) * len(buffers),
        flops=N,
        dtype="float32",
    )


def _engine(*, checked: bool = False, **options: Any) -> Engine:
    """y = 2 (x + 1) in one segment, z = 2 y in another."""
    first = Segment(
        calls=(_call("add", "x", "w", "a"), _call("double", "a", "y", checked=checked)),
        inputs=(_spec("x", N), _spec("w", ONE)),
        outputs=(_spec("y", N),),
        internal=(_spec("a", N),),
    )
    flat = Reshape(source="y", target=_spec("flat", N, ONE))
    second = Segment(
        calls=(_call("double", "flat", "z"),),
        inputs=(_spec("flat", N, ONE),),
        outputs=(_spec("z", N),),
        internal=(),
    )
    program = Program(
        inputs=(_spec("x", N),),
        outputs=(_spec("y", N), _spec("z", N)),
        steps=(first, flat, second),
    )
    parts = EngineParts(
        program=program,
        constants={"w": np.ones(1, np.float32)},
        objects={},
        device_code={"k.sm_90.cubin": b"code"},
        exports={"k": ("add", "double")},
        info={"archs": ("sm_90",), "cpu": "sm_90", "threads": 1},
    )
    return Engine(parts, **options)


def _x(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


class _Other:
    """An array of another library."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array


class _WithDlpack(_Other):
    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream)


class _WithInterface(_Other):
    changes: dict[str, Any]

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        super().__init__(array)
        self.changes = changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, **self.changes}


# --- results --------------------------------------------------------------------------------------


def test_arrays_of_the_host_give_arrays_of_the_host(fake: FakeDriver) -> None:
    engine = _engine()
    for size in (3, 5, 3):
        x = np.arange(size, dtype=np.float32)
        found = engine.run({"x": x})
        np.testing.assert_array_equal(found["y"], 2 * (x + 1))
        np.testing.assert_array_equal(found["z"], 4 * (x + 1))
    assert fake.count("cuMemcpyDtoHAsync") == 6  # the outputs alone, not what is between segments


def test_results_stay_on_the_device_when_asked(fake: FakeDriver) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1, 2, 3)})
    first = engine.run_on_device(x)
    fake.calls.clear()
    second = engine.run_on_device({"x": first["y"]})
    assert not [name for name in fake.calls if "Memcpy" in name]
    np.testing.assert_array_equal(second["y"].numpy(), [10, 14, 18])
    np.testing.assert_array_equal(np.asarray(first["z"]), [8, 12, 16])
    assert (second["y"].shape, second["y"].ndim, second["y"].nbytes) == ((3,), 1, 12)


def test_results_that_are_in_use_keep_their_memory(fake: FakeDriver) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1)})
    kept = [engine.run_on_device(x)["y"] for _ in range(9)]
    assert len({array.address for array in kept}) == 9
    allocations = fake.count("cuMemAlloc")
    del kept
    assert engine.run_on_device(x)["y"].numpy() == 4
    assert fake.count("cuMemAlloc") == allocations


def test_a_graph_is_captured_once_and_changed_for_other_buffers(fake: FakeDriver) -> None:
    engine = _engine()
    inputs = [engine.to_device({"x": _x(number)}) for number in range(9)]
    for feeds in inputs:
        engine.run_on_device(feeds)
    assert fake.count("cuStreamEndCapture") <= 8  # 4 graphs of each segment
    assert fake.count("cuGraphExecKernelNodeSetParams") > 0
    for number, feeds in enumerate(inputs):
        assert engine.run_on_device(feeds)["z"].numpy() == 4 * (number + 1)


def test_a_named_stream_is_not_waited_for(fake: FakeDriver) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1, 2)})
    engine.run_on_device(x, stream=OWN)
    fake.calls.clear()
    found = engine.run_on_device(x, stream=OWN)["y"]
    assert not [name for name in fake.calls if "Synchronize" in name or "Event" in name]
    assert found.stream == OWN
    np.testing.assert_array_equal(found.numpy(), [4, 6])
    assert found.stream is None


def test_other_streams_wait_for_results_and_for_memory(fake: FakeDriver) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1, 2)})
    found = engine.run_on_device(x, stream=OWN)
    fake.calls.clear()
    engine.run_on_device({"x": found["y"]}, stream=OWN + 1)
    assert fake.count("cuStreamWaitEvent") >= 1
    del found
    fake.calls.clear()
    engine.run_on_device(x, stream=OWN + 2)
    assert fake.count("cuStreamWaitEvent") >= 1


# --- arrays of other libraries --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [_WithDlpack, _WithInterface])
def test_arrays_of_other_libraries_are_used_in_place(fake: FakeDriver, kind: Any) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1, 2, 3)})["x"]
    engine.run_on_device({"x": x})
    fake.calls.clear()
    found = engine.run_on_device({"x": kind(x)})
    assert not [name for name in fake.calls if "Memcpy" in name]
    np.testing.assert_array_equal(found["y"].numpy(), [4, 6, 8])
    np.testing.assert_array_equal(engine.run({"x": kind(x)})["y"], [4, 6, 8])


def test_a_capsule_keeps_its_array(fake: FakeDriver) -> None:
    engine = _engine()
    array = engine.run_on_device({"x": _x(1, 2)})["y"]
    address, capsule = array.address, array.__dlpack__(stream=1)
    del array
    assert engine.run_on_device({"x": _x(5, 6)})["y"].address != address
    del capsule
    engine.run_on_device({"x": _x(5, 6)})
    assert fake.count("cuStreamWaitEvent") >= 1  # the reader's stream is waited for


def test_what_cannot_be_used_in_place_is_refused() -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1, 2, 3)})["x"]
    with pytest.raises(ShapeMismatch, match="row-major array"):
        engine.run_on_device({"x": _WithInterface(x, strides=(8,))})
    with pytest.raises(ShapeMismatch, match="expected float32, given float64"):
        engine.run_on_device({"x": _WithInterface(x, typestr="<f8")})
    with pytest.raises(ShapeMismatch, match="rank 1"):
        engine.run_on_device({"x": x.reshape((3, 1))})

    class _Elsewhere(_WithDlpack):
        def __dlpack__(self, *, stream: int | None = None) -> Any:
            raise BufferError("requires grad")

    with pytest.raises(ShapeMismatch, match="cannot be shared: requires grad"):
        engine.run_on_device({"x": _Elsewhere(x)})


def test_an_array_of_another_gpu_is_refused(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1)})["x"]
    monkeypatch.setattr(fake, "cuPointerGetAttribute", lambda *_: (0, 3))
    with pytest.raises(ShapeMismatch, match="lies on GPU 3, the engine runs on GPU 0"):
        engine.run_on_device({"x": _WithInterface(x)})


def test_a_part_of_an_array_may_begin_anywhere(fake: FakeDriver) -> None:
    engine = _engine()
    x = engine.to_device({"x": _x(1, 2, 3)})["x"]
    part = _WithInterface(x, data=(x.address + 4, False), shape=(2,))
    np.testing.assert_array_equal(engine.run_on_device({"x": part})["y"].numpy(), [6, 8])
    assert fake.count("cuMemcpyDtoDAsync") == 1


# --- errors ---------------------------------------------------------------------------------------


def test_an_index_out_of_range_is_reported_once_whatever_the_stream() -> None:
    engine = _engine(checked=True)
    for stream in (None, OWN):
        with pytest.raises(OutOfRange) as caught:
            engine.run_on_device({"x": _x(-5)}, stream=stream)["y"].numpy()
        assert caught.value.node == "node_double"
        assert engine.run_on_device({"x": _x(1)}, stream=stream)["y"].numpy() == 4
    with pytest.raises(OutOfRange):
        engine.run({"x": _x(-5)})
    assert engine.run({"x": _x(1)})["y"] == 4


def test_on_a_stream_whoever_reads_a_result_learns_that_it_failed(fake: FakeDriver) -> None:
    engine = _engine(checked=True)
    bad, good = (engine.to_device({"x": _x(value)}) for value in (-5, 1))
    fake.calls.clear()
    failed = engine.run_on_device(bad, stream=OWN)
    fine = engine.run_on_device(good, stream=OWN)
    later = engine.run_on_device({"x": failed["y"]}, stream=OWN)
    assert fake.count("cuStreamSynchronize") <= 1  # the weights'
    assert fine["y"].numpy() == 4
    for array in (failed["y"], later["z"]):
        with pytest.raises(OutOfRange):
            array.numpy()
        with pytest.raises(OutOfRange):
            array.__dlpack__(stream=1)


def test_a_fault_names_kernels_and_shapes(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine()
    fake.fails["add"] = ILLEGAL_ADDRESS
    with pytest.raises(DeviceFault, match=r"ERROR_700 .* one of the kernels .*; shapes: "):
        engine.run({"x": _x(1, 2)})
    fake.status = 0
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(
        DeviceFault, match=r"add of kernel_add \(1 x 1 x 1 blocks of 128 .*x \[2\], y \[2\]"
    ):
        _engine().run({"x": _x(1, 2)})


def test_full_memory_frees_what_is_idle_first(fake: FakeDriver) -> None:
    engine = _engine()
    engine.run({"x": np.ones(40_000, np.float32)})
    fake.free_bytes = 300_000
    assert engine.run({"x": np.ones(10_000, np.float32)})["y"][0] == 4
    fake.free_bytes = 1000
    with pytest.raises(OutOfMemory, match=r"MiB are free"):
        engine.run({"x": np.ones(1_000_000, np.float32)})


def test_a_gpu_is_chosen_by_number() -> None:
    with pytest.raises(BadTarget, match="GPU 1 of 1"):
        _engine(device=1).run({"x": _x(1)})
    with pytest.raises(BadOption, match="device"):
        _engine(device=-1)


def test_everything_is_freed_with_the_engine(fake: FakeDriver) -> None:
    before = fake.free_bytes
    engine = _engine()
    found = engine.run_on_device({"x": _x(1, 2)}, stream=OWN)
    del engine
    np.testing.assert_array_equal(found["y"].numpy(), [4, 6])
    del found
    assert fake.free_bytes == before


def test_a_profile_has_every_kernel() -> None:
    profile = _engine().profile({"x": _x(1, 2)}, runs=2)
    names = [step.name for step in profile.kernels]
    assert names == ["kernel_add", "kernel_double", "kernel_double"]
    assert [step.calls for step in profile.kernels] == [1, 1, 1]
    assert [step.kind for step in profile.host] == ["Reshape"]
    assert profile.kernels[0].microseconds == pytest.approx(1.0)  # by the driver's clock
    assert profile.sum_us == pytest.approx(profile.end_to_end_us)
    assert "kernel_add" in profile.text()


def test_an_engine_explains_itself_by_the_board_it_runs_on() -> None:
    explanation = _engine().explain({"x": _x(1, 2)}, runs=1)
    assert "H200" in explanation.text()


def test_threads_run_at_once() -> None:
    engine = _engine()
    xs = [np.full(50, number, np.float32) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: engine.run({"x": x})["z"], xs))
    for x, z in zip(xs, found, strict=True):
        np.testing.assert_array_equal(z, 4 * (x + 1))
