"""Keep values of float8 as they are quantised, and take their scales out of sums.

    d[i] = float32(q8) * s;  sum over k: d[m, k] * (float32(w8[n, k]) * t[n])
    ->  d[i] = q8;  (sum over k: float32(d[m, k]) * float32(w8[n, k])) * (s * t[n])
    q8 = float8(x / s + 0)  ->  float8(x / s)
Input -> Output: a fused draft, edited in place.
Why: tensor cores multiply float8 (e4m3), twice as many a cycle as float16, and memory holds half.
Requires: GPUs with such instructions; zero points of 0; scales that no sum runs along.
Guarantees: inputs, outputs and what steps of the host read keep their types; sums are float32, and
are multiplied by scales instead of their terms.
Not here: products of integers (graph.passes), float16 (narrow).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    cast,
    constant,
    load,
    reduce_axes,
    select,
    substitute,
    walk,
)
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import View

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaled:
    """``float32(code) * scale``, as expressions over the axes of what stores it."""

    code: Expr
    scale: Expr


def keep_float8_program(
    program: DraftProgram, constants: Mapping[str, Array], log: DecisionLog
) -> None:
    """Edits every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


def _segment(step: DraftSegment, constants: Mapping[str, Array], log: DecisionLog) -> None:
    viewed = {b.name for i in step.items if isinstance(i, View) for b in (i.source, i.target)}
    found: dict[str, tuple[Kernel, _Scaled]] = {}
    for item in step.items:
        if not isinstance(item, Kernel) or not item.is_pure:
            continue
        own = item.outputs[0]
        scaled = _scaled(item.stages[0].stores[0].value, constants)
        if scaled is not None and own.name not in viewed and own.name not in step.keep:
            found[own.name] = item, scaled
    if found:
        step.items = [
            _kernel(item, found, constants) if isinstance(item, Kernel) else item
            for item in step.items
            if not (isinstance(item, Kernel) and _is_moved(item, found))
        ]
        subject = f"segment of {len(step.items)} kernels and views"
        log.add("float8", subject, f"{len(found)} values and weights are kept as float8_e4m3fn")


def _scaled(value: Expr, constants: Mapping[str, Array]) -> _Scaled | None:
    """The parts of a dequantised value whose zero point is 0."""
    if not isinstance(value, Call) or value.op != "mul":
        return None
    wide, scale = value.args
    if isinstance(wide, Call) and wide.op == "sub" and _is_zero(wide.args[1], constants):
        wide = wide.args[0]
    if not isinstance(wide, Cast) or wide.arg.dtype is not FLOAT8_E4M3FN or wide.bits:
        return None
    known = isinstance(scale, Load) and scale.buffer in constants
    return _Scaled(code=wide.arg, scale=scale) if known or isinstance(scale, Const) else None


def _is_zero(value: Expr, constants: Mapping[str, Array]) -> bool:
    if isinstance(value, Cast):
        value = value.arg
    if isinstance(value, Load) and value.buffer in constants:
        return not constants[value.buffer].astype(float).any()
    return isinstance(value, Const) and float(value.value) == 0


def _is_moved(kernel: Kernel, found: Mapping[str, tuple[Kernel, _Scaled]]) -> bool:
    """Whether a kernel only dequantises what there is, weights say, which its readers then do."""
    own = found.get(kernel.outputs[0].name)
    return own is not None and own[0] is kernel and isinstance(own[1].code, Load)


def _loaded(node: Load, maker: Kernel, scaled: _Scaled) -> tuple[Expr, Expr]:
    """The code and the scale at the place of a load."""
    names = [axis.name for axis in maker.stages[0].axes]
    at = dict(zip(names, node.index, strict=True))
    if isinstance(scaled.code, Load):
        return substitute(scaled.code, at), substitute(scaled.scale, at)
    return load(node.buffer, FLOAT8_E4M3FN, node.index), substitute(scaled.scale, at)


def _kernel(
    kernel: Kernel, found: Mapping[str, tuple[Kernel, _Scaled]], constants: Mapping[str, Array]
) -> Kernel:
    reads = {b.name for b in kernel.inputs} & found.keys()
    own = found.get(kernel.outputs[0].name) if len(kernel.outputs) == 1 else None
    if not reads and own is None:
        return kernel

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Reduce) and node.combiner == "sum":
            return _without_scales(node)
        if isinstance(node, Load) and node.buffer in reads:
            code, scale = _loaded(node, *found[node.buffer])
            return code.cast(FLOAT32) * scale
        if isinstance(node, Cast) and node.dtype is FLOAT8_E4M3FN and not node.bits:
            return _without_zero(node, constants)
        return None

    stages = []
    for stage in kernel.stages:
        stores = tuple(store.mapped(lambda root: rewrite(root, rule)) for store in stage.stores)
        if own is not None:
            value = stores[0].value
            assert isinstance(value, Call)
            wide = value.args[0].children[0] if isinstance(value.args[0], Call) else value.args[0]
            assert isinstance(wide, Cast)
            stores = (replace(stores[0], value=wide.arg),)
        stages.append(Stage(stage.axes, stores))
    inputs = {b.name: _narrow(b, found) for b in kernel.inputs}
    for name in sorted(reads):
        inputs.update({b.name: b for b in found[name][0].inputs if b.name not in inputs})
    roots = [root for stage in stages for root in stage.roots]
    read = {node.buffer for node in walk(*roots) if isinstance(node, Load)}
    return replace(
        kernel,
        inputs=tuple(buffer for buffer in inputs.values() if buffer.name in read),
        outputs=tuple(_narrow(b, found) for b in kernel.outputs),
        stages=tuple(stages),
    )


def _without_zero(node: Cast, constants: Mapping[str, Array]) -> Expr | None:
    """A quantised value without its zero point."""
    value = node.arg
    if isinstance(value, Call) and value.op == "add" and _is_zero(value.args[1], constants):
        value = value.args[0]
    same = value is node.arg
    return None if same else cast(value, FLOAT8_E4M3FN, saturate=node.saturate)


def _narrow(buffer: Buffer, found: Mapping[str, tuple[Kernel, _Scaled]]) -> Buffer:
    return replace(buffer, dtype=FLOAT8_E4M3FN) if buffer.name in found else buffer


def _without_scales(node: Reduce) -> Expr | None:
    """The sum of unscaled products, times their scales."""
    body = node.body
    if not isinstance(body, Call) or body.op != "mul" or node.dtype is not FLOAT32:
        return None
    inner = {axis.name for axis in node.axes}
    parts = [_split(factor) for factor in body.args]
    known = [scale for _, scale in parts if scale is not None]
    if len(known) < len(parts) or any(scale.free_axes & inner for scale in known):
        return None
    total = reduce_axes("sum", node.axes, parts[0][0] * parts[1][0])
    return total * (known[0] * known[1])


def _split(factor: Expr) -> tuple[Expr, Expr | None]:
    """A factor without its scale, and that."""
    if isinstance(factor, Call) and factor.op == "select":
        test, value, other = factor.args
        code, scale = _split(value)
        if scale is not None and isinstance(other, Const) and float(other.value) == 0:
            return select(test, code, constant(0.0, FLOAT32)), scale
    if not isinstance(factor, Call) or factor.op != "mul":
        return factor, None
    code, scale = factor.args
    is_code = isinstance(code, Cast) and code.arg.dtype is FLOAT8_E4M3FN
    return (code, scale) if is_code else (factor, None)
