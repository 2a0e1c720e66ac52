"""Evaluation of expressions: what is computed once, what is not computed at all."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.dtypes import INT64
from tilewright.core.errors import OutOfRange
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Expr,
    Kernel,
    Stage,
    Store,
    call,
    dim_value,
    reduce_axes,
    select,
)
from tilewright.kernel.schedule import Schedule
from unit.codegen.cpu.kernels import KERNELS, K, M, N, R, buffer, pure
from unit.codegen.cpu.native import run_native

Feeds = dict[str, npt.NDArray[Any]]
FAR = 2**40
WIDE = named_target("znver4")
SIZES = {"m": 3, "n": 37, "k": 5}


def text(kernel: Kernel, *schedules: Schedule, target: CpuTarget = WIDE) -> str:
    return generate(kernel, target, schedules or None).text


def agrees(kernel: Kernel, feeds: Feeds, schedule: Schedule | None = None) -> None:
    found = run_native(kernel, feeds, SIZES, schedules=[schedule] if schedule else None)
    for name, want in interpret(kernel, feeds, SIZES).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)


# --- what is not computed -------------------------------------------------------------------------

VECTOR = Schedule(tactic="any", lanes=8, vector="i1", unroll={"i1": 2}, chunk=1, reduce_lanes=8)
ROWS = Schedule(
    tactic="any", lanes=8, vector="i1", unroll={"i1": 1, "i0": 2}, chunk=0, reduce_lanes=8
)
SCALAR = Schedule(tactic="any")
SCHEDULES = pytest.mark.parametrize("schedule", [VECTOR, ROWS, SCALAR], ids=["wide", "rows", "one"])


def _inside(place: Expr) -> Expr:
    return place.ge(0) & place.lt(dim_value(K))


@SCHEDULES
def test_lanes_that_are_not_chosen_read_nothing(schedule: Schedule) -> None:
    """Every lane has a condition of its own; what it forbids lies terabytes away."""
    x, places = buffer("x", K), buffer("places", M, N, dtype=INT64)

    def body(m: Expr, n: Expr) -> Expr:
        place = places[m, n]
        return select(_inside(place), x[place], -1.0)

    ids = np.where(np.random.default_rng(0).random((3, 37)) < 0.5, FAR, 2)
    ids[1] = -FAR
    feeds = {"x": np.arange(5, dtype=np.float32), "places": ids}
    agrees(pure(buffer("out", M, N), (x, places), body), feeds, schedule)


@SCHEDULES
def test_rows_that_are_not_chosen_read_nothing(schedule: Schedule) -> None:
    """One condition for all lanes, around a reduction and a vector of loads."""
    x, places = buffer("x", K, N), buffer("places", M, dtype=INT64)

    def body(m: Expr, n: Expr) -> Expr:
        place = places[m]
        far = reduce_axes("sum", (R,), x[place, n] * x[R.var, n])
        return select(_inside(place), far + x[place, n], x[0, n])

    feeds = {
        "x": np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32),
        "places": np.array([4, FAR, -FAR]),
    }
    agrees(pure(buffer("out", M, N), (x, places), body), feeds, schedule)


@SCHEDULES
def test_choices_inside_choices_and_reductions(schedule: Schedule) -> None:
    x, places = buffer("x", K), buffer("places", K, N, dtype=INT64)

    def body(m: Expr, n: Expr) -> Expr:
        place = places[R.var, n]
        inner = select(place.eq(m), 7.0, x[place])
        return reduce_axes("max", (R,), select(_inside(place), inner, 0.0))

    rng = np.random.default_rng(1)
    feeds = {
        "x": np.arange(5, dtype=np.float32),
        "places": np.where(rng.random((5, 37)) < 0.3, FAR, rng.integers(0, 5, (5, 37))),
    }
    agrees(pure(buffer("out", M, N), (x, places), body), feeds, schedule)


@SCHEDULES
def test_an_index_that_is_not_used_is_not_reported(schedule: Schedule) -> None:
    x, places = buffer("x", K), buffer("places", M, N, dtype=INT64)
    wanted = buffer("wanted", N, dtype=INT64)

    def body(m: Expr, n: Expr) -> Expr:
        place = call("checked_index", places[m, n], dim_value(K))
        return select(wanted[n].gt(0), x[place], 0.0)

    kernel = pure(buffer("out", M, N), (x, places, wanted), body)
    ids = np.zeros((3, 37), np.int64)
    ids[:, 20:] = FAR
    flags = (np.arange(37) < 20).astype(np.int64)
    x_values = np.arange(5, dtype=np.float32)
    feeds: Feeds = {"x": x_values, "places": ids, "wanted": flags}
    agrees(kernel, feeds, schedule)
    flags[36] = 1
    with pytest.raises(OutOfRange):
        run_native(kernel, feeds, SIZES, schedules=[schedule])


def test_a_reduction_that_is_not_chosen_is_not_run() -> None:
    """A branch that lanes do not differ in is a branch of the code."""
    x, flag = buffer("x", M, K), buffer("flag", M, dtype=INT64)
    total = reduce_axes("sum", (R,), x[Axis("i0", M).var, R.var])
    kernel = pure(buffer("out", M), (x, flag), lambda m: select(flag[m].gt(0), total, 0.0))
    code = text(kernel, SCALAR)
    assert re.search(r"br i1 .*then", code)
    feeds = {"x": np.ones((3, 5), np.float32), "flag": np.array([1, 0, 1])}
    agrees(kernel, feeds, SCALAR)


# --- what is computed once ------------------------------------------------------------------------


def test_a_shared_expression_is_computed_once_for_each_copy() -> None:
    x = buffer("x", 64)

    def body(n: Expr) -> Expr:
        root = call("sqrt", x[n])
        return root * root + root

    for copies in (1, 2, 4):
        schedule = Schedule(
            tactic="any", lanes=8, vector="i0", unroll={"i0": copies}, chunk=1, reduce_lanes=1
        )
        whole = text(pure(buffer("out", 64), (x,), body), schedule)
        assert whole.count("@llvm.sqrt.v8f32(<8 x float>") == copies + 1  # and its declaration


def test_what_lanes_share_is_a_scalar() -> None:
    x, scale = buffer("x", M, N), buffer("scale", M)
    kernel = pure(buffer("out", M, N), (x, scale), lambda m, n: x[m, n] * call("sqrt", scale[m]))
    code = text(kernel, VECTOR)
    assert "@llvm.sqrt.f32" in code
    assert "@llvm.sqrt.v8f32" not in code


def test_copies_share_what_they_do_not_distinguish() -> None:
    """A tile of 3 rows x 2 vectors loads 3 scalars and 2 vectors for 6 products."""
    schedule = Schedule(
        tactic="any", lanes=8, vector="i1", unroll={"i1": 2, "i0": 3}, chunk=1, reduce_lanes=1
    )
    a, b = buffer("a", 3, K), buffer("b", K, 16)
    kernel = pure(
        buffer("out", 3, 16),
        (a, b),
        lambda m, n: reduce_axes("sum", (R,), a[m, R.var] * b[R.var, n]),
    )
    code = text(kernel, schedule)
    body = re.search(r"loop\d+:.*?latch\d+:", code[code.index("alloca") :], re.DOTALL)
    assert body is not None
    assert code.count("call <8 x float> @llvm.fma") == 6
    inner = code[: code.index("@llvm.fma")].rsplit("loop", 1)[1] + code.split("@llvm.fma", 1)[1]
    assert len(re.findall(r"load float, ptr", inner)) == 3


def test_reductions_are_one_loop_for_all_copies() -> None:
    x = buffer("x", M, K)
    kernel = pure(buffer("out", M), (x,), lambda m: reduce_axes("max", (R,), x[m, R.var]))
    one = text(kernel, Schedule(tactic="any", unroll={"i0": 1}))
    four = text(kernel, Schedule(tactic="any", unroll={"i0": 4}))
    assert four.count("!llvm.loop !") == one.count("!llvm.loop !")


def test_stores_are_seen_by_later_stores_of_a_point() -> None:
    """A stage that reads what it stores evaluates its stores one after another."""
    x, total, copy = buffer("x", M, N), buffer("total", M, N), buffer("copy", M, N)
    m, n = Axis("i0", M), Axis("i1", N, ordered=True)
    at = (m.var, n.var)
    before = select(n.var.eq(0), 0.0, total[m.var, n.var - 1])
    stores = (Store("total", at, before + x[at]), Store("copy", at, total[at] * 2.0))
    kernel = Kernel(name="k", inputs=(x,), outputs=(total, copy), stages=(Stage((m, n), stores),))
    agrees(kernel, {"x": np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)})


# --- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("size", [0, 1, 3, 16, 70])
def test_lanes_of_a_reduction_are_combined(combiner: str, lanes: int, size: int) -> None:
    x = buffer("x", M, K)
    kernel = pure(buffer("out", M), (x,), lambda m: reduce_axes(combiner, (R,), x[m, R.var]))
    schedule = Schedule(tactic="any", reduce_lanes=lanes, unroll={"i0": 2})
    feeds = {"x": np.random.default_rng(size).uniform(0.9, 1.1, (3, size)).astype(np.float32)}
    sizes = {"m": 3, "k": size}
    found = run_native(kernel, feeds, sizes, schedules=[schedule], target=host_target())
    want = interpret(kernel, feeds, sizes)
    np.testing.assert_allclose(found["out"], want["out"], rtol=1e-5)


def test_a_maximum_keeps_nan_from_any_lane() -> None:
    x = buffer("x", M, K)
    kernel = pure(buffer("out", M), (x,), lambda m: reduce_axes("max", (R,), x[m, R.var]))
    for place in (0, 17, 40, 69):
        values = np.zeros((1, 70), np.float32)
        values[0, place] = np.nan
        schedule = Schedule(tactic="any", reduce_lanes=16)
        found = run_native(kernel, {"x": values}, {"m": 1, "k": 70}, schedules=[schedule])
        assert np.isnan(found["out"][0])


def test_every_kernel_keeps_its_local_variables_in_the_entry_block() -> None:
    """There they become registers; elsewhere they would be memory, anew in each iteration."""
    for function in KERNELS.values():
        for part in text(function()).split("define ")[1:]:
            after = part.split("entry:", 1)[1].split(":", 1)[-1]
            assert "alloca" not in after


def test_copies_of_a_row_share_its_address() -> None:
    """What they lie behind it is a constant, though the number of rows is not known."""
    a, b, step = buffer("a", M, 16), buffer("b", 16, 16), Axis("r", Dim.of(16))
    kernel = pure(
        buffer("out", M, 16),
        (a, b),
        lambda m, i: reduce_axes("sum", (step,), a[m, step.var] * b[step.var, i]),
    )

    def products(rows: int) -> int:
        unroll = {"i1": 1, "i0": rows}
        schedule = Schedule(tactic="contraction", lanes=16, vector="i1", unroll=unroll)
        return text(kernel, schedule).count(" mul i64")

    assert products(12) == products(6)
