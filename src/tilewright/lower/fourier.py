"""Coefficients of discrete Fourier transforms, as a matrix or as a table of roots of unity.

    y[f] = sum_k x[k] * exp(-+ 2 pi i k f / L)   [/ L for inverse]     numbers are pairs (re, im)
Input -> Output: length and kind of a transform -> ``Coefficients``, and the contraction's term.
Guarantees: angles are reduced exactly (k * f mod L) and evaluated in float64.
Not here: operators (signal); fast algorithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, call, constant, dim_value, select
from tilewright.lower.context import Lowering

_MATRIX_ELEMENTS = 1 << 23  # a longer transform looks its coefficients up in a table of L roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One kind of transform.

    Attributes:
        length: L.
        inverse, onesided: as in ONNX's DFT; both: from half a spectrum to a real signal.
        complex_input: whether the input has an imaginary part.
    """

    length: Dim
    inverse: bool
    onesided: bool
    complex_input: bool

    @property
    def taps(self) -> Dim:
        """Number of input elements that matter."""
        half = self.inverse and self.onesided
        return self.length // 2 + 1 if half else self.length

    @property
    def bins(self) -> Dim:
        """Number of output elements."""
        half = self.onesided and not self.inverse
        return self.length // 2 + 1 if half else self.length

    @property
    def parts_in(self) -> int:
        return 2 if self.complex_input else 1

    @property
    def parts_out(self) -> int:
        return 1 if self.inverse and self.onesided else 2


def coefficient_matrix(transform: Transform) -> npt.NDArray[np.float64]:
    """[taps, parts in, bins, parts out] for a known length."""
    length = transform.length.const
    k, f = np.arange(transform.taps.const)[:, None], np.arange(transform.bins.const)
    angle = (k * f % length) * (2 * np.pi / length)
    cos, sin = np.cos(angle), np.sin(angle) * (1 if transform.inverse else -1)
    full = np.array([[cos, sin], [-sin, cos]]).transpose(2, 0, 3, 1)
    if transform.inverse:
        full = full / length
        if transform.onesided:
            middle = (k > 0) & (2 * k != length)
            full = full * np.where(middle, 2, 1)[:, :, None, None]
    return np.ascontiguousarray(full[:, : transform.parts_in, :, : transform.parts_out])


def has_matrix(transform: Transform) -> bool:
    """Whether the coefficients are stored as a constant matrix."""
    if not transform.length.is_const:
        return False
    size = transform.taps * transform.bins * (transform.parts_in * transform.parts_out)
    return 0 < size.const <= _MATRIX_ELEMENTS


def emit_coefficients(ctx: Lowering, transform: Transform, dtype: DType) -> Buffer:
    """The matrix as a constant, or a kernel that fills it, [taps, parts in, bins, parts out]."""
    if has_matrix(transform):
        return ctx.constant(coefficient_matrix(transform).astype(dtype.numpy), dtype)
    shape = (transform.taps, transform.parts_in, transform.bins, transform.parts_out)
    roots = emit_roots(ctx, transform.length, FLOAT64)
    out = ctx.temporary(dtype, shape)

    def body(k: Expr, part: Expr, f: Expr, to: Expr) -> Expr:
        cos, sin = _coefficient(transform, roots, k, f)
        real = select(to.eq(0), cos, sin)
        return select(part.eq(0), real, select(to.eq(0), -sin, cos)).cast(dtype)

    return ctx.pure(out, body)


def emit_roots(ctx: Lowering, length: Dim, dtype: DType) -> Buffer:
    """[L, 2]: cosine and sine of 2 pi p / L."""

    def body(p: Expr, part: Expr) -> Expr:
        angle = p.cast(FLOAT64) * (2 * math.pi) / dim_value(length).cast(FLOAT64)
        return select(part.eq(0), call("cos", angle), call("sin", angle)).cast(dtype)

    return ctx.pure(ctx.temporary(dtype, (length, 2)), body)


def _coefficient(transform: Transform, roots: Buffer, k: Expr, f: Expr) -> tuple[Expr, Expr]:
    """Real and imaginary part of the factor of input ``k`` in output ``f``."""
    length = dim_value(transform.length)
    place = call("mod", k * f, length)
    cos, sin = roots[place, 0], roots[place, 1]
    if not transform.inverse:
        return cos, -sin
    scale = 1.0 / length.cast(roots.dtype)
    if transform.onesided:
        edge = call("or", k.eq(0), (k * 2).eq(length))
        scale = scale * select(edge, constant(1.0, roots.dtype), 2.0)
    return cos * scale, sin * scale


def looked_up(
    transform: Transform, roots: Buffer, value: tuple[Expr, ...], k: Expr, f: Expr, to: Expr
) -> Expr:
    """The contribution of input ``k`` (its parts) to part ``to`` of output ``f``."""
    cos, sin = _coefficient(transform, roots, k, f)
    real = value[0] * cos
    imaginary = value[0] * sin
    if len(value) == 2:
        real, imaginary = real - value[1] * sin, imaginary + value[1] * cos
    return real if transform.parts_out == 1 else select(to.eq(0), real, imaginary)
