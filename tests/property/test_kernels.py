"""Random kernels: native code equals the interpreter, whatever the schedule, size and processor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from property.fenced import Trespass, run_fenced
from property.kernels import Array, Case, generate
from tilewright.codegen.cpu.tactics import TACTICS
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core import dtypes
from tilewright.core.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, INT64, DType
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Kernel, Stage, Store, cast
from tilewright.kernel.nest import Nest, prepare
from tilewright.kernel.schedule import Schedule
from tilewright.kernel.text import print_kernel
from tilewright.kernel.verify import verify
from tilewright.runtime.cpu.host import missing_features

_BATCHES = 12
_SIZE = 25
_FIRST_SEED = 5_000_000
_PARTS = (1, 2, 3, 7)


def ways(case: Case, rng: random.Random) -> Iterator[list[Schedule]]:
    """Schedules of all stages: the chosen ones, each tactic where it fits, and any legal ones."""
    nests = [prepare(case.kernel, stage) for stage in case.kernel.stages]
    seen: set[tuple[str, ...]] = set()
    for tactic in TACTICS:
        made = [tactic(nest, host_target()) for nest in nests]
        chosen = [
            schedule if isinstance(schedule, Schedule) else TACTICS[-1](nest, host_target())
            for schedule, nest in zip(made, nests, strict=True)
        ]
        if any(any(axis.ordered for axis in nest.axes) for nest in nests):
            chosen = [_chosen(nest) for nest in nests]
        found = [schedule for schedule in chosen if isinstance(schedule, Schedule)]
        key = tuple(schedule.text for schedule in found)
        if key not in seen:
            seen.add(key)
            yield found
    for _ in range(3):
        yield [any_schedule(nest, rng) for nest in nests]


def _chosen(nest: Nest) -> Schedule:
    for tactic in TACTICS:
        schedule = tactic(nest, host_target())
        if isinstance(schedule, Schedule):
            return schedule
    raise AssertionError("the last tactic never refuses")


def any_schedule(nest: Nest, rng: random.Random) -> Schedule:
    """Any legal schedule, sensible or not."""
    wide = rng.choice((1, 2, 4, 8, 16))
    if any(axis.ordered for axis in nest.axes):
        return Schedule(tactic="any", reduce_lanes=wide)
    names = [axis.name for axis in nest.axes]
    vector = rng.choice([None, *names, *names])
    rows = [name for name in names if name != vector and rng.random() < 0.5]
    unroll = {name: rng.randint(1, 4) for name in rows}
    if vector is not None:
        unroll[vector] = rng.randint(1, 3)
    return Schedule(
        tactic="any",
        lanes=rng.choice((2, 4, 8, 16)) if vector else 1,
        vector=vector,
        unroll=unroll,
        outer=tuple(name for name in rows if rng.random() < 0.4),
        chunk=rng.randint(0, 3) if vector else 0,
        reduce_lanes=wide,
    )


def run(
    case: Case, target: CpuTarget, schedules: list[Schedule] | None, parts: int
) -> dict[str, Array]:
    """Compiles and calls all stages, in parts as threads would."""
    return run_fenced(case.kernel, case.feeds, case.sizes, target, schedules, parts)


def difference(
    case: Case, found: Mapping[str, Array], narrow: Mapping[str, Array], wide: Mapping[str, Array]
) -> str:
    """What is wrong with the outputs, or nothing."""
    for name, want in narrow.items():
        got = found[name]
        if want.dtype.kind not in "fV" or want.dtype.name.startswith(("int", "uint")):
            if not np.array_equal(got, want):
                return f"{name}: {_first(got, want)}"
            continue
        a, b, c = (part.astype(np.float64) for part in (got, want, wide[name]))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if case.exact and np.array_equal(b, c, equal_nan=True):
            allowed = 0.0
        else:
            usual = np.isfinite(b) & np.isfinite(c)
            finite = np.abs(np.where(usual, b, 0.0) - np.where(usual, c, 0.0))
            scale = np.max(np.where(np.isfinite(b), np.abs(b), 0.0), initial=0.0)
            step = {2: 2.0**-7, 4: 2.0**-19, 8: 2.0**-22}.get(want.dtype.itemsize, 0.3)
            allowed = 8 * float(np.max(finite, initial=0.0)) + step * float(scale)
        with np.errstate(invalid="ignore"):
            wrong = ~same & ~(np.abs(a - b) <= allowed)
        if wrong.any():
            return f"{name}: allowed {allowed:.3g}, {_first(got, want, wrong)}"
    return ""


def _first(got: Array, want: Array, wrong: Array | None = None) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    wrong = np.asarray(got != want) if wrong is None else wrong
    place = tuple(int(index[0]) for index in np.nonzero(wrong))
    some = f"{int(wrong.sum())} of {got.size} differ"
    return f"{some}, at {list(place)} {got[place]}, expected {want[place]}"


def check(seed: int) -> str:
    """Compiles the kernel of a seed in many ways; says what is wrong, or nothing."""
    case = generate(seed)
    rng = random.Random(seed)
    verify(case.kernel)
    narrow = interpret(case.kernel, case.feeds, case.sizes)
    wide = interpret(case.kernel, case.feeds, case.sizes, wide=True)
    old = named_target("haswell")
    plans: list[tuple[CpuTarget, list[Schedule] | None]] = [
        (host_target(), schedules) for schedules in ways(case, rng)
    ]
    if not missing_features(old.triple, old.required_features):
        plans.append((old, None))
    for target, schedules in plans:
        try:
            found = run(case, target, schedules, rng.choice(_PARTS))
        except (InternalError, Trespass) as error:
            wrong = f"{type(error).__name__}: {error}"
        else:
            wrong = difference(case, found, narrow, wide)
        if wrong:
            how = [schedule.text for schedule in schedules or ()]
            return (
                f"seed {seed}, {target.name}, {how}, sizes {case.sizes}: {wrong}\n"
                + print_kernel(case.kernel)
            )
    return ""


@pytest.mark.parametrize(
    "dtype", [*dtypes.ALL[1:6], INT32, BFLOAT16, FLOAT16, BOOL, FLOAT32], ids=str
)
@pytest.mark.parametrize("source_type", [FLOAT32, INT64], ids=str)
@pytest.mark.parametrize("extent", [1, 5, 9, 17, 33, 65])
def test_a_tail_of_one_lane_writes_one_element(
    dtype: DType, extent: int, source_type: DType
) -> None:
    """The compiler behind us may widen the store of a narrowed value (x86, LLVM 22)."""
    row, axis = Axis("n", Dim.symbol("rows")), Axis("i", Dim.of(extent))
    shape = (row.extent, axis.extent)
    source, out = Buffer("x", source_type, (axis.extent,)), Buffer("y", dtype, shape)
    store = Store("y", (row.var, axis.var), cast(source[axis.var], dtype))
    stage = Stage((row, axis), (store,))
    kernel = Kernel(name="tail", inputs=(source,), outputs=(out,), stages=(stage,))
    feeds = {"x": np.arange(extent).astype(source_type.numpy)}
    found = run_fenced(kernel, feeds, {"rows": 3}, host_target(), None, 1)
    np.testing.assert_array_equal(found["y"], interpret(kernel, feeds, {"rows": 3})["y"])


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(_BATCHES))
def test_random_kernels(batch: int) -> None:
    first = _FIRST_SEED + batch * _SIZE
    failures = [text for seed in range(first, first + _SIZE) if (text := check(seed))]
    assert not failures, f"{len(failures)} of {_SIZE}:\n" + "\n\n".join(failures[:2])
