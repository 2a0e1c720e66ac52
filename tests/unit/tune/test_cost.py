"""Predictions rank schedules as they should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.codegen.cpu.space import space
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import named_target
from tilewright.kernel.nest import Nest, prepare
from tilewright.tune.candidates import candidates
from tilewright.tune.cost import predict_us
from unit.codegen.cpu.kernels import KERNELS

WIDE, NARROW = named_target("znver4"), named_target("haswell")
SIZES = {"b": 2, "m": 56, "n": 128, "k": 256}


def nest(name: str) -> Nest:
    kernel = KERNELS[name]()
    return prepare(kernel, kernel.stages[-1])


def predicted(rows: int, sizes: dict[str, int] | None = None) -> float:
    own = nest("matmul")
    first = choose(own, WIDE)[0]
    name = next(name for name in first.unroll if name != first.vector)
    schedule = replace(first, unroll={**first.unroll, name: rows})
    return predict_us(own, schedule, WIDE, SIZES if sizes is None else sizes)


def test_tiles_that_reuse_operands_are_predicted_to_be_faster() -> None:
    assert predicted(14) < predicted(4) < predicted(1)


def test_a_tile_that_divides_the_rows_beats_one_that_leaves_a_rest() -> None:
    assert predicted(14, {**SIZES, "m": 14}) < predicted(13, {**SIZES, "m": 14})


def test_predictions_grow_with_sizes_and_do_without_them() -> None:
    assert predicted(14) < predicted(14, {**SIZES, "m": 560})
    assert predicted(14, {}) > 0


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("target", [WIDE, NARROW], ids=lambda target: target.name)
def test_everything_can_be_predicted(name: str, target: object) -> None:
    own = nest(name)
    for schedule in space(own, WIDE if target is WIDE else NARROW):
        assert 0 < predict_us(own, schedule, WIDE, {}) < 1e6


def test_candidates_are_the_promising_ones_without_the_formula_s() -> None:
    own = nest("matmul")
    formula, *others = space(own, WIDE)
    found = candidates(own, WIDE, sizes=SIZES)
    times = [predict_us(own, schedule, WIDE, SIZES) for schedule in found]
    assert 0 < len(found) <= 24
    assert len(found) < len(others)
    assert formula not in found
    assert times == sorted(times)
    assert found == candidates(own, WIDE, sizes=SIZES)
