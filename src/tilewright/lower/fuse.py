"""Vertical fusion: kernels absorb what they load, so that values stay in registers.

Input -> Output: a segment's items in order -> fewer kernels, and a decision for each fusion or
refusal.
    t[i] = f(x[i]);  y[i] = g(t[i])                ->  y[i] = g(f(x[i]))              prologue
    c[m, n] = sum(k: a[m, k]*b[k, n]);  y = f(c+v) ->  y[m, n] = f(sum(...) + v)      epilogue
Requires: verified kernels in execution order.
Guarantees: values are unchanged (intermediate casts stay); only pure kernels are absorbed; every
refusal has a reason.
Not here: horizontal fusion (graph.passes), layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core.record import DecisionLog
from tilewright.core.shape import product
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    rebuild,
    substitute,
    walk,
)
from tilewright.lower.context import Item, View
from tilewright.lower.reindex import Refusal, through_view

_MAX_NODES = 160
_MAX_INPUTS = 12
_CHEAP = 6
_HEAVY_OPS = frozenset(
    "exp log log1p expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid "
    "pow div mod fmod sqrt atan2".split()
)


@dataclass(frozen=True, slots=True)
class Body:
    """The one expression of a pure kernel with its axes."""

    axes: tuple[Axis, ...]
    value: Expr
    kernel: Kernel

    @property
    def anchor(self) -> bool:
        """True when the kernel reduces, so that recomputing it would be expensive."""
        return any(isinstance(node, Reduce) for node in walk(self.value))

    @property
    def cost(self) -> int:
        """Scalar operations for one element, heavy functions counted ten times."""
        return sum(
            (10 if node.op in _HEAVY_OPS and not node.dtype.is_integer else 1)
            for node in walk(self.value)
            if isinstance(node, Call) and not _is_index(node)
        )


def _is_index(node: Expr) -> bool:
    return node.dtype.name == "int64"


@dataclass(slots=True)
class Fusion:
    """The state of one segment's fusion."""

    log: DecisionLog
    keep: Collection[str]
    bodies: dict[str, Body] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)


def fuse(items: Sequence[Item], keep: Collection[str], log: DecisionLog) -> list[Item]:
    """Fuses a segment.

    Args:
        items: kernels and views in execution order.
        keep: names of buffers that are read outside of the segment.
        log: receives the decisions.
    """
    state = Fusion(log=log, keep=keep)
    _count_users(items, state)
    result: list[Item] = []
    for item in items:
        if isinstance(item, View):
            state.views[item.target.name] = item
            state.buffers[item.target.name] = item.target
            state.buffers.setdefault(item.source.name, item.source)
            result.append(item)
            continue
        for buffer in item.buffers:
            state.buffers.setdefault(buffer.name, buffer)
        kernel = _absorb(item, state)
        if kernel.is_pure:
            stage = kernel.stages[0]
            body = Body(stage.axes, stage.stores[0].value, kernel)
            state.bodies[kernel.outputs[0].name] = body
        result.append(kernel)
    return _drop_dead(result, keep)


def _count_users(items: Sequence[Item], state: Fusion) -> None:
    for item in items:
        names = [item.source.name] if isinstance(item, View) else [b.name for b in item.inputs]
        for name in names:
            state.users[name] = state.users.get(name, 0) + 1


def _absorb(kernel: Kernel, state: Fusion) -> Kernel:
    """Inlines producers into one kernel until no load can be replaced."""
    stages = kernel.stages
    absorbed: list[str] = []
    sources = list(kernel.sources)
    anchored = any(isinstance(n, Reduce) for n in walk(*_roots(kernel)))
    refused: set[str] = set()
    while True:
        candidate = next(
            (
                node
                for node in _loads(stages)
                if node.buffer not in refused and _origin(node, state) is not None
            ),
            None,
        )
        if candidate is None:
            break
        name = candidate.buffer
        verdict = _replacement(kernel, stages, name, anchored, state)
        if isinstance(verdict, Refusal):
            refused.add(name)
            producer = _origin(candidate, state)
            if producer is not None:
                state.log.add(
                    "fuse_vertical",
                    f"{'+'.join(producer.kernel.sources)} -> {'+'.join(kernel.sources)}",
                    "separate kernels",
                    (("fuse", verdict.reason),),
                )
            continue
        stages, body = verdict
        anchored = anchored or body.anchor
        absorbed.append(name)
        sources = [*(s for s in body.kernel.sources if s not in sources), *sources]
    if not absorbed:
        return kernel
    inputs = _inputs(stages, kernel, state)
    state.log.add(
        "fuse_vertical", "+".join(sources), f"one kernel, {len(absorbed)} values stay in registers"
    )
    return replace(kernel, stages=stages, inputs=inputs, sources=tuple(sources))


def _origin(load: Load, state: Fusion) -> Body | None:
    """The pure kernel that computes what is loaded, through views."""
    name = load.buffer
    while name in state.views:
        name = state.views[name].source.name
    return state.bodies.get(name)


def _replacement(
    kernel: Kernel, stages: tuple[Stage, ...], name: str, anchored: bool, state: Fusion
) -> tuple[tuple[Stage, ...], Body] | Refusal:
    """Stages with every load of ``name`` replaced by the producer's expression."""
    chain: list[View] = []
    root = name
    while root in state.views:
        chain.append(state.views[root])
        root = chain[-1].source.name
    body = state.bodies[root]
    loads = [node for node in _loads(stages) if node.buffer == name]
    names = (root, *(view.target.name for view in chain))
    reason = _illegal(kernel, stages, loads, body, anchored, names, state)
    if reason is not None:
        return Refusal(reason)
    inlined: dict[int, Expr] = {}
    for node in loads:
        index = node.index
        for view in chain:
            found = through_view(index, view.target.shape, view.source.shape)
            if isinstance(found, Refusal):
                return found
            index = found
        values = {axis.name: part for axis, part in zip(body.axes, index, strict=True)}
        inlined[id(node)] = substitute(body.value, values)
    return tuple(_map_stage(stage, inlined) for stage in stages), body


def _illegal(
    kernel: Kernel,
    stages: tuple[Stage, ...],
    loads: Sequence[Load],
    body: Body,
    anchored: bool,
    chain: tuple[str, ...],
    state: Fusion,
) -> str | None:
    """The reason against inlining, or None."""
    size = len(walk(*_stage_roots(stages))) + len(loads) * len(walk(body.value))
    if size > _MAX_NODES:
        return f"the kernel would have {size} nodes (limit {_MAX_NODES})"
    names = {n.buffer for n in _loads(stages)} | {b.name for b in body.kernel.inputs}
    if len(names) > _MAX_INPUTS:
        return f"the kernel would read {len(names)} buffers (limit {_MAX_INPUTS})"
    shared = any(state.users.get(name, 0) > 1 or name in state.keep for name in chain)
    if body.anchor:
        return _illegal_anchor(kernel, stages, loads, shared, anchored, len(chain) > 1)
    if shared and body.cost > _CHEAP:
        return "the value has several users and is not cheap to compute again"
    if len(loads) > 1 and body.cost > _CHEAP:
        return "the value is loaded at several indices and is not cheap to compute again"
    if kernel.steps is not None and body.cost:
        return "the value would be computed again in every step"
    inside = _reuse(stages, loads, body)
    if inside and not _plain(body.value):
        return "the reduction loads each element more than once"
    return None


def _illegal_anchor(
    kernel: Kernel,
    stages: tuple[Stage, ...],
    loads: Sequence[Load],
    shared: bool,
    anchored: bool,
    viewed: bool,
) -> str | None:
    if shared:
        return "the reduction has several users"
    if not kernel.is_pure:
        return "the consumer is not a pure kernel"
    if anchored:
        return "the kernel would have two anchors"
    if viewed:
        return "the reduction is read under another shape"
    if len(loads) != 1:
        return "the reduction would be computed at several indices"
    axes = tuple(axis.var for axis in stages[0].axes)
    if loads[0].index != axes:
        return "the consumer does not read the reduction at its own index"
    if _conditional(stages[0].stores[0].value, loads[0]):
        return "the consumer reads the reduction only under a condition"
    return None


def _conditional(root: Expr, load: Load) -> bool:
    """True when a load is reached only through a branch of a select that is not computed always."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node is load:
            return False
        if id(node) in seen:
            continue
        seen.add(id(node))
        always = node.args[:1] if isinstance(node, Call) and node.op == "select" else node.children
        stack.extend(always)
    # Selects between finished values (Relu, Clip) keep the load in both branches or its condition.
    return True


def _plain(value: Expr) -> bool:
    """A load at another index, or a constant: nothing is computed again."""
    while isinstance(value, Cast):
        value = value.arg
    return isinstance(value, Load | Const)


def _reuse(stages: Sequence[Stage], loads: Sequence[Load], body: Body) -> bool:
    """True when some load is evaluated more often than the producer has elements."""
    elements = product(axis.extent for axis in body.axes)
    for stage in stages:
        roots = _stage_roots((stage,))
        points = product(axis.extent for axis in stage.axes)
        for node in walk(*roots):
            if isinstance(node, Reduce) and any(part in loads for part in walk(node.body)):
                inner = points * product(axis.extent for axis in node.axes)
                if inner != elements:
                    return True
    return False


def _roots(kernel: Kernel) -> list[Expr]:
    return _stage_roots(kernel.stages)


def _stage_roots(stages: Sequence[Stage]) -> list[Expr]:
    roots: list[Expr] = []
    for stage in stages:
        for store in stage.stores:
            roots += [*store.index, store.value]
            if store.guard is not None:
                roots.append(store.guard)
    return roots


def _loads(stages: Sequence[Stage]) -> list[Load]:
    return [node for node in walk(*_stage_roots(stages)) if isinstance(node, Load)]


def _map_stage(stage: Stage, inlined: Mapping[int, Expr]) -> Stage:
    def rewritten(expr: Expr) -> Expr:
        done: dict[int, Expr] = {}
        for node in walk(expr):
            done[id(node)] = inlined.get(id(node)) or rebuild(
                node, [done[id(child)] for child in node.children]
            )
        return done[id(expr)]

    return Stage(
        stage.axes,
        tuple(
            Store(
                store.buffer,
                tuple(rewritten(part) for part in store.index),
                rewritten(store.value),
                rewritten(store.guard) if store.guard is not None else None,
            )
            for store in stage.stores
        ),
    )


def _inputs(stages: Sequence[Stage], kernel: Kernel, state: Fusion) -> tuple[Buffer, ...]:
    own = {buffer.name for buffer in (*kernel.outputs, *kernel.temporaries)}
    names = {node.buffer: None for node in _loads(stages) if node.buffer not in own}
    return tuple(state.buffers[name] for name in names)


def _drop_dead(items: Sequence[Item], keep: Collection[str]) -> list[Item]:
    needed = set(keep)
    kept: list[Item] = []
    for item in reversed(items):
        written = [item.target] if isinstance(item, View) else list(item.outputs)
        if not any(buffer.name in needed for buffer in written):
            continue
        read = [item.source] if isinstance(item, View) else list(item.inputs)
        needed.update(buffer.name for buffer in read)
        kept.append(item)
    return kept[::-1]
