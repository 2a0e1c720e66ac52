"""Weights of few bits, activations in float: smaller models that compute the same to a few percent.

    MatMul(a, w)  ->  MatMul(a, DequantizeLinear(w', s, z))    a scale for each block of a column
Input -> Output: a model and options -> ``Quantized``: ONNX that ONNX Runtime runs too.
Method: round to nearest; each block's range is the one of a grid that loses least (mean squared
error).  8 bits are symmetric (int8); 4 bits have a zero point a block (uint4).
Guarantees: deterministic, needs no data; what stays in float has a reason among the decisions.
Not here: products of integers (quantize), how such weights are run (graph.passes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.compress.layers import Layer, Plan, find_layers
from tilewright.compress.quantize import Quantized
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption
from tilewright.core.record import DecisionLog
from tilewright.graph.insert_qdq import Affine, QuantizedLayer, Recipe
from tilewright.graph.quantizable import Quantizable, serialized
from tilewright.lower.families import LOWERINGS

Array = npt.NDArray[Any]

_KINDS = ("int8", "int4")
_PRODUCTS = ("MatMul", "Gemm")
_LEAST_BLOCK = 16
# Shares of the full range that are tried; 8 bits lose little by outliers.
_SHARES = {8: np.linspace(1.0, 0.88, 7), 4: np.linspace(1.0, 0.52, 25)}
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Weights in blocks.

    Attributes:
        codes: integers ``[groups, block, columns]``.
        scale, zero: ``[groups, columns]``.
    """

    codes: Array
    scale: Array
    zero: Array

    def floats(self) -> Array:
        """What the integers stand for."""
        shifted = self.codes.astype(np.float32) - self.zero[:, None].astype(np.float32)
        return shifted * self.scale[:, None]


def quantize_weights(
    model: Any,
    *,
    weights: str = "int8",
    block: int = 32,
    search: bool = True,
    exclude: Iterable[str] | None = None,
) -> Quantized:
    """Quantises the weights of matrix products.

    Args:
        model: a path, the bytes of an ONNX file, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        weights: ``int8`` or ``int4``.
        block: rows of weights that share a scale, a power of two from 16; a layer whose rows are no
            whole blocks has smaller ones, or one a column.
        search: look for the range that loses least; False: the full range.
        exclude: names of nodes to leave in float.

    Returns:
        The model in ONNX with its decisions.

    Raises:
        InvalidModel, UnsupportedOp: the model cannot be read.
        BadOption: an option is unknown, or nothing can be quantised.
    """
    bits = 8 if check.one_of("weights", weights, _KINDS) == "int8" else 4
    size = check.whole("block", block, _LEAST_BLOCK)
    if size & (size - 1):
        raise BadOption(f"block={size} is no power of two", remedy="use 32, 64 or 128")
    shares = _SHARES[bits] if check.flag("search", search) else _SHARES[bits][:1]
    log = DecisionLog()
    loaded = Quantizable.load(model, log, known=lambda *op: op in LOWERINGS)
    plan = find_layers(loaded.view(), exclude=check.names("exclude", exclude or (), '["head"]'))
    chosen = _products(plan, log)
    if not chosen:
        raise BadOption(
            "no product with constant float weights",
            file=loaded.name,
            remedy="give a model with MatMul or Gemm whose weights are float32",
        )
    made = tuple(_quantized(layer, bits, size, shares, log) for layer in chosen)
    emitted = serialized(loaded.quantized(Recipe(layers=made), log), loaded.infos())
    return Quantized(
        model=emitted,
        decisions=tuple(log.entries),
        summary={
            "layers": len(made),
            "weights": weights,
            "float_bytes": sum(layer.weights.nbytes for layer in chosen),
            "bytes": len(emitted),
        },
    )


def _products(plan: Plan, log: DecisionLog) -> list[Layer]:
    for node, op_type, reason in plan.kept:
        log.add("weight_only", node, f"{op_type} kept in float", (("small weights", reason),))
    for layer in plan.layers:
        if layer.op_type not in _PRODUCTS:
            reason = "only matrix products widen weights"
            log.add(
                "weight_only",
                layer.node,
                f"{layer.op_type} kept in float",
                (("small weights", reason),),
            )
    return [layer for layer in plan.layers if layer.op_type in _PRODUCTS]


def block_of(depth: int, most: int) -> int:
    """The largest block up to ``most`` that divides the rows; all of them where it is too small."""
    found = most
    while found >= _LEAST_BLOCK and depth % found:
        found //= 2
    return found if found >= _LEAST_BLOCK else depth


def _quantized(
    layer: Layer, bits: int, block: int, shares: Array, log: DecisionLog
) -> QuantizedLayer:
    rows = layer.weights.T if layer.transposed else layer.weights
    depth, columns = rows.shape
    size = block_of(depth, block)
    found = in_blocks(rows.reshape(-1, size, columns), bits, shares)
    codes = found.codes.reshape(depth, columns)
    params = Affine(scale=found.scale, zero=found.zero, axis=0, block=size)
    if layer.transposed:
        codes = np.ascontiguousarray(codes.T)
        params = Affine(scale=found.scale.T.copy(), zero=found.zero.T.copy(), axis=1, block=size)
    error = found.floats().reshape(depth, columns) - rows
    power = float(np.square(rows, dtype=np.float64).sum())
    ratio = float(np.square(error, dtype=np.float64).sum()) / power if power else 0.0
    note = f"{bits} bits, a scale for {size} rows, relative squared error {ratio:.2e}"
    log.add("weight_only", layer.node, note)
    return QuantizedLayer(node=layer.node, weights=codes, params=params)


def in_blocks(weights: Array, bits: int, shares: Array) -> Blocks:
    """Rounds blocks with the range, of the given shares of the full one, that loses least.

    Args:
        weights: float32 ``[groups, block, columns]``.
        bits: 8 (symmetric) or 4 (with a zero point).
        shares: of the full range, the first one wins ties.
    """
    best: Blocks | None = None
    least: Array = np.full(weights.shape[::2], np.inf)
    for share in shares:
        found = (_symmetric if bits == 8 else _with_zero)(weights, float(share))
        lost = np.square(found.floats() - weights).sum(1)
        if best is None:
            best, least = found, lost
            continue
        better = lost < least
        least = np.where(better, lost, least)
        best = Blocks(
            codes=np.where(better[:, None], found.codes, best.codes),
            scale=np.where(better, found.scale, best.scale),
            zero=np.where(better, found.zero, best.zero),
        )
    assert best is not None
    kind = np.dtype(np.int8) if bits == 8 else np.dtype(ml_dtypes.uint4)
    return Blocks(codes=best.codes.astype(kind), scale=best.scale, zero=best.zero.astype(kind))


def _symmetric(weights: Array, share: float) -> Blocks:
    scale = _guarded(np.abs(weights).max(1) * np.float32(share / 127))
    codes = np.clip(np.rint(weights / scale[:, None]), -127, 127).astype(np.int8)
    return Blocks(codes=codes, scale=scale, zero=np.zeros(scale.shape, np.int8))


def _with_zero(weights: Array, share: float) -> Blocks:
    low, high = np.minimum(weights.min(1), 0), np.maximum(weights.max(1), 0)
    scale = _guarded((high - low) * np.float32(share / 15))
    zero = np.clip(np.rint(-low * np.float32(share) / scale), 0, 15)
    codes = np.clip(np.rint(weights / scale[:, None]) + zero[:, None], 0, 15)
    return Blocks(codes=codes.astype(np.uint8), scale=scale, zero=zero.astype(np.uint8))


def _guarded(scale: Array) -> Array:
    """A block of zeros has scale 1."""
    return np.where(scale < _TINY, np.float32(1), scale).astype(np.float32)
