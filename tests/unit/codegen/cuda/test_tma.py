"""Products of matrices by the copy engine, and tiles: what is taken, what fits."""

from __future__ import annotations

import pytest

from tilewright.codegen.cuda import deep_tile, tma_tile
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.core.shape import Dim
from unit.codegen.cuda.contractions import CONTRACTIONS, convolution, product

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
    assert b"ld.shared::cluster" in compile_text(made.text, "sm_90").ptx
