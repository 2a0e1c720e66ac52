"""Phases of divided axes: same values, affine indices; other kernels are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Kernel, Load, Stage, Store, call, reduce_over, walk
from tilewright.kernel.phases import split_phases
from tilewright.kernel.verify import verify

N = Dim.symbol("n")


def _upsampler(stride: int, shift: int, size: Dim, *, summed: bool = True) -> Kernel:
    x = Buffer("x", FLOAT32, (size, Dim.of(3)))
    w = Buffer("w", FLOAT32, (Dim.of(3), Dim.of(stride)))
    out = Buffer("y", FLOAT32, (size * stride - shift,))
    axis = Axis("i0", out.shape[0])
    position = call("div", axis.var + shift, stride)
    tap = call("mod", axis.var + shift, stride)
    value = (
        reduce_over("sum", [3], lambda r: x[position, r] * w[r, tap])
        if summed
        else x[position, 0] * w[0, tap]
    )
    stage = Stage((axis,), (Store("y", (axis.var,), value),))
    return Kernel(name="up", inputs=(x, w), outputs=(out,), stages=(stage,))


@pytest.mark.parametrize(("stride", "shift"), [(2, 0), (2, 1), (3, 0), (3, 2)])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_same_values_with_affine_indices(stride: int, shift: int, size: int) -> None:
    kernel = _upsampler(stride, shift, N)
    split = split_phases(kernel)
    verify(split)
    assert sum(len(stage.stores) for stage in split.stages) == stride
    for stage in split.stages:
        for node in walk(*stage.roots):
            if isinstance(node, Load):
                assert not any(affine(part).rest for part in node.index)
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((size, 3)).astype(np.float32),
        "w": rng.standard_normal((3, stride)).astype(np.float32),
    }
    sizes = {"n": size}
    want = interpret(kernel, feeds, sizes)["y"]
    np.testing.assert_array_equal(interpret(split, feeds, sizes)["y"], want)


def test_remainders_of_one_size_share_a_stage() -> None:
    assert len(split_phases(_upsampler(2, 0, Dim.of(8))).stages) == 1
    assert len(split_phases(_upsampler(2, 1, Dim.of(8))).stages) == 2


def test_leaves_other_kernels_alone() -> None:
    plain = _upsampler(2, 0, N, summed=False)
    assert split_phases(plain) is plain
    many = _upsampler(17, 0, Dim.of(4))
    assert split_phases(many) is many
