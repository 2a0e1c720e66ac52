"""Long sums stay exact to a few roundings, however they are laid out."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from unit.graph.models import model_of, node, tensor_info


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceSumSquare"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [("n", "m"), (100_003, 3), (3, 100_003)], ids=str)
def test_a_long_sum_of_equal_numbers_is_exact_to_a_few_roundings(
    axis: int, shape: tuple[int | str, ...], op_type: str
) -> None:
    """One after the other, 100,003 times 0.1 would be off by 1e-4."""
    model = model_of(
        [node(op_type, ["x", "axes"], ["y"], keepdims=0)],
        inputs=[tensor_info("x", shape)],
        weights={"axes": np.array([axis])},
        opset=21,
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    sizes = [100_003, 3] if axis == 0 else [3, 100_003]
    if shape not in (("n", "m"), tuple(sizes)):
        sizes.reverse()
    y = engine.run({"x": np.full(sizes, 0.1, np.float32)})["y"]
    term = float(np.float32(0.1)) ** (1 if op_type == "ReduceSum" else 2)
    np.testing.assert_allclose(y, term * sizes[axis], rtol=1e-5)


@pytest.mark.parametrize("depth", [1, 513, 1500, 4097])
def test_products_longer_than_a_block(depth: int) -> None:
    """Every block counts once, the last partial one too."""
    rng = np.random.default_rng(depth)
    x, w = (rng.standard_normal(s, np.float32) for s in ((37, depth), (depth, 70)))
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])],
        inputs=[tensor_info("x", ("n", depth))],
        weights={"w": w},
        opset=21,
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    want = x.astype(np.float64) @ w.astype(np.float64)
    y = engine.run({"x": x})["y"]
    assert np.abs(y - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("inner", [1, 3, 17, 63, 64, 70, 5000])
def test_sums_over_two_axes_keep_every_row(inner: int) -> None:
    """Rows shorter than a block of vectors count as well."""
    model = model_of(
        [node("ReduceL1", ["x", "axes"], ["y"], keepdims=0)],
        inputs=[tensor_info("x", ("n", "a", "b"))],
        weights={"axes": np.array([1, 2])},
        opset=21,
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    x = np.random.default_rng(inner).standard_normal((2, 5, inner), np.float32)
    want = np.abs(x.astype(np.float64)).sum((1, 2))
    np.testing.assert_allclose(engine.run({"x": x})["y"], want, rtol=1e-5)


def test_a_sum_over_an_empty_axis_is_zero() -> None:
    model = model_of(
        [node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        inputs=[tensor_info("x", (3, "n", 0))],
        weights={"axes": np.array([1, 2])},
        opset=21,
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    np.testing.assert_array_equal(engine.run({"x": np.ones((3, 7, 0), np.float32)})["y"], [0] * 3)
