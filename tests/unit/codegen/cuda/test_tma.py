"""Products of matrices by the copy engine, and tiles: what is taken, what fits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tilewright.codegen.cuda import deep_tile, tma_tile
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.generate import generate, prelude
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.codegen.cuda.operands import Match, draft_of, match
from tilewright.codegen.cuda.plan import with_registers
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.codegen.cuda.window import Window, find_window
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, UINT8, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Expr, Kernel, reduce_axes, select
from tilewright.runtime.program import Matrix
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda.contractions import (
    CONTRACTIONS,
    byte_convolution,
    convolution,
    narrow_product,
    product,
    two_sums,
)
from unit.codegen.cuda.emulate import COMPILER, needs_compiler

Place = tuple[int, int]
SIZES = [(128, 768, 768), (49, 512, 2048), (8192, 3072, 768), (1, 1000, 512), (200704, 256, 64)]
LARGE = product(8192, 3072, 768, b_flip=True)


def test_the_copy_engine_fetches_large_matrices() -> None:
    made = generate(LARGE, clusters=True, constants=("b",))
    (stage,) = made.stages
    assert "copy engine" in stage.tactic
    left, right = stage.launch.matrices
    assert [made.buffers[m.buffer] for m in (left, right)] == ["a", "b"]
    assert isinstance(left, Matrix)
    assert (left.rows, left.columns, left.stride) == (Dim.of(8192), Dim.of(768), Dim.of(768))
    assert stage.launch.is_possible
    assert "copy engine" not in generate(LARGE, clusters=True, disabled=["tma"]).stages[0].tactic
    assert "copy engine" not in generate(LARGE).stages[0].tactic


@pytest.mark.parametrize(
    "kernel",
    [convolution((8, 32, 28, 28), 64, 3, pad=1), product(64, 64, 100, b_flip=True, batch=4)],
)
def test_others_are_fetched_by_threads(kernel: object) -> None:
    stage = generate(kernel, clusters=True).stages[0]  # type: ignore[arg-type]
    assert not stage.launch.matrices


@pytest.mark.parametrize("size", SIZES)
def test_tiles_fit_a_multiprocessor(size: tuple[int, int, int]) -> None:
    for tile in tma_tile.candidates(*size):
        assert tile.stages >= 1
        assert tile.shared_bytes <= 227 * 1024
        assert tile.resident * (tile.sums + 32) * tile.threads <= 65536
        assert tma_tile.predict_us(tile, *size) > 0
    for split in (False, True):
        for deep in deep_tile.candidates(*size, 1, split):
            assert deep.stages >= 3
            assert deep.shared_bytes <= 227 * 1024
            assert deep.rows % deep.split == 0
            assert split or deep.split == 1


def test_tiles_are_ranked_by_predictions() -> None:
    found = ranked_tiles(LARGE, (), True)
    assert found == ranked_tiles(LARGE, (), True)
    assert isinstance(found[0], TmaTile)
    assert len(set(found)) == len(found) > 10
    assert not any(isinstance(tile, TmaTile) for tile in ranked_tiles(LARGE, ("tma",), True))
    assert ranked_tiles(CONTRACTIONS["three channels"], (), True) == []


def test_groups_take_turns_where_there_are_several_long_tiles() -> None:
    def turns(*size: int) -> bool:
        return any(tile.turns for tile in tma_tile.candidates(*size))

    assert turns(8192, 768, 768)
    assert not turns(128, 768, 768)  # one tile a block
    assert not turns(200704, 256, 64)  # each is multiplied at once
    text = generate(LARGE, clusters=True, tile=_tile(128, 128, turns=True)).text
    assert "TwMatrix<TwHalf, 128, 128, 384, 7, true" in text
    assert "__launch_bounds__(384)" in text  # the group that fetches gives registers away


def test_columns_are_fetched_in_an_order_that_makes_sums_neighbours() -> None:
    for columns, mixed in ((768, True), (1000, False)):
        made = generate(product(256, columns, 512, b_flip=True), ["deep"], clusters=True)
        left, right = made.stages[0].launch.matrices
        assert isinstance(left, Matrix)
        assert isinstance(right, Matrix)
        assert (left.mixed, right.mixed) == (False, mixed)


def test_products_of_bytes_keep_to_what_was_checked() -> None:
    for tile in tma_tile.candidates(8192, 3072, 768, of_bytes=True):
        assert tile.split == 1
        assert not tile.wastes(8192, 3072)
    kernel = narrow_product(8192, 3072, 1536, UINT8, INT8)
    made = generate(kernel, ["deep"], clusters=True, constants=("b",))
    assert [matrix.mixed for matrix in made.stages[0].launch.matrices] == [False, True]  # type: ignore[union-attr]
    assert "TwMatrix<TwU8S8, " in made.text


def test_what_outputs_need_is_read_before_their_sums_where_registers_suffice() -> None:
    assert _tile(128, 128, turns=True).reads_ahead(2)  # 128 sums and 64 registers of a thread
    assert not _tile(128, 128, turns=True).reads_ahead(4)
    assert not _tile(128, 128, resident=2).reads_ahead(2)
    assert not _tile(128, 128, turns=True).reads_ahead(0)


def test_blocks_share_the_depth_of_few_tiles() -> None:
    for size in SIZES:
        shared = [tile for tile in tma_tile.candidates(*size) if tile.split > 1]
        assert bool(shared) == (size[0] <= 1024 and size[2] >= 512)
        for tile in shared:
            tiles = -(-size[0] // tile.rows) * -(-size[1] // tile.columns)
            assert tile.blocks(*size[:2]) == tiles * tile.split <= 132
            assert tile.stages * tile.stage_bytes >= 4 * tile.rows * tile.columns
    made = generate(product(1024, 768, 3072, b_flip=True), clusters=True)
    assert "copy engine, 2 blocks a sum" in made.stages[0].tactic
    assert "__cluster_dims__(2, 1, 1)" in made.text


@pytest.mark.parametrize(
    ("kernel", "first", "last", "step"),
    [
        (convolution((8, 64, 28, 28), 64, 3, pad=1), (-1, -1), (26, 26), (1, 1)),
        (convolution((2, 128, 16, 12), 64, 5, pad=1), (-1, -1), (12, 8), (1, 1)),
        (convolution((3, 64, 9, 12), 64, 3, pad=1, stride=2), (-1, -1), (7, 9), (2, 2)),
    ],
)
def test_the_copy_engine_slides_windows_over_images(
    kernel: Kernel, first: Place, last: Place, step: Place
) -> None:
    found = _window(kernel)
    assert isinstance(found, Window)
    image = found.image(64)
    assert (image.first, image.last, image.step) == (first, last, step)
    assert image.shape == tuple(dim.const for dim in kernel.inputs[0].shape)


@pytest.mark.parametrize(("stride", "fetch"), [(1, "tw_fetch_box"), (2, "tw_fetch_window")])
def test_two_sums_share_a_tile(stride: int, fetch: str) -> None:
    kernel = two_sums(2, 14, 128, 192, 96, stride=stride)
    made = generate(kernel, clusters=True)
    assert "two sums" in made.stages[0].tactic
    assert len(made.stages[0].launch.matrices) == 3
    text = made.text.split("stage_0")[1]
    assert "const int K = (int)320;" in text
    assert "if (k < 128)" in text
    assert f"{fetch}(to, &map2" in text
    tiles = ranked_tiles(kernel, (), clusters=True)
    assert tiles
    assert all(isinstance(tile, TmaTile) for tile in tiles)
    reasons = dict(generate(kernel).stages[0].refused)
    assert reasons["tensor_core"] == "two sums: a GPU without the copy engine"
    odd = generate(two_sums(2, 14, 96, 192, 96), clusters=True).stages[0]
    assert dict(odd.refused)["tensor_core"].endswith("a depth that is no whole number of steps")


@pytest.mark.parametrize(
    ("kind", "each_row", "reason"),
    [
        (BFLOAT16, False, "two sums of other types"),
        (FLOAT16, True, "two sums of other rows or columns"),
    ],
)
def test_sums_of_other_operands_do_not_share_a_tile(
    kind: DType, each_row: bool, reason: str
) -> None:
    """Of another type, or with weights of each row's own."""
    k, q = Axis("k", Dim.of(64)), Axis("q", Dim.of(64))
    a, b = buffer("a", 256, 64, dtype=FLOAT16), buffer("b", 128, 64, dtype=FLOAT16)
    c, d = buffer("c", 256, 64, dtype=kind), buffer("d", 256, 128, 64, dtype=kind)

    def body(i: Expr, j: Expr) -> Expr:
        first = a[i, k.var].cast(FLOAT32) * b[j, k.var].cast(FLOAT32)
        row = i if each_row else 0
        second = c[i, q.var].cast(FLOAT32) * d[row, j, q.var].cast(FLOAT32)
        return reduce_axes("sum", (k,), first) + reduce_axes("sum", (q,), second)

    kernel = pure(buffer("out", 256, 128), (a, b, c, d), body)
    refused = dict(generate(kernel, clusters=True).stages[0].refused)
    assert refused["tensor_core"] == reason


def test_images_whose_windows_stay_inside_lie_one_below_the_other() -> None:
    found = _window(convolution((8, 128, 28, 14), 64, 1, stride=2))
    assert isinstance(found, Window)
    assert found.image(64).shape == (1, 8 * 28, 14, 128)
    assert found.image(64).last == (222, 12)


def test_windows_that_the_copy_engine_cannot_slide() -> None:
    assert _window(convolution((1, 32, 8, 8), 64, 3, pad=1)) == "32 channels"
    assert isinstance(_window(convolution((1, 64, 40, 40), 64, 3, stride=9)), str)
    assert isinstance(_window(convolution((1, 64, 8, 8), 64, 3, pad=1, last=False)), str)
    assert isinstance(_window(_mirrored()), str)
    assert isinstance(_window(byte_convolution((1, 8, 8, 128), 64, 3)), Window)
    border = byte_convolution((1, 8, 8, 128), 64, 3, zero=7)
    assert _window(border) == "a border that is not 0"


def _mirrored() -> Kernel:
    """A convolution whose guard is not that of its window: zeros inside of the image."""
    x, w = buffer("x", 1, 8, 8, 64, dtype=FLOAT16), buffer("w", 64, 3, 64, dtype=FLOAT16)
    c, tap = Axis("c", Dim.of(64)), Axis("t", Dim.of(3))

    def body(*index: Expr) -> Expr:
        _, i, j, o = index
        column = j + tap.var - 1
        inside = column.ge(2) & column.lt(8)
        value = select(inside, x[0, i, column, c.var].cast(FLOAT32), 0.0)
        return reduce_axes("sum", (tap, c), value * w[o, tap.var, c.var].cast(FLOAT32))

    return pure(buffer("out", 1, 8, 8, 64), (x, w), body)


def _window(kernel: Kernel) -> Window | str:
    draft = draft_of(kernel)
    found = match(draft, draft.writer())
    assert isinstance(found, Match)
    return find_window(draft, found.left, found.depth)


def test_two_blocks_of_a_multiprocessor_have_registers() -> None:
    text = generate(LARGE, clusters=True, tile=_tile(128, 128, resident=2)).text
    assert "__launch_bounds__(288, 2)" in text
    assert with_registers(2, 256, 128 * 128) == 2
    assert with_registers(2, 256, 128 * 256) == 1
    assert with_registers(4, 128, 64 * 128) == 4


def _tile(rows: int, columns: int, *, resident: int = 1, turns: bool = False) -> TmaTile:
    (found,) = (
        t
        for t in tma_tile.candidates(8192, 3072, 768)
        if (t.rows, t.columns, t.resident, t.turns) == (rows, columns, resident, turns)
    )
    return found


@needs_compiler
def test_every_output_of_a_tile_is_stored_once(tmp_path: Path) -> None:
    here = Path(__file__).parent
    texts = [(here / "emulate.h").read_text()]
    texts += [prelude(f"{name}.cuh") for name in ("prelude", "tensor_core", "deep", "tma")]
    source, program = tmp_path / "finish.cpp", tmp_path / "finish"
    source.write_text("\n".join([*texts, (here / "finish.cpp").read_text()]))
    assert COMPILER is not None
    flags = ["-O1", "-std=c++17", "-w", str(source), "-o", str(program)]
    subprocess.run([COMPILER, *flags], check=True, capture_output=True)
    done = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    assert done.stdout == "0 wrong\n"


@pytest.mark.nvrtc
@pytest.mark.parametrize("tile", [_tile(128, 128, turns=True), _tile(128, 128, resident=2)])
def test_tiles_of_one_multiprocessor_compile(tile: TmaTile) -> None:
    made = generate(LARGE, clusters=True, constants=("b",), tile=tile)
    usage = compile_text(made.text, "sm_90").usage["stage_0"]
    assert usage.spill_bytes <= 64
    assert usage.registers * 32 * -(-9 * tile.resident // 4) <= 16384  # of a quarter


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("columns", [32, 192, 256])
def test_tiles_compile(arch: str, columns: int) -> None:
    kernel = product(256, 768, 512, b_flip=True)
    (tile, *_) = [t for t in tma_tile.candidates(256, 768, 512) if t.columns == columns]
    made = generate(kernel, clusters=True, constants=("b",), tile=tile)
    compiled = compile_text(made.text, arch)
    assert compiled.usage["stage_0"].spill_bytes <= 64
    assert b"cp.async.bulk.tensor" in compiled.ptx
    assert b"wgmma" not in compiled.ptx  # newer GPUs run it too


@pytest.mark.nvrtc
@pytest.mark.parametrize("without", ["tma", "deep"])
def test_blocks_of_a_cluster_share_sums(without: str) -> None:
    kernel = product(64, 64, 4096, b_flip=True)
    made = generate(kernel, [without], clusters=True)
    assert "blocks a sum" in made.stages[0].tactic
    compiled = compile_text(made.text, "sm_90")
    assert b"ld.shared::cluster.v4" in compiled.ptx
    assert re.search(rb"\bst\S*\.v4", compiled.ptx)
    assert not re.search(rb"\bst\S*\.[bsu]8\b", compiled.ptx)  # sums are not handed out in bytes
    assert b"barrier.cluster.arrive.aligned" not in compiled.ptx  # orders all memory: 1 us
