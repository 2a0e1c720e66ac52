"""Contractions on tensor cores of a GPU against the interpreter, whole and in parts."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.launch import arch, run_on_gpu
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.split_depth import split_depth
from tilewright.codegen.cuda.target import cuda_target
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Kernel
from unit.codegen.cuda.attentions import ATTENTIONS
from unit.codegen.cuda.contractions import (
    CONTRACTIONS,
    convolution,
    feeds_of,
    product,
    two_sums,
)

pytestmark = pytest.mark.gpu


def _check(kernel: Kernel) -> None:
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    largest = float(np.abs(expected).max())
    for made in (kernel, split_depth(kernel)[0]):
        found = run_on_gpu(made, feeds, {})["out"].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * largest)


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(name: str) -> None:
    _check(CONTRACTIONS[name])


@pytest.mark.parametrize("rows", [1, 49, 128, 196, 784])
@pytest.mark.parametrize("columns", [64, 768, 1000])
@pytest.mark.parametrize("depth", [64, 2048])
def test_products_of_many_sizes(rows: int, columns: int, depth: int) -> None:
    _check(product(rows, columns, depth, b_flip=True))
    _check(product(rows, columns, depth))


def test_convolutions_in_parts() -> None:
    kernel = convolution((1, 512, 7, 7), 512, 3, pad=1)
    assert split_depth(kernel)[1] > 1
    _check(kernel)


TILED = {
    "whole columns": product(200, 352, 640, b_flip=True),
    "a part of columns": product(200, 328, 640, b_flip=True),
    "few rows": product(49, 72, 2304, b_flip=True),
    "one row": product(1, 1000, 512, b_flip=True),
    "a matrix is added": product(330, 224, 1152, b_flip=True, added=True),
    "many tiles": product(5000, 256, 320, b_flip=True, added=True),
    "window": convolution((3, 128, 9, 7), 96, 3, pad=1),
    "strided window": convolution((2, 64, 16, 11), 64, 3, stride=2, pad=1),
    "one tap of every other row": convolution((3, 192, 8, 10), 64, 1, stride=2),
    "wide window": convolution((1, 64, 14, 14), 160, 5, pad=2),
    "two sums": two_sums(2, 9, 64, 128, 72),
    "two sums of other places": two_sums(3, 7, 192, 64, 160, stride=2),
    "two long sums": two_sums(1, 7, 512, 1024, 256, stride=2),
}


@pytest.mark.parametrize("name", TILED)
def test_every_tile(name: str) -> None:
    kernel = TILED[name]
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    largest = float(np.abs(expected).max())
    weights: tuple[set[str], ...] = ({"b", "w"} & set(feeds), set())
    for number, tile in enumerate(ranked_tiles(kernel, (), cuda_target(arch()).clusters)):
        made = run_on_gpu(kernel, feeds, {}, tile=tile, constants=weights[number % 2])["out"]
        np.testing.assert_allclose(
            made.astype(np.float64), expected, rtol=2e-3, atol=1e-3 * largest, err_msg=tile.text
        )


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    kernel = ATTENTIONS[name]
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    found = run_on_gpu(kernel, feeds, {})["out"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=2e-3)
