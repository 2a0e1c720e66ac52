"""Plans of segments for a GPU, and which code a GPU runs."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.runtime.cuda.modules import choose_arch
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.hazards import Work
from tilewright.runtime.program import KernelCall, Launch, Segment, StageCall, TensorSpec

N = Dim.symbol("n")
ONE = Dim.of(1)


def _spec(name: str, *shape: Dim) -> TensorSpec:
    return TensorSpec(name=name, dtype=FLOAT32, shape=shape)


def _call(*buffers: str, steps: Dim | None = None) -> KernelCall:
    launch = Launch(symbol="stage_0", grid=(N.ceildiv(128), ONE, ONE), threads=128)
    return KernelCall(
        kernel="k",
        name="k",
        sources=("node",),
        buffers=buffers,
        dims=(N,),
        stages=(launch,),
        steps=steps,
    )


def _segment(*calls: KernelCall) -> Segment:
    return Segment(
        calls=calls,
        inputs=(_spec("w", N), _spec("x", N)),
        outputs=(_spec("y", N),),
        internal=(_spec("a", N), _spec("b", N)),
        aliases={"c": "a"},
    )


CHAIN = (_call("x", "w", "a"), _call("c", "b"), _call("b", "y"))


def test_buffers_lie_apart_and_aligned() -> None:
    plan = CudaPlan(_segment(*CHAIN), {"n": 100}, {"w": np.zeros(100, np.float32)})
    assert sorted(plan.offsets) == ["a", "b"]
    assert all(offset % 256 == 0 for offset in plan.offsets.values())
    assert len(set(plan.offsets.values())) == 2
    assert plan.arena_bytes == 1024
    assert [spec.name for spec in plan.inputs] == ["x"]
    assert plan.steps[1].buffers == ("a", "b")
    assert plan.steps[0].grid == (1, 1, 1)


def test_empty_grids_are_not_launched() -> None:
    assert CudaPlan(_segment(*CHAIN), {"n": 0}, {}).steps == []


def test_all_stages_run_once_for_each_step() -> None:
    call = _call("x", "w", "y", steps=Dim.of(3))
    plan = CudaPlan(_segment(call), {"n": 5}, {})
    assert [step.step for step in plan.steps] == [0, 1, 2]


def test_the_schedule_names_copies_and_kernels() -> None:
    plan = CudaPlan(_segment(*CHAIN), {"n": 5}, {})
    names = [work.name for work in plan.schedule() if isinstance(work, Work)]
    assert names[:2] == ["copy w in", "copy x in"]
    assert names[-1] == "copy y out"


def test_a_segment_for_the_cpu_is_refused() -> None:
    call = KernelCall(
        kernel="k",
        name="k",
        sources=(),
        buffers=("x", "y"),
        dims=(),
        stages=(StageCall(symbol="stage_0", iterations=N, cost=N),),
    )
    with pytest.raises(InternalError, match="not compiled for a GPU"):
        CudaPlan(_segment(call), {"n": 5}, {})


def test_a_gpu_runs_code_of_its_family_that_is_not_newer() -> None:
    assert choose_arch({80, 90, 100}, 90) == 90
    assert choose_arch({80, 90}, 86) == 80
    assert choose_arch({80, 86}, 89) == 86
    assert choose_arch({80, 90}, 100) is None
    assert choose_arch({90}, 80) is None
