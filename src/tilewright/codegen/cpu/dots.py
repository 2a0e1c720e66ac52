"""Dot products of four bytes or two bfloat16, a vector of outputs at a time.

    acc[lane] += sum(j: 4) a[j] * b[lane][j]       one word of a for all lanes
    acc[lane] += sum(j: 4) a[j][lane] * b[lane][j]   four vectors of bytes, taken apart by lanes
Input -> Output: a nest and one of its reductions -> ``Dot``; operands of a variant -> the sum.
Guarantees: of bytes, exact on every target, saturating nowhere: VNNI where there is it, pairs of
16-bit products elsewhere on x86, products of 32 bits on others. Of bfloat16, where the processor
has the instruction (``dot_kinds``): products are added in float32 one after the other, numbers
below the least normal float32 count as 0.
Not here: loops (reductions), which reductions are made of dot products (kernel.dot).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.emit import I32, Builder, Type, Value, constant, int_type
from tilewright.codegen.cpu.frame import Variant
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.values import BFLOAT
from tilewright.core.shape import Dim
from tilewright.kernel.blocked import conjuncts
from tilewright.kernel.dot import BYTES, PAIRS, DotKind, factors, kind_of, terms_of
from tilewright.kernel.ir import Call, Cast, Const, Expr, Load, Reduce
from tilewright.kernel.nest import Nest

if TYPE_CHECKING:
    from tilewright.codegen.cpu.evaluate import Evaluator

_ONE, _ZERO = Dim.of(1), Dim.of(0)
_MULTIPLY_PAIRS = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}


@dataclass(frozen=True, slots=True)
class Dot:
    """A reduction whose innermost axis is a dot product.

    Attributes:
        kind: what it multiplies.
        axis: that axis.
        data: one word for all lanes, or a byte a lane and step.
        flip: what each byte of it is combined with by exclusive or.
        weights: one word a lane.
        is_spread: the data has a byte a lane.
        inside: conditions, all of which hold where products are not 0.
    """

    kind: DotKind
    axis: str
    data: Load
    flip: int
    weights: Load
    is_spread: bool
    inside: tuple[Expr, ...]


def dot_kinds(target: CpuTarget) -> tuple[DotKind, ...]:
    """The kinds of dot products that a processor computes faster than sums of products."""
    has_pairs = target.architecture == "x86_64" and target.has_bf16
    return (BYTES, PAIRS) if has_pairs else (BYTES,)


def dot_of(nest: Nest, node: Reduce, vector: str, lanes: int, target: CpuTarget) -> Dot | None:
    """The dot product that a reduction is for vectors of so many lanes along an axis, or None."""
    found, kind = factors(node), kind_of(node)
    axes = nest.reduce_axes[id(node)]
    if found is None or kind not in dot_kinds(target) or axes[-1].extent != Dim.of(kind.unit):
        return None
    axis, data = axes[-1].name, _unflipped(found[0])
    if data is None or id(found[1]) not in nest.loads:
        return None
    left, right = nest.loads[id(data[0])], nest.loads[id(found[1])]
    strides = left.stride(axis), left.stride(vector)
    spread = [(Dim.of(lanes), _ONE)] if kind is BYTES else []
    if strides not in ((_ONE, _ZERO), *spread):
        return None
    steps = (right.stride(axis), right.stride(vector))
    if steps != (_ONE, Dim.of(kind.unit)) or right.rest or left.rest:
        return None
    inside, term = terms_of(node)
    wide = term.args if isinstance(term, Call) else ()
    if not all(
        isinstance(part, Cast) and part.arg is own for part, own in zip(wide, found, strict=True)
    ):
        return None  # guarded: what a guard keeps from being read may lie outside of its buffer
    conditions = () if inside is None else tuple(conjuncts(inside))
    if any({vector, axis} & nest.depends(condition) for condition in conditions):
        return None  # products of one dot product come together
    return Dot(
        kind, axis, data[0], data[1], found[1], is_spread=strides[1] == _ONE, inside=conditions
    )


def _unflipped(expr: Expr) -> tuple[Load, int] | None:
    """A load, and the byte that its bytes are combined with."""
    flip = 0
    if isinstance(expr, Call) and expr.op == "xor" and isinstance(expr.args[1], Const):
        flip, expr = int(expr.args[1].value), expr.args[0]
    while isinstance(expr, Cast) and expr.bits:
        expr = expr.arg
    return (expr, flip) if isinstance(expr, Load) else None


def accumulate(ev: Evaluator, dot: Dot, total: Value, variant: Variant) -> Value:
    """The total and one dot product in each lane."""
    lanes = total.type.lanes
    b = ev.b
    data = _data(ev, dot, variant, lanes)
    weights = _weights(ev, dot, variant, int_type(8, 4 * lanes))
    bits = 32 * lanes
    if dot.kind is PAIRS:
        halves = BFLOAT.with_lanes(2 * lanes)
        operands = [b.bitcast(value, halves) for value in (data, weights)]
        return b.call(f"llvm.x86.avx512bf16.dpbf16ps.{bits}", total.type, [total, *operands])
    if b.target.has_vnni and bits in _MULTIPLY_PAIRS:
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        return b.call(name, total.type, [total, b.bitcast(data, weights.type), weights])
    if b.target.architecture == "x86_64" and bits in _MULTIPLY_PAIRS:
        return _by_pairs(b, total, data, weights)
    return _one_by_one(b, total, data, weights)


def _data(ev: Evaluator, dot: Dot, variant: Variant, lanes: int) -> Value:
    """The data's four bytes of each lane, as a word."""
    key = ("dot", id(dot.data), *ev.project(ev.nest.depends(dot.data), variant))
    found = ev.recall(key)
    if found is not None:
        return ev.b.splat(found, lanes)
    b = ev.b
    where, _ = ev.place(ev.nest.loads[id(dot.data)], id(dot.data), variant)
    address = b.gep(ev.pointer(dot.data.buffer), where, dot.data.dtype.storage_bytes)
    if dot.is_spread:
        rows = b.load(int_type(8, BYTES.unit * lanes), address, 1)
        turned = [row * lanes + lane for lane in range(lanes) for row in range(BYTES.unit)]
        word = b.bitcast(b.shuffle(rows, None, turned), I32.with_lanes(lanes))
    else:
        word = b.load(I32, address, 1)
    if dot.flip:
        word = b.xor(word, constant(word.type, dot.flip * 0x01010101))
    return b.splat(ev.remember(key, word), lanes)


def _weights(ev: Evaluator, dot: Dot, variant: Variant, wide: Type) -> Value:
    key = ("dot", id(dot.weights), *ev.project(ev.nest.depends(dot.weights), variant))
    found = ev.recall(key)
    if found is not None:
        return found
    where, _ = ev.place(ev.nest.loads[id(dot.weights)], id(dot.weights), variant)
    size = dot.weights.dtype.storage_bytes
    value = ev.b.load(wide, ev.b.gep(ev.pointer(dot.weights.buffer), where, size), 1)
    return ev.remember(key, value)


def _by_pairs(b: Builder, total: Value, data: Value, weights: Value) -> Value:
    """Even and odd bytes as 16-bit numbers; the sum of two products of them fits 32 bits."""
    halves = int_type(16, 2 * total.type.lanes)
    eight, low = constant(halves, 8), constant(halves, 255)
    left, right = b.bitcast(data, halves), b.bitcast(weights, halves)
    name = f"llvm.x86.{_MULTIPLY_PAIRS[32 * total.type.lanes]}"
    for bytes_, own in (
        (b.and_(left, low), b.ashr(b.shl(right, eight), eight)),
        (b.lshr(left, eight), b.ashr(right, eight)),
    ):
        total = b.add(total, b.call(name, total.type, [bytes_, own]))
    return total


def _one_by_one(b: Builder, total: Value, data: Value, weights: Value) -> Value:
    kind = total.type
    words = b.bitcast(weights, kind)
    for place in range(BYTES.unit):
        byte = b.and_(b.lshr(data, constant(kind, 8 * place)), constant(kind, 255))
        own = b.ashr(b.shl(words, constant(kind, 24 - 8 * place)), constant(kind, 24))
        total = b.add(total, b.mul(own, byte))
    return total
