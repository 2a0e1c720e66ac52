"""Take the mean error that rounded weights cause out of the bias.

    b' = b - (w' - w) . mean(x)
Input -> Output: a layer, its integers and the mean patch of its inputs -> a new bias.
Guarantees: on the calibration data the mean of each output channel is that of the float weights.
Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction (2019),
with means of data in the place of those of batch normalisation.
Not here: means of patches (moments).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.affine import dequantize
from tilewright.compress.layers import Layer
from tilewright.compress.moments import as_matrix
from tilewright.graph.insert_qdq import Affine

Array = npt.NDArray[Any]


def mean_error(layer: Layer, integers: Array, params: Affine, mean: Array) -> Array:
    """What rounding adds to each output channel in the mean, float64 [channels].

    Args:
        layer: with float weights.
        integers, params: of its quantised weights.
        mean: [groups, elements of a patch].
    """
    off = dequantize(integers, params).astype(np.float64) - layer.weights
    errors: Array = np.einsum("gok,gk->go", as_matrix(layer, off), mean).reshape(-1)
    return errors


def corrected(layer: Layer, integers: Array, params: Affine, mean: Array) -> Array | None:
    """The new bias, float32; None where the node cannot have one."""
    if layer.bias is None and layer.op_type != "Conv":
        return None
    bias = np.zeros(layer.num_channels) if layer.bias is None else layer.bias.astype(np.float64)
    return (bias - mean_error(layer, integers, params, mean)).astype(np.float32)
