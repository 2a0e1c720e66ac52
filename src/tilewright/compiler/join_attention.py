"""Join the kernels of attention into one, where a GPU runs them as one.

    s = q k^T, w = softmax(s), o = w v, y = transposed o   ->   y in one kernel
Input -> Output: a fused draft of float16 or bfloat16, edited in place.
Guarantees: only what ``codegen.cuda.attention`` takes is joined, and only values that nothing else
reads; scores are no longer rounded, weights still are; constant factors of queries and
keys are applied to their products.
Not here: the code (codegen.cuda.attention).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from tilewright.codegen.cuda.attention import attention_refusal
from tilewright.codegen.cuda.decode import decode_refusal
from tilewright.codegen.cuda.softmax_product import joined_rows
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    AxisVar,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    constant,
    rebuild,
    reduce_axes,
    substitute,
    walk,
)
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import View

Array = npt.NDArray[Any]


def join_attention_program(
    program: DraftProgram, constants: Mapping[str, Array], log: DecisionLog
) -> None:
    """Joins in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


@dataclass(slots=True)
class _Joined:
    """An expression that absorbs kernels.

    Attributes:
        makers: pure kernels by what they compute, where only one kernel reads it.
        absorbed: names of what is no longer computed by itself.
    """

    makers: Mapping[str, Kernel]
    absorbed: list[str]

    def inline(self, root: Expr, allowed: Callable[[Expr, bool], bool]) -> Expr:
        """Replaces loads again and again.

        Args:
            allowed: of what computes a value, and whether it is a factor of a product that is
                summed.
        """
        while True:
            factors = _factors(root)
            found = [
                node
                for node in walk(root)
                if isinstance(node, Load)
                and node.buffer in self.makers
                and allowed(_value(self.makers[node.buffer]), node in factors)
            ]
            if not found:
                return root
            done: dict[int, Expr] = {}
            for node in walk(root):
                fresh = rebuild(node, [done[id(child)] for child in node.children])
                done[id(node)] = self._body(fresh) if node in found else fresh
            root = done[id(root)]
            self.absorbed += [n.buffer for n in found if n.buffer not in self.absorbed]

    def _body(self, node: Expr) -> Expr:
        assert isinstance(node, Load)
        maker = self.makers[node.buffer]
        axes = (axis.name for axis in maker.stages[0].axes)
        return substitute(_value(maker), dict(zip(axes, node.index, strict=True)))


def _segment(step: DraftSegment, constants: Mapping[str, Array], log: DecisionLog) -> None:
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    makers = makers_of(step, kernels)
    gone: set[str] = set()
    made: dict[str, Kernel] = {}
    for kernel in kernels:
        joined = _joined(kernel, makers, constants, log)
        if joined is not None:
            made[kernel.outputs[0].name] = joined[0]
            gone.update(joined[1])
    for kernel in kernels:
        source = _permuted(kernel)
        if source in made and source in makers:
            inner = made.pop(source)
            made[kernel.outputs[0].name] = _through(inner, kernel)
            gone.add(source)
    step.items = [
        item if isinstance(item, View) or not item.outputs else made.get(item.outputs[0].name, item)
        for item in step.items
        if isinstance(item, View) or item.outputs[0].name not in gone
    ]


def makers_of(step: DraftSegment, kernels: list[Kernel]) -> dict[str, Kernel]:
    """Pure kernels whose one output only one kernel reads."""
    users: Counter[str] = Counter()
    for item in step.items:
        names = [item.source.name] if isinstance(item, View) else [b.name for b in item.inputs]
        users.update(names)
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    return {
        kernel.outputs[0].name: kernel
        for kernel in kernels
        if kernel.is_pure and users[kernel.outputs[0].name] == 1
        if kernel.outputs[0].name not in viewed and kernel.outputs[0].name not in step.keep
    }


def _value(kernel: Kernel) -> Expr:
    return kernel.stages[0].stores[0].value


def _joined(
    kernel: Kernel, makers: Mapping[str, Kernel], constants: Mapping[str, Array], log: DecisionLog
) -> tuple[Kernel, list[str]] | None:
    """The kernel of weighted values with what makes the weights, and what it absorbed."""
    weights = _weights(kernel, makers) if kernel.is_pure else None
    if weights is None:
        return None
    state = _Joined(makers, [])
    value = _value(kernel)
    weight = state.inline(
        weights, lambda body, _: _is_softmax(body) or _is_elementwise(body, constants)
    )
    weight = state.inline(
        weight,
        lambda body, is_factor: (
            (len(_reductions(body)) == 1 and not is_factor) or _is_elementwise(body, constants)
        ),
    )
    inner = weight.arg if isinstance(weight, Cast) else weight  # stays rounded
    inner = rewrite(inner, lambda node: _simpler(node, constants))
    rounded = inner.cast(weights.dtype)
    value = rewrite(value, lambda node: rounded if node is weights else None)
    value = state.inline(value, lambda body, _: _is_joined(body))
    store = replace(kernel.stages[0].stores[0], value=value)
    sources = [s for name in state.absorbed for s in makers[name].sources]
    buffers = {b.name: b for name in state.absorbed for b in makers[name].inputs}
    buffers |= {b.name: b for b in kernel.inputs}
    loads = dict.fromkeys(node.buffer for node in walk(value) if isinstance(node, Load))
    made = replace(
        kernel,
        name="Attention",
        inputs=tuple(buffers[name] for name in loads),
        stages=(Stage(kernel.stages[0].axes, (store,)),),
        sources=tuple(dict.fromkeys((*sources, *kernel.sources))),
    )
    reason = attention_refusal(made)
    if reason is not None and decode_refusal(made) is not None:
        log.add("attention", "+".join(kernel.sources), "separate kernels", (("join", reason),))
        return None
    log.add("attention", "+".join(made.sources), f"one kernel of {len(state.absorbed) + 1}")
    return made, state.absorbed


def _weights(kernel: Kernel, makers: Mapping[str, Kernel]) -> Expr | None:
    """The load of weights that a softmax made, of a kernel that sums their products."""
    for node in _reductions(_value(kernel)):
        body = node.body
        if node.combiner != "sum" or not isinstance(body, Call) or body.op != "mul":
            continue
        for part in body.args:
            name = _loaded(part)
            while name in makers and not _reductions(_value(makers[name])):
                inputs = {n.buffer for n in walk(_value(makers[name])) if isinstance(n, Load)}
                inputs &= makers.keys()
                if len(inputs) != 1:
                    break
                (name,) = inputs
            if name in makers and _is_softmax(_value(makers[name])):
                return part.arg if isinstance(part, Cast) else part
    return None


def _loaded(node: Expr) -> str:
    """The buffer of a widened load; nothing for anything else."""
    if isinstance(node, Cast) and node.dtype is FLOAT32 and isinstance(node.arg, Load):
        return node.arg.buffer
    return ""


def _reductions(value: Expr) -> list[Reduce]:
    return [node for node in walk(value) if isinstance(node, Reduce)]


def _factors(root: Expr) -> set[Load]:
    """What is multiplied in sums of products: operands of the scores, not the scores."""
    found: set[Load] = set()
    for node in _reductions(root):
        if node.combiner == "sum" and isinstance(node.body, Call) and node.body.op == "mul":
            found.update(part for part in walk(node.body) if isinstance(part, Load))
    return found


def _is_elementwise(value: Expr, constants: Mapping[str, Array]) -> bool:
    """Whether a value is computed from float16 values and constants, without a reduction."""
    loads = [n for n in walk(value) if isinstance(n, Load) and n.buffer not in constants]
    return not _reductions(value) and all(node.dtype is not FLOAT32 for node in loads)


def _is_joined(value: Expr) -> bool:
    """Whether a value is one of two along an axis: past and new keys."""
    axes = [node.name for node in walk(value) if isinstance(node, AxisVar)]
    rows = [joined_rows(value, axis) for axis in axes]
    return any(found is not None and len(found.loads) == 2 for found in rows)


def _is_softmax(value: Expr) -> bool:
    return sorted(node.combiner for node in _reductions(value)) == ["max", "sum"]


def _simpler(node: Expr, constants: Mapping[str, Array]) -> Expr | None:
    """Known numbers for loads of them, no rounding in between, factors outside of their sum."""
    if isinstance(node, Load) and node.buffer in constants:
        array = constants[node.buffer]
        return constant(array.reshape(-1)[0].item(), node.dtype) if array.size == 1 else None
    if isinstance(node, Cast) and node.dtype is FLOAT32 and isinstance(node.arg, Cast):
        half = node.arg
        return half.arg if half.dtype in (FLOAT16, BFLOAT16) and half.arg.dtype is FLOAT32 else None
    if isinstance(node, Reduce) and node.combiner == "sum":
        return _factored(node)
    return None


def _factored(node: Reduce) -> Expr | None:
    """The sum of products with its constant factors outside."""
    factors, stack = [], [node.body]
    while stack:
        part = stack.pop()
        if isinstance(part, Call) and part.op == "mul":
            stack.extend(part.args)
        else:
            factors.append(part)
    known = [part for part in factors if isinstance(part, Const)]
    others = [part for part in factors if not isinstance(part, Const)]
    if not known or len(others) != 2:
        return None
    scale = 1.0
    for part in known:
        scale *= float(part.value)
    total = reduce_axes("sum", node.axes, others[1] * others[0])
    return total * constant(scale, FLOAT32)


def _permuted(kernel: Kernel) -> str:
    """What a pure kernel copies with its axes in another order; nothing for any other kernel."""
    value = _value(kernel) if kernel.is_pure else None
    if not isinstance(value, Load) or not all(isinstance(p, AxisVar) for p in value.index):
        return ""
    names = [part.name for part in value.index if isinstance(part, AxisVar)]
    return value.buffer if len(set(names)) == len(kernel.stages[0].axes) == len(names) else ""


def _through(inner: Kernel, outer: Kernel) -> Kernel:
    """The inner kernel, storing what the outer one would make of it."""
    (stage,) = outer.stages
    load = stage.stores[0].value
    assert isinstance(load, Load)
    axes = (axis.name for axis in inner.stages[0].axes)
    value = substitute(_value(inner), dict(zip(axes, load.index, strict=True)))
    store = Store(stage.stores[0].buffer, stage.stores[0].index, value)
    return replace(
        inner,
        outputs=outer.outputs,
        stages=(Stage(stage.axes, (store,)),),
        sources=(*inner.sources, *outer.sources),
    )
