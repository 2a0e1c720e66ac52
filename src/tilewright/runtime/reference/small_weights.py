"""Matrix products with weights of few bits: com.microsoft.MatMulNBits, and our own form of them.

    MatMulNBits(A, B, scales, zero_points, g_idx, bias)    weights of a column beside each other
    tilewright.MatMulWeights(a, codes, scales, zeros)      rows of weights, as kernels read them
Guarantees: ``weight = (code - zero) * scale``; codes of 4 bits lie low half first; without zero
points 2**(bits - 1) is subtracted by MatMulNBits, attribute ``zero`` by MatMulWeights.
Source: ONNX Runtime, docs/ContribOperators.md, MatMulNBits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.matmul import product
from tilewright.runtime.reference.registry import Call, Outputs, operator

DOMAIN = "tilewright"
NBITS_DOMAIN = "com.microsoft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of a product as rows.

    Attributes:
        codes: integers ``[K, N]``, one an element.
        scales: ``[groups, N]``.
        zeros: ``[groups, N]``, or one number.
        block: rows in a group.
    """

    codes: Array
    scales: Array
    zeros: Array | int
    block: int

    def floats(self, dtype: np.dtype[np.floating]) -> Array:
        """The weights as numbers."""
        group = np.arange(self.codes.shape[0]) // self.block
        zeros = self.zeros if isinstance(self.zeros, int) else self.zeros[group].astype(dtype)
        found: Array = (self.codes.astype(dtype) - zeros) * self.scales[group].astype(dtype)
        return found


def unpacked(codes: Array, bits: int) -> Array:
    """Codes of ``bits`` along the last axis, one an element; a byte's lowest bits are first."""
    if bits == 8:
        return codes
    places = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (codes[..., None] >> places) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*codes.shape[:-1], -1))


def packed_rows(codes: Array) -> Array:
    """Codes of 4 bits ``[K, N]`` as bytes ``[K / 2, N]``: row 2j low, row 2j + 1 high."""
    return np.asarray(codes[0::2] | (codes[1::2] << np.uint8(4)))


def unpacked_rows(codes: Array) -> Array:
    """The inverse of ``packed_rows``."""
    halves = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=1)
    return halves.reshape(-1, codes.shape[1])


def nbits_weights(
    codes: Array,
    scales: Array,
    zeros: Array | None,
    *,
    sizes: tuple[int, int],
    bits: int,
    block: int,
) -> Weights:
    """The weights of a MatMulNBits.

    Args:
        codes, scales, zeros: its inputs 1 to 3.
        sizes: K and N.

    Raises:
        ValueError: sizes do not agree.
    """
    depth, columns = sizes
    groups = -(-depth // block)
    whole = unpacked(codes.reshape(columns, groups, -1), bits).reshape(columns, -1)[:, :depth]
    steps = scales.reshape(columns, groups)
    middle: Array | int = 1 << (bits - 1)
    if zeros is not None and zeros.dtype == np.uint8:
        middle = unpacked(zeros.reshape(columns, -1), bits)[:, :groups].T
    elif zeros is not None:
        middle = zeros.reshape(columns, groups).T
    return Weights(codes=whole.T, scales=steps.T, zeros=middle, block=block)


@operator("MatMulNBits", NBITS_DOMAIN)
def matmul_nbits(
    call: Call,
    a: Array,
    codes: Array,
    scales: Array,
    zeros: Array | None = None,
    order: Array | None = None,
    bias: Array | None = None,
) -> Outputs:
    if order is not None:
        raise call.error("g_idx is not known")
    try:
        weights = nbits_weights(
            codes,
            scales,
            zeros,
            sizes=(call.integer("K"), call.integer("N")),
            bits=call.integer("bits", 4),
            block=call.integer("block_size"),
        )
    except ValueError as error:
        raise call.error(str(error)) from error
    result = product(a, weights.floats(a.dtype))
    return (result if bias is None else result + bias.astype(a.dtype),)


@operator("MatMulWeights", DOMAIN)
def matmul_weights(
    call: Call, a: Array, codes: Array, scales: Array, zeros: Array | None = None
) -> Outputs:
    weights = Weights(
        codes=unpacked_rows(codes) if call.integer("bits", 8) == 4 else codes,
        scales=scales,
        zeros=call.integer("zero", 0) if zeros is None else zeros,
        block=call.integer("block_size"),
    )
    return (product(a, weights.floats(a.dtype)),)
