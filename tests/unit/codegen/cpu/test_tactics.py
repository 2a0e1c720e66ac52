"""Which tactic takes a nest, and why the others do not."""

from __future__ import annotations

import pytest

from tilewright.codegen.cpu import tactics, traits
from tilewright.codegen.cpu.tactics import TACTICS, Refusal, choose, rows_first
from tilewright.codegen.cpu.target import CpuTarget, named_target
from tilewright.core.dtypes import BOOL, FLOAT64, INT8
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Expr, Kernel, reduce_axes
from tilewright.kernel.nest import Nest, prepare
from tilewright.kernel.schedule import Schedule
from unit.codegen.cpu.kernels import KERNELS, K, M, N, Q, R, buffer, pure

WIDE, NARROW, ARM = map(named_target, ("znver4", "haswell", "neoverse-v1"))
TARGETS = pytest.mark.parametrize("target", [WIDE, NARROW, ARM], ids=lambda target: target.name)


def nest(kernel: Kernel, stage: int = 0) -> Nest:
    """One stage of a kernel, prepared."""
    return prepare(kernel, kernel.stages[stage])


def taken(name: str, target: CpuTarget = WIDE) -> tuple[Schedule, dict[str, str]]:
    """The schedule of a kernel's last stage, and the reasons by tactic."""
    schedule, refused = choose(nest(KERNELS[name](), -1), target)
    return schedule, dict(refused)


# --- firing ---------------------------------------------------------------------------------------


@TARGETS
@pytest.mark.parametrize(
    ("kernel", "tactic"),
    [
        ("running_sum", "sequential"),
        ("matmul", "contraction"),
        ("matmul_int8", "contraction"),
        ("convolution", "contraction"),
        ("matmul_transposed", "row_reduction"),
        ("softmax", "row_reduction"),
        ("row_sum", "row_reduction"),
        ("total", "row_reduction"),
        ("column_max", "elementwise"),
        ("add_relu", "elementwise"),
        ("transpose", "elementwise"),
        ("gather", "elementwise"),
        ("one_number", "scalar"),
    ],
)
def test_the_tactic_of_a_kernel(kernel: str, tactic: str, target: CpuTarget) -> None:
    assert taken(kernel, target)[0].tactic == tactic


def test_special_tactics_come_first_and_the_last_fits_everything() -> None:
    names = [tactic.__name__ for tactic in TACTICS]
    assert names[:3] == ["sequential", "dot_product", "contraction"]
    assert names[3:] == ["row_reduction", "elementwise", "scalar"]
    for function in KERNELS.values():
        for stage in function().stages:
            assert isinstance(tactics.scalar(prepare(function(), stage), WIDE), Schedule)


def test_every_tactic_before_the_chosen_one_says_why_not() -> None:
    for name in KERNELS:
        schedule, refused = taken(name)
        names = [tactic.__name__ for tactic in TACTICS]
        assert list(refused) == names[: names.index(schedule.tactic)]
        assert all(refused.values())


# --- refusing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "tactic", "reason"),
    [
        ("add_relu", "sequential", "no ordered axis"),
        ("add_relu", "contraction", "no reduction"),
        ("column_max", "contraction", "no sum of products"),
        ("row_sum", "contraction", "no sum of products"),
        ("matmul_transposed", "contraction", "operands are contiguous along the reduction"),
        ("add_relu", "row_reduction", "no reduction"),
        ("column_max", "row_reduction", "the outputs are contiguous"),
        ("one_number", "elementwise", "no parallel axis along contiguous memory"),
    ],
)
def test_a_refusal_says_why(kernel: str, tactic: str, reason: str) -> None:
    assert taken(kernel)[1][tactic] == reason


def test_a_product_of_single_numbers_has_no_axis_for_vectors() -> None:
    a, b = buffer("a", K), buffer("b", K)
    dot = pure(buffer("out"), (a, b), lambda: reduce_axes("sum", (R,), a[R.var] * b[R.var]))
    found = tactics.contraction(nest(dot), WIDE)
    assert found == Refusal("no parallel axis along contiguous memory")


def test_products_whose_sum_serves_a_row_are_no_contraction() -> None:
    """A matrix product over the norms of its rows: vectors along n would repeat the norms."""
    a, b = buffer("a", M, K), buffer("b", K, N)

    def body(m: Expr, n: Expr) -> Expr:
        norm = reduce_axes("sum", (Q,), a[m, Q.var] * a[m, Q.var])
        return reduce_axes("sum", (R,), a[m, R.var] * b[R.var, n]) / norm

    schedule, refused = choose(nest(pure(buffer("out", M, N), (a, b), body)), WIDE)
    assert dict(refused)["contraction"] == "a reduction serves a whole row of outputs"
    assert (schedule.tactic, schedule.vector) == ("row_reduction", "i1")


def test_scattered_stores_are_not_elementwise() -> None:
    out, x = buffer("out", N, 2), buffer("x", N)
    kernel = KERNELS["all_and_any"]()
    found = tactics.elementwise(nest(kernel), WIDE)
    assert found == Refusal("no parallel axis along contiguous memory")
    whole = pure(out, (x,), lambda *i: x[i[0]])
    chosen = tactics.elementwise(nest(whole), WIDE)
    assert isinstance(chosen, Schedule)
    assert chosen.vector == "i1"


def test_a_list_of_tactics_that_all_refuse_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tactics, "TACTICS", (tactics.sequential,))
    with pytest.raises(InternalError, match="scalar"):
        choose(nest(KERNELS["add_relu"]()), WIDE)


# --- sizes of tiles -------------------------------------------------------------------------------


@TARGETS
def test_lanes_follow_the_widest_type_and_the_registers(target: CpuTarget) -> None:
    width = target.vector_bytes
    assert taken("add_relu", target)[0].lanes == width // 4
    assert taken("doubles", target)[0].lanes == width // 8
    x = buffer("x", N, dtype=FLOAT64)
    halves = pure(buffer("out", N, dtype=FLOAT64), (x,), lambda n: x[n] + x[n])
    assert choose(nest(halves), target)[0].lanes == width // 8


@pytest.mark.parametrize(("size", "lanes"), [(3, 4), (4, 4), (5, 8), (9, 16), (1000, 16)])
def test_short_known_axes_take_short_vectors(size: int, lanes: int) -> None:
    x, scale = buffer("x", M, size), buffer("scale", M)
    kernel = pure(buffer("out", M, size), (x, scale), lambda m, n: x[m, n] * scale[m])
    schedule = choose(nest(kernel), WIDE)[0]
    assert (schedule.vector, schedule.lanes) == ("i1", lanes)


@pytest.mark.parametrize(("size", "lanes", "columns"), [(24, 8, 3), (32, 16, 2), (40, 16, 3)])
def test_vectors_of_half_the_lanes_where_whole_ones_would_idle(
    size: int, lanes: int, columns: int
) -> None:
    a, b = buffer("a", 64, 64), buffer("b", 64, size)
    axis = Axis("r", Dim.of(64))
    kernel = pure(
        buffer("out", 64, size),
        (a, b),
        lambda i, j: reduce_axes("sum", (axis,), a[i, axis.var] * b[axis.var, j]),
    )
    schedule = choose(nest(kernel), WIDE)[0]
    assert (schedule.lanes, schedule.copies("i1")) == (lanes, columns)


@TARGETS
@pytest.mark.parametrize("shape", [(64, 64, 64), (1, 512, 64), (7, 3, 9), (512, 16, 64)])
def test_the_register_tile_fits_the_registers(
    target: CpuTarget, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = buffer("a", m, k), buffer("b", k, n)
    axis = Axis("r", Dim.of(k))
    kernel = pure(
        buffer("out", m, n),
        (a, b),
        lambda i, j: reduce_axes("sum", (axis,), a[i, axis.var] * b[axis.var, j]),
    )
    schedule = choose(nest(kernel), target)[0]
    accumulators = 1
    for count in schedule.unroll.values():
        accumulators *= count
    assert schedule.tactic == "contraction"
    assert 1 <= accumulators < target.num_vectors


@pytest.mark.parametrize(
    ("blocks", "columns"), [(2, 2), (3, 3), (5, 5), (6, 2), (7, 2), (9, 3), (15, 3)]
)
def test_an_odd_number_of_columns_is_split_evenly(blocks: int, columns: int) -> None:
    a, b = buffer("a", 196, 64), buffer("b", blocks, 64, 16)
    axis = Axis("r", Dim.of(64))
    kernel = pure(
        buffer("out", blocks, 196, 16),
        (a, b),
        lambda o, m, i: reduce_axes("sum", (axis,), a[m, axis.var] * b[o, axis.var, i]),
    )
    schedule = choose(nest(kernel), WIDE)[0]
    assert schedule.unroll["i0"] == columns


def test_balanced_tiles_cover_an_axis_in_as_few_steps() -> None:
    for size in range(1, 60):
        for most in range(1, 15):
            tile = traits.balanced(Dim.of(size), most)
            assert 1 <= tile <= most
            assert -(-size // tile) == -(-size // most)
    assert traits.balanced(N, 5) == 5


def test_bytes_and_flags_use_no_more_lanes_than_there_are() -> None:
    x = buffer("x", N, dtype=INT8)
    kernel = pure(buffer("out", N, dtype=BOOL), (x,), lambda n: x[n].gt(0))
    assert choose(nest(kernel), WIDE)[0].lanes == 16


# --- rows in flight -------------------------------------------------------------------------------


def rows(kernel: Kernel) -> list[int]:
    """Copies of the axes other than the vector's, in the last stage's schedule."""
    schedule, _ = choose(nest(kernel, -1), WIDE)
    return [count for name, count in schedule.unroll.items() if name != schedule.vector]


def softmax_of(size: int) -> Kernel:
    x = buffer("x", 64, size)
    r = Axis("r", Dim.of(size))

    def body(m: Expr, n: Expr) -> Expr:
        top = reduce_axes("max", (r,), x[m, r.var])
        return x[m, n] - top

    return pure(buffer("out", 64, size), (x,), body)


def test_short_rows_wait_for_their_sums_together_and_long_ones_fill_the_cache_alone() -> None:
    assert rows(softmax_of(128)) == [4]
    assert rows(softmax_of(4096)) == []


def test_pools_and_loads_across_lines_take_several_rows() -> None:
    x = buffer("x", 64, 8, 32)
    window = Axis("r", Dim.of(8))
    pool = pure(
        buffer("out", 64, 32),
        (x,),
        lambda m, n: reduce_axes("max", (window,), x[m, window.var, n]),
    )
    assert rows(pool) == [4]
    assert rows(pure(buffer("out", 8, 32, 64), (x,), lambda i, j, k: x[k, i, j])) == [4]
    assert rows(pure(buffer("out", 64, 8, 32), (x,), lambda i, j, k: x[i, j, k] + 1.0)) == []


def test_loops_of_small_tiles_take_several_steps_in_a_round() -> None:
    assert choose(nest(KERNELS["matmul"]()), NARROW)[0].depth == 4
    assert choose(nest(KERNELS["matmul"]()), WIDE)[0].depth == 1


@pytest.mark.parametrize(("taps", "stride", "depth"), [(3, 1, 3), (7, 1, 7), (9, 1, 1), (3, 2, 1)])
def test_taps_of_overlapping_windows_go_in_one_round(taps: int, stride: int, depth: int) -> None:
    x, w = buffer("x", 200, 16), buffer("w", taps, 16)
    tap = Axis("r", Dim.of(taps))
    kernel = pure(
        buffer("out", 60, 16),
        (x, w),
        lambda i, c: reduce_axes("sum", (tap,), x[i * stride + tap.var, c] * w[tap.var, c]),
    )
    assert choose(nest(kernel), WIDE)[0].depth == depth


@pytest.mark.parametrize(
    ("pixels", "depth", "blocks", "outer"),
    [
        (25088, 256, 8, ()),
        (25088, 64, 16, ("i0",)),
        (784, 256, 16, ("i0",)),
        (784, 256, 8, ()),
        (784, 2048, 8, ("i0",)),
        (25088, 2048, 8, ("i0",)),
    ],
    ids=[
        "large images",
        "larger results",
        "small images",
        "few blocks",
        "few blocks of many weights",
        "many weights",
    ],
)
def test_large_images_are_read_once_and_few_blocks_are_not_shared(
    pixels: int, depth: int, blocks: int, outer: tuple[str, ...]
) -> None:
    a, b = buffer("a", pixels, depth), buffer("b", blocks, depth, 16)
    axis = Axis("r", Dim.of(depth))
    kernel = pure(
        buffer("out", blocks, pixels, 16),
        (a, b),
        lambda o, m, i: reduce_axes("sum", (axis,), a[m, axis.var] * b[o, axis.var, i]),
    )
    assert choose(nest(kernel), WIDE)[0].outer == outer


@pytest.mark.parametrize(
    ("pixels", "depth", "target", "block", "outer"),
    [
        (240, 192, WIDE, 16, ("i2",)),
        (800, 192, WIDE, 16, ("i1",)),
        (240, 1024, WIDE, 16, ("i1",)),
        (240, 192, NARROW, 8, ("i1",)),
    ],
    ids=["some pixels", "many pixels", "many weights", "low tiles"],
)
def test_tiles_of_an_image_go_through_several_matrices(
    pixels: int, depth: int, target: CpuTarget, block: int, outer: tuple[str, ...]
) -> None:
    a, b = buffer("a", 7, pixels, depth), buffer("b", 7, 12, depth, block)
    axis = Axis("r", Dim.of(depth))
    kernel = pure(
        buffer("out", 7, 12, pixels, block),
        (a, b),
        lambda p, o, m, i: reduce_axes("sum", (axis,), a[p, m, axis.var] * b[p, o, axis.var, i]),
    )
    assert choose(nest(kernel), target)[0].outer == outer


@pytest.mark.parametrize(
    ("has_many", "depth", "outer"),
    [(True, 24, ("i1",)), (True, 128, ()), (False, 24, ())],
    ids=["many matrices", "large matrices", "one of them"],
)
def test_steps_share_the_rows_of_many_matrices(
    has_many: bool, depth: int, outer: tuple[str, ...]
) -> None:
    a, b = buffer("a", 36, 120, depth), buffer("b", 36, depth, 24)
    axis = Axis("r", Dim.of(depth))
    kernel = pure(
        buffer("out", 36, 120, 24),
        (a, b),
        lambda x, t, c: reduce_axes(
            "sum", (axis,), a[x, t, axis.var] * b[x if has_many else 0, axis.var, c]
        ),
    )
    schedule = choose(nest(kernel), WIDE)[0]
    assert schedule.outer == ()
    assert rows_first(nest(kernel), schedule).outer == outer
