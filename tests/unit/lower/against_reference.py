"""Compares one lowering with the NumPy reference, with constant dims and with symbolic ones.

Input -> Output: an operator and arrays -> nothing, or a failed assertion.
Guarantees: expectations are computed in float64; symbolic runs know no contents (see direct).
Not here: ONNX's own cases (harness).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

import tilewright.lower.attention
import tilewright.lower.causal_conv
import tilewright.lower.conv
import tilewright.lower.conv_transpose
import tilewright.lower.deform
import tilewright.lower.det
import tilewright.lower.einsum
import tilewright.lower.integer_conv
import tilewright.lower.integer_matmul
import tilewright.lower.linear_attention
import tilewright.lower.matmul
import tilewright.lower.pool
import tilewright.lower.recurrent
import tilewright.lower.signal  # noqa: F401
from tilewright.core.dtypes import from_numpy
from tilewright.runtime.reference.registry import evaluate
from unit.lower.direct import Array, run

_ROUNDOFF = {"float64": 2.0**-40, "float32": 2.0**-19, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def check(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    params: Mapping[str, Sequence[int]] | None = None,
    num_outputs: int = 1,
    fixed: Sequence[int] = (),
    modes: Sequence[bool] = (False, True),
) -> list[Array]:
    """Checks an operator of the newest opset in both modes; returns the expected outputs.

    Args:
        op_type, inputs, attributes, params, fixed: as in ``direct.lower``.
        num_outputs: how many outputs are wanted.
        modes: constant dims (False), symbolic dims (True).
    """
    known = dict(attributes or {})
    found = evaluate(
        "",
        op_type,
        list(inputs),
        known,
        opset=onnx.defs.onnx_opset_version(),
        num_outputs=num_outputs,
    )
    expected = [np.asarray(array) for array in found]
    for symbolic in modes:
        results = run(
            op_type,
            inputs,
            [(array.dtype, array.shape) for array in expected],
            attributes=known,
            params=params,
            symbolic=symbolic,
            fixed=fixed,
        )
        for result, wanted in zip(results, expected, strict=True):
            assert_close(result, wanted)
    return expected


def assert_close(result: Array, wanted: Array) -> None:
    """Equal types and shapes; floats within a few roundoffs of the largest value."""
    assert result.dtype == wanted.dtype
    assert result.shape == wanted.shape
    if not from_numpy(wanted.dtype).is_float:
        np.testing.assert_array_equal(result, wanted)
        return
    left, right = result.astype(np.float64), wanted.astype(np.float64)
    roundoff = _ROUNDOFF[wanted.dtype.name]
    largest = float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right)))
    np.testing.assert_allclose(left, right, rtol=roundoff, atol=roundoff * largest)


def uniform(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Numbers between -1 and 1."""
    generator = np.random.default_rng([seed, *shape])
    return np.asarray(generator.uniform(-1, 1, shape)).astype(dtype)


def integers(*shape: int, dtype: Any, seed: int = 0) -> Array:
    """All values of an integer type."""
    info = np.iinfo(dtype)
    generator = np.random.default_rng([seed, *shape])
    return generator.integers(info.min, info.max + 1, shape).astype(dtype)


def window(
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Attributes of a windowed operator, and the params that its shape rule gives."""
    rank = len(kernel)
    values = {
        "strides": list(strides or [1] * rank),
        "dilations": list(dilations or [1] * rank),
        "pads": list(pads or [0] * (2 * rank)),
    }
    return {"kernel_shape": list(kernel), **values}, {"kernel": list(kernel), **values}
