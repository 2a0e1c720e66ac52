"""One kernel for a softmax that was lowered in stages, where a GPU may join it with its products.

    h = max s, e = exp(s - h), l = sum e;  y = l == 0 ? 0 : (sum e * v) / l
    ->  w = exp(s - max s) / sum exp(s - max s);  y = sum w * v
Input -> Output: a fused draft of narrow values, edited in place.
Requires: that the first key is seen by every query, so that no sum is 0; values e and l that
nothing else reads.
Not here: joining them (join_attention).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Call,
    Cast,
    Const,
    DimValue,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    call,
    load,
    reduce_axes,
    walk,
)
from tilewright.lower.context import View


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A kernel in three stages: what it reads, and what it stores."""

    kernel: Kernel
    scores: Load
    weights: str
    total: str


def pure_softmax_program(program: DraftProgram, log: DecisionLog) -> None:
    """Rewrites in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, log)


def _segment(step: DraftSegment, log: DecisionLog) -> None:
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    makers = {kernel.outputs[0].name: kernel for kernel in kernels if kernel.is_pure}
    for kernel in kernels:
        found = _softmax(kernel)
        if found is None or {found.weights, found.total} & {*step.keep, *_viewed(step)}:
            continue
        users = [k for k in kernels if {b.name for b in k.inputs} & {found.weights, found.total}]
        maker = makers.get(found.scores.buffer)
        if len(users) != 1 or maker is None or not _sees_first(maker.stages[0].stores[0].value):
            continue
        product = _undivided(users[0], found)
        if product is None:
            continue
        swap = {id(kernel): _pure(found), id(users[0]): product}
        step.items = [swap.get(id(item), item) for item in step.items]
        log.add("attention", "+".join(kernel.sources), "a softmax in one stage")


def _viewed(step: DraftSegment) -> set[str]:
    return {item.source.name for item in step.items if isinstance(item, View)}


def _softmax(kernel: Kernel) -> _Softmax | None:
    sizes = (len(kernel.inputs), len(kernel.outputs), len(kernel.temporaries))
    if len(kernel.stages) != 3 or sizes != (1, 2, 1) or kernel.steps is not None:
        return None
    if any(len(stage.stores) != 1 or stage.stores[0].guard for stage in kernel.stages):
        return None
    highest, weights, total = (stage.stores[0] for stage in kernel.stages)
    combiners = [
        [node.combiner for node in walk(store.value) if isinstance(node, Reduce)]
        for store in (highest, weights, total)
    ]
    exponents = [n for n in walk(weights.value) if isinstance(n, Call) and n.op == "exp"]
    loads = [n for n in walk(weights.value) if isinstance(n, Load)]
    scores = [node for node in loads if node.buffer == kernel.inputs[0].name]
    if combiners != [["max"], [], ["sum"]] or len(exponents) != 1 or len(scores) != 1:
        return None
    if {node.buffer for node in loads} != {scores[0].buffer, highest.buffer}:
        return None
    return _Softmax(kernel, scores[0], weights.buffer, total.buffer)


def _sees_first(value: Expr) -> bool:
    """Whether nothing hides the first key: no mask, or the causal one, ``j <= i + n``."""
    if isinstance(value, Cast):
        return _sees_first(value.arg)
    hides = [n for n in walk(value) if isinstance(n, Const) and n.dtype.is_float]
    if not any(float(node.value) == -math.inf for node in hides):
        loads = {node.buffer for node in walk(value) if isinstance(node, Load)}
        return len(loads) <= 2  # no mask is added
    if not isinstance(value, Call) or value.op != "select":
        return False
    test, then, other = value.args
    known = isinstance(other, Const) and float(other.value) == -math.inf
    causal = isinstance(test, Call) and test.op == "le" and isinstance(test.args[0], AxisVar)
    return known and causal and _is_positive(test.children[1]) and _sees_first(then)


def _is_positive(node: Expr) -> bool:
    if isinstance(node, Const):
        return int(node.value) >= 0
    if isinstance(node, Call):
        return node.op == "add" and all(_is_positive(part) for part in node.args)
    return isinstance(node, AxisVar | DimValue)


def _pure(found: _Softmax) -> Kernel:
    stage = found.kernel.stages[1]
    store, scores, last = stage.stores[0], found.scores, stage.axes[-1]

    def score(axis: Axis) -> Expr:
        return load(scores.buffer, scores.dtype, (*scores.index[:-1], axis.var)).cast(FLOAT32)

    first, second = (Axis(f"{last.name}_{part}", last.extent) for part in ("m", "l"))
    highest = reduce_axes("max", (first,), score(first))
    below = reduce_axes("sum", (second,), call("exp", score(second) - highest))
    weight = call("exp", score(last) - highest) / below
    outputs = tuple(b for b in found.kernel.outputs if b.name == found.weights)
    return replace(
        found.kernel,
        outputs=outputs,
        temporaries=(),
        stages=(Stage(stage.axes, (replace(store, value=weight.cast(store.value.dtype)),)),),
    )


def _undivided(kernel: Kernel, found: _Softmax) -> Kernel | None:
    """Weighted values without the division by the total."""
    if not kernel.is_pure:
        return None
    (stage,) = kernel.stages
    (store,) = stage.stores
    value = store.value.arg if isinstance(store.value, Cast) else store.value
    if not isinstance(value, Call) or value.op != "select":
        return None
    share = value.args[2]
    if not isinstance(share, Call) or share.op != "div" or not isinstance(share.args[0], Reduce):
        return None
    totals = {n.buffer for n in walk(share.args[0]) if isinstance(n, Load)}
    below = {n.buffer for n in walk(share.args[1]) if isinstance(n, Load)}
    if below != {found.total} or found.total in totals or found.weights not in totals:
        return None
    made = share.args[0].cast(store.value.dtype)
    return replace(
        kernel,
        inputs=tuple(buffer for buffer in kernel.inputs if buffer.name != found.total),
        stages=(replace(stage, stores=(replace(store, value=made),)),),
    )
