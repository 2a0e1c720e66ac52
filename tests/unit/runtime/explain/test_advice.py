"""Sentences: what they blame, what they propose, how they are gathered."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.report.explanation import HostReport, Intermediate, KernelReport
from tilewright.report.explanation_text import nodes_text
from tilewright.report.profile import Profile
from tilewright.runtime.explain.advice import advise


def kernel(index: int = 0, **changes: Any) -> KernelReport:
    """A kernel at half of its roof."""
    given: dict[str, Any] = {
        "index": index,
        "code": f"code {index}",
        "name": "Conv",
        "nodes": (f"node{index}",),
        "operators": ("Conv",),
        "dtype": "float32",
        "types": "float32 -> float32",
        "layout": "row-major",
        "tactic": "contraction + elementwise",
        "schedule": "",
        "refused": (),
        "alternatives": (),
        "num_bytes": 2_000_000,
        "flops": 10**6,
        "bytes_formula": "",
        "flops_formula": "",
        "weight_bytes": 0,
        "intensity": 0.5,
        "calls": 1,
        "time_us": 100.0,
        "share": 0.5,
        "floor_us": 50.0,
        "limit": "float32 peak",
        "limits_us": {"float32 peak": 50.0},
        "headroom_us": 50.0,
        **changes,
    }
    given.setdefault("best_us", given["time_us"])
    return KernelReport(**given)


def only(*kernels: KernelReport, between: tuple[Intermediate, ...] = ()) -> str:
    steps, _ = advise(kernels, between, (), None)
    (step,) = steps
    return step.text


def test_a_kernel_below_its_peak_wants_a_better_schedule() -> None:
    text = only(kernel())
    assert text == (
        "Kernel #0 (node0) is bound by float32 arithmetic (50% reached); a better schedule of "
        "contraction for these sizes (`--time-budget` tunes) would save up to 0.050 ms of 0.100 ms."
    )


def test_far_from_its_roof_a_kernel_is_not_bound_by_it() -> None:
    text = only(kernel(floor_us=4.0, headroom_us=96.0))
    assert "is 25 times over the floor that float32 arithmetic sets; a better schedule" in text
    assert "bound" not in text


def test_a_kernel_without_a_floor_is_no_division() -> None:
    """All that it touches lies in the nearest cache, and it computes next to nothing."""
    text = only(kernel(floor_us=0.0, headroom_us=100.0))
    assert "is so small that no roof sets it a floor; " in text


def test_a_kernel_is_named_after_its_contraction() -> None:
    fused = kernel(
        nodes=("pad", "conv", "scale", "shift", "clip"),
        operators=("Pad", "Conv", "Mul", "Add", "Clip"),
    )
    assert "Kernel #0 (conv) is" in only(fused)
    assert nodes_text(fused) == "conv + 2 more + shift + clip"
    assert nodes_text(kernel()) == "node0"


def test_what_tuning_did_not_find_is_not_to_be_tuned_again() -> None:
    text = only(kernel(alternatives=(("contraction(lanes=16)", 100.0),)))
    assert "a better schedule of contraction for these sizes than tuning found would save" in text


def test_a_disturbed_run_is_no_reason_to_save() -> None:
    disturbed = kernel(time_us=1000.0, best_us=60.0, headroom_us=10.0)
    assert disturbed.roof_fraction == pytest.approx(50 / 60)
    assert "0.940 ms" not in advise([disturbed], (), (), None)[1][0].advice


def test_a_kernel_below_its_bandwidth_wants_to_move_its_bytes_once() -> None:
    text = only(kernel(limit="DRAM"))
    assert "bound by DRAM bandwidth (50% reached); moving its 2.0 MB once" in text


def test_scalar_code_is_blamed_with_the_reason() -> None:
    text = only(kernel(tactic="scalar", refused=(("elementwise", "no parallel axis"),)))
    assert "bound by scalar code" in text
    assert "a vector tactic (refused: elementwise: no parallel axis) would save" in text


def test_a_tiny_kernel_wants_a_neighbour() -> None:
    text = only(kernel(time_us=2.0, floor_us=0.5, headroom_us=1.5))
    assert "fusing it into a neighbour" in text


def test_a_kernel_on_its_roof_has_only_less_work_left() -> None:
    steps, said = advise([kernel(floor_us=95.0, headroom_us=5.0)], (), (), None)
    assert steps == []
    assert said[0].advice.endswith("only less work helps: a narrower type, or fewer channels.")


def test_a_kernel_on_its_roof_may_be_fused_with_its_reader() -> None:
    value = Intermediate(
        value="v", producer=0, consumer=1, num_bytes=100, reason="two anchors", price_us=7.0
    )
    near = kernel(floor_us=95.0, headroom_us=5.0)
    assert "fusing it with its reader #1 (refused: two anchors) would save up to 0.007 ms" in only(
        near, between=(value,)
    )


def test_kernels_of_the_same_code_are_one_step() -> None:
    steps, _ = advise([kernel(0, code="c"), kernel(1, code="c"), kernel(2)], (), (), None)
    assert [step.kernels for step in steps] == [(0, 1), (2,)]
    assert steps[0].text.startswith("2 kernels like #0 (node0) are bound by")
    assert steps[0].saves_us == pytest.approx(100.0)


def test_a_kernel_without_a_roof_has_no_advice() -> None:
    steps, said = advise([kernel(limit="", floor_us=None, headroom_us=None)], (), (), None)
    assert (steps, said[0].advice) == ([], "")


def test_an_interpreted_node_wants_a_kernel() -> None:
    host = HostReport(
        kind="Interpret",
        name="Unique",
        node="u",
        reason="there is no kernel",
        calls=1,
        time_us=40.0,
        share=0.1,
    )
    (step,), _ = advise((), (), (host,), None)
    assert step.text == (
        "Node u (Unique) runs in NumPy because there is no kernel; a kernel would save up to "
        "0.040 ms."
    )


def test_a_slow_runtime_is_named() -> None:
    profile = Profile(
        kernels=(),
        host=(),
        runtime_us=30.0,
        end_to_end_us=60.0,
        profiled_us=60.0,
        on_processor_us=60.0,
        runs=1,
        threads=1,
    )
    (step,), _ = advise((), (), (), profile)
    assert "takes 0.030 ms of 0.060 ms" in step.text
