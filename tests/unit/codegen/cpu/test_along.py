"""Short reductions along memory, a vector of their results at once."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.across import fold_lanes
from tilewright.codegen.cpu.emit import Builder, Value
from tilewright.codegen.cpu.scalar import combine
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import host_target
from tilewright.codegen.cpu.values import FLOAT, constant
from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Kernel, Stage, Store, call, reduce_axes
from tilewright.kernel.nest import prepare
from unit.codegen.cpu.lanes import Array, apply
from unit.codegen.cpu.native import run_native


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("copies", [1, 2])
def test_lane_i_is_the_sum_of_the_ith_register(size: int, copies: int) -> None:
    count = size * copies
    if count > 16:
        pytest.skip("wider than a register")

    def emit(b: Builder, args: list[Value]) -> Value:
        """Register i holds x[0 .. size] * (i + 1)."""
        part = b.shuffle(args[0], None, range(size))
        scaled = [b.mul(part, b.splat(constant(FLOAT, i + 1), size)) for i in range(count)]
        return fold_lanes(b, scaled, combine(b, "sum", FLOAT32))

    x = np.arange(1, count + 1, dtype=np.float32)
    result = apply(emit, [x], [FLOAT32], FLOAT32, count)
    np.testing.assert_array_equal(result, x[:size].sum() * np.arange(1, count + 1))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("count", [5, 16, 37])
@pytest.mark.parametrize("depth", [8, 24, 33])
@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_short_rows_in_vectors_of_results(
    stride: int, count: int, depth: int, combiner: str
) -> None:
    """What follows the reduction runs on vectors too; no result is left out or written twice."""
    x = Buffer("x", FLOAT32, (Dim.of(count), Dim.of(depth)))
    w = Buffer("w", FLOAT32, (Dim.of(depth),))
    out = Buffer("y", FLOAT32, (Dim.of(count * stride),))
    row, step = Axis("i", Dim.of(count)), Axis("r", Dim.of(depth))
    stores = tuple(
        Store(
            "y",
            (row.var * stride + phase,),
            call(
                "tanh",
                reduce_axes(combiner, (step,), x[row.var, step.var] * w[step.var]) + float(phase),
            ),
        )
        for phase in range(stride)
    )
    kernel = Kernel(name="rows", inputs=(x, w), outputs=(out,), stages=(Stage((row,), stores),))
    schedule, _ = choose(prepare(kernel, kernel.stages[0]), host_target())
    assert (schedule.tactic, schedule.vector) == ("row_reduction", "i")
    rng = np.random.default_rng(depth)
    feeds: dict[str, Array] = {
        "x": rng.standard_normal((count, depth)).astype(np.float32),
        "w": rng.standard_normal(depth).astype(np.float32) / 4,
    }
    found = run_native(kernel, feeds)["y"]
    np.testing.assert_allclose(found, interpret(kernel, feeds, {})["y"], rtol=2e-5, atol=2e-6)
