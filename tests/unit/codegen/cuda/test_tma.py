"""Products of matrices by the copy engine, and tiles: what is taken, what fits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilewright.codegen.cuda import deep_tile, tma_tile
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.generate import generate, prelude
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.codegen.cuda.plan import with_registers
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.core.shape import Dim
from unit.codegen.cuda.contractions import CONTRACTIONS, convolution, product
from unit.codegen.cuda.emulate import COMPILER, needs_compiler

SIZES = [(128, 768, 768), (49, 512, 2048), (8192, 3072, 768), (1, 1000, 512), (200704, 256, 64)]
LARGE = product(8192, 3072, 768, b_flip=True)


def test_the_copy_engine_fetches_large_matrices() -> None:
    made = generate(LARGE, clusters=True, constants=("b",))
    (stage,) = made.stages
    assert "copy engine" in stage.tactic
    left, right = stage.launch.matrices
    assert [made.buffers[m.buffer] for m in (left, right)] == ["a", "b"]
    assert (left.rows, left.columns, left.stride) == (Dim.of(8192), Dim.of(768), Dim.of(768))
    assert stage.launch.is_possible
    assert "copy engine" not in generate(LARGE, clusters=True, disabled=["tma"]).stages[0].tactic
    assert "copy engine" not in generate(LARGE).stages[0].tactic


@pytest.mark.parametrize(
    "kernel",
    [convolution((8, 64, 28, 28), 64, 3, pad=1), product(64, 64, 100, b_flip=True, batch=4)],
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
    assert "TwMatrix<TwHalf, 128, 128, 2, 7, true" in text
    assert "__launch_bounds__(288)" in text


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
def test_blocks_of_a_cluster_share_sums() -> None:
    kernel = product(64, 64, 4096, b_flip=True)
    made = generate(kernel, ["tma"], clusters=True)
    assert "blocks a sum" in made.stages[0].tactic
    compiled = compile_text(made.text, "sm_90")
    assert b"ld.shared::cluster" in compiled.ptx
    assert b"barrier.cluster.arrive.aligned" not in compiled.ptx  # orders all memory: 1 us
