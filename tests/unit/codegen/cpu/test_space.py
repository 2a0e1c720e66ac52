"""Spaces of schedules: legal, each once, all of one value; what is illegal says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.cpu.space import illegal, space
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, reduce_axes
from tilewright.kernel.nest import Nest, prepare
from tilewright.kernel.schedule import Schedule
from unit.codegen.cpu.kernels import KERNELS, buffer, feeds_for, pure
from unit.codegen.cpu.native import run_native

WIDE, NARROW, ARM = map(named_target, ("znver4", "haswell", "neoverse-v1"))
SIZES = {"b": 3, "m": 11, "n": 21, "k": 19}


def nest(name: str) -> Nest:
    kernel = KERNELS[name]()
    return prepare(kernel, kernel.stages[-1])


@pytest.mark.parametrize("target", [WIDE, NARROW, ARM], ids=lambda target: target.name)
@pytest.mark.parametrize("name", KERNELS)
def test_a_space_begins_with_the_formula_and_is_legal(name: str, target: CpuTarget) -> None:
    found = space(nest(name), target)
    assert found[0] == choose(nest(name), target)[0]
    assert len({schedule.text for schedule in found}) == len(found)
    assert {illegal(schedule, nest(name), target) for schedule in found} == {None}
    assert found == space(nest(name), target)


def test_sums_of_products_have_large_spaces_and_ordered_nests_have_none() -> None:
    assert len(space(nest("matmul"), WIDE)) > len(space(nest("matmul"), NARROW)) > 20
    assert len(space(nest("running_sum"), WIDE)) == 1
    assert len(space(nest("one_number"), WIDE)) == 1


def test_a_disabled_tactic_is_in_no_space() -> None:
    found = space(nest("matmul"), WIDE, ("contraction",))
    assert "contraction" not in {schedule.tactic for schedule in found}


@pytest.mark.parametrize(
    ("kernel", "change", "reason"),
    [
        ("matmul", {"unroll": {"i9": 2}}, "there is no axis i9"),
        ("matmul", {"vector": "i9"}, "there is no axis i9"),
        ("running_sum", {"unroll": {"i0": 2}}, "is ordered"),
        ("matmul", {"lanes": 12}, "12 lanes: not a power of two"),
        ("matmul", {"lanes": 32}, "32 lanes do not fit a vector of 64 bytes"),
        ("matmul", {"vector": None}, "lanes without a vector axis"),
        ("matmul", {"chunk": -1}, "a negative chunk"),
        ("matmul", {"depth": 0}, "a depth of 0"),
        ("matmul", {"unroll": {"i0": 0}}, "0 copies of i0"),
        ("matmul", {"outer": ("i0",), "unroll": {}}, "an outer axis is not one of the rows"),
        ("matmul", {"unroll": {"i0": 16, "i1": 2}}, "34 registers are needed, there are 32"),
    ],
)
def test_what_is_illegal_has_a_reason(kernel: str, change: dict[str, Any], reason: str) -> None:
    first = choose(nest(kernel), WIDE)[0]
    fields = {name: getattr(first, name) for name in Schedule.__dataclass_fields__}
    found = illegal(Schedule(**{**fields, **change}), nest(kernel), WIDE)
    assert found is not None
    assert reason in found


def test_more_copies_than_an_axis_has_are_illegal() -> None:
    own = nest("transpose")
    short = next(axis for axis in own.axes if axis.extent.is_const)
    found = illegal(Schedule(tactic="scalar", unroll={short.name: 99}), own, WIDE)
    assert found == f"99 copies of {short.name}, which has {short.extent.const}"


@pytest.mark.parametrize("name", ["matmul", "convolution", "softmax", "transpose", "row_sum"])
def test_schedules_do_not_change_what_is_computed(name: str) -> None:
    kernel = KERNELS[name]()
    feeds = feeds_for(kernel, SIZES)
    expected = run_native(kernel, feeds, SIZES)
    spaces = [space(prepare(kernel, stage), host_target()) for stage in kernel.stages]
    for number in {1, 7, 23, 60} | {max(map(len, spaces)) - 1}:
        schedules = [own[min(number, len(own) - 1)] for own in spaces]
        found = run_native(kernel, feeds, SIZES, schedules=schedules, parts=2)
        for output, value in expected.items():
            np.testing.assert_allclose(found[output], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 6, 12, 1030, 2048])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_steps_in_a_round_do_not_change_a_bit(size: int, depth: int) -> None:
    """Also of sums that are long enough to be added up in blocks."""
    x, y = buffer("x", 5, size), buffer("y", size, 16)
    r = Axis("r", Dim.of(size))
    kernel = pure(
        buffer("out", 5, 16),
        (x, y),
        lambda m, n: reduce_axes("sum", (r,), x[m, r.var] * y[r.var, n]),
    )
    first = choose(prepare(kernel, kernel.stages[0]), host_target())[0]
    feeds = feeds_for(kernel, {})
    expected = run_native(kernel, feeds, schedules=[replace(first, depth=1)])["out"]
    found = run_native(kernel, feeds, schedules=[replace(first, depth=depth)])["out"]
    np.testing.assert_array_equal(found, expected)
