"""Join what surrounds products of one vector into their kernels, where a GPU reads rows of weights.

    y = W x;  q = rotated(y[:n]), v = y[n:], a = attention(.., y[n:])
    ->  q, v = stages of one kernel that sum what they need;  a = attention(.., v)
    n = x / length(x);  y = f(W n)  ->  y = f(W (x / length(x)))
Input -> Output: a fused draft of narrow values, edited in place.
Guarantees: every sum is computed once, values are rounded where they were; a joined kernel takes
the place of its first reader.
Requires: what ``codegen.cuda.gemv`` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.codegen.cuda.gemv import blocks_of, gemv_refusal
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    load,
    rebuild,
    substitute,
    walk,
)
from tilewright.lower.context import View

_MOST_BLOCKS = 8 * 132  # that compute a normalisation each
_ONE = Dim.of(1)


def join_vectors_program(program: DraftProgram, log: DecisionLog) -> None:
    """Joins in every segment, those of sub-programs too."""
    for segment in program.segments():
        for kernel in [item for item in segment.items if isinstance(item, Kernel)]:
            if _is_vector(kernel) and gemv_refusal(kernel) is None:
                _join_readers(segment, kernel, log)
        for kernel in [item for item in segment.items if isinstance(item, Kernel)]:
            if _is_vector(kernel) and _is_normalised(kernel):
                _join_factor(segment, kernel, log)


def _is_vector(kernel: Kernel) -> bool:
    """Whether it makes one row of known size."""
    if not kernel.is_pure:
        return False
    sizes = [axis.extent for axis in kernel.stages[0].axes]
    return bool(sizes) and sizes[-1].is_const and all(size == _ONE for size in sizes[:-1])


def _users(step: DraftSegment, name: str) -> list[Kernel] | None:
    """The kernels that read a buffer; None if it is needed otherwise."""
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    if name in step.keep or name in viewed:
        return None
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    return [kernel for kernel in kernels if any(b.name == name for b in kernel.inputs)]


def _inlined(kernel: Kernel, maker: Kernel) -> Kernel:
    """A kernel that computes by itself what another one made."""
    name = maker.outputs[0].name
    (stage,) = maker.stages
    axes = [axis.name for axis in stage.axes]
    done: dict[int, Expr] = {}
    for node in walk(*kernel.roots):
        fresh = rebuild(node, [done[id(child)] for child in node.children])
        if isinstance(fresh, Load) and fresh.buffer == name:
            fresh = substitute(stage.stores[0].value, dict(zip(axes, fresh.index, strict=True)))
        done[id(node)] = fresh
    stages = tuple(
        replace(
            own,
            stores=tuple(replace(store, value=done[id(store.value)]) for store in own.stores),
        )
        for own in kernel.stages
    )
    inputs = {b.name: b for b in (*kernel.inputs, *maker.inputs) if b.name != name}
    sources = tuple(dict.fromkeys((*maker.sources, *kernel.sources)))
    return replace(kernel, inputs=tuple(inputs.values()), stages=stages, sources=sources)


# --- readers of sums ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Copy:
    """A kernel that stores a part of a row again: ``out[0, i] = row[0, i + start]``."""

    out: Buffer
    start: int
    size: int


def _join_readers(step: DraftSegment, maker: Kernel, log: DecisionLog) -> None:
    name = maker.outputs[0].name
    users = _users(step, name)
    if not users:
        return
    joined: dict[int, Kernel] = {}
    needed = Dim.of(0)
    for user in users:
        if len(user.stages) == 1 and user.steps is None:
            made = _inlined(user, maker)
            if gemv_refusal(made) is None:
                joined[id(user)] = made
                loads = {n for n in walk(*user.roots) if isinstance(n, Load) and n.buffer == name}
                needed += product(axis.extent for axis in user.stages[0].axes) * len(loads)
    if not joined or needed != product(axis.extent for axis in maker.stages[0].axes):
        return
    copies = [found for user in users if id(user) in joined if (found := _copy(user, name))]
    swap: dict[int, Kernel | None] = {id(maker): None}
    for user in users:
        if id(user) not in joined:
            redirected = _redirected(user, name, copies)
            if redirected is None:
                return
            swap[id(user)] = redirected
    whole = _together(list(joined.values()))
    places = [place for place, item in enumerate(step.items) if id(item) in joined]
    if not _is_ready(step, whole, places[0], {name}):
        return
    swap |= dict.fromkeys(joined)
    swap[id(step.items[places[0]])] = whole
    items = [swap.get(id(i), i) if isinstance(i, Kernel) else i for i in step.items]
    step.items = [item for item in items if item is not None]
    log.add("vector", "+".join(whole.sources), f"sums in {len(joined)} of their readers")


def _together(kernels: list[Kernel]) -> Kernel:
    """Stages of one kernel."""
    first, *others = kernels
    if not others:
        return first
    inputs = {b.name: b for kernel in kernels for b in kernel.inputs}
    return replace(
        first,
        name="Vector",
        inputs=tuple(inputs.values()),
        outputs=tuple(b for kernel in kernels for b in kernel.outputs),
        stages=tuple(stage for kernel in kernels for stage in kernel.stages),
        sources=tuple(dict.fromkeys(s for kernel in kernels for s in kernel.sources)),
    )


def _is_ready(step: DraftSegment, kernel: Kernel, place: int, gone: set[str]) -> bool:
    """Whether what a kernel reads is there at a place."""
    later: set[str] = set()
    for item in step.items[place:]:
        names = [item.target] if isinstance(item, View) else item.outputs
        later.update(buffer.name for buffer in names)
    return not any(b.name in later - gone for b in kernel.inputs)


def _copy(kernel: Kernel, name: str) -> _Copy | None:
    if not _is_vector(kernel):
        return None
    (stage,) = kernel.stages
    value, axis = stage.stores[0].value, stage.axes[-1]
    if not isinstance(value, Load) or value.buffer != name:
        return None
    form = affine(value.index[-1])
    if form.rest or dict(form.terms) != {axis.name: _ONE} or not form.offset.is_const:
        return None
    return _Copy(kernel.outputs[0], form.offset.const, axis.extent.const)


def _redirected(kernel: Kernel, name: str, copies: list[_Copy]) -> Kernel | None:
    """A kernel that reads copies instead of the row."""
    extents: dict[str, Axis] = {a.name: a for stage in kernel.stages for a in stage.axes}
    for node in walk(*kernel.roots):
        if isinstance(node, Reduce):
            extents.update({axis.name: axis for axis in node.axes})
    done: dict[int, Expr] = {}
    used: dict[str, Buffer] = {}
    for node in walk(*kernel.roots):
        fresh = rebuild(node, [done[id(child)] for child in node.children])
        if isinstance(fresh, Load) and fresh.buffer == name:
            span = _span(fresh.index[-1], extents)
            fits = [c for c in copies if span and c.start <= span[0] and span[1] < c.start + c.size]
            if not fits:
                return None
            own = fits[0]
            used[own.out.name] = own.out
            index = (*fresh.index[:-1], fresh.index[-1] - own.start)
            fresh = load(own.out.name, fresh.dtype, index[-len(own.out.shape) :])
        done[id(node)] = fresh
    stages = tuple(
        Stage(s.axes, tuple(replace(o, value=done[id(o.value)]) for o in s.stores))
        for s in kernel.stages
    )
    inputs = tuple(buffer for buffer in kernel.inputs if buffer.name != name)
    return replace(kernel, inputs=(*inputs, *used.values()), stages=stages)


def _span(index: Expr, axes: Mapping[str, Axis]) -> tuple[int, int] | None:
    """The least and the largest value of an index."""
    form = affine(index)
    if form.rest or not form.offset.is_const:
        return None
    low = high = form.offset.const
    for name, factor in form.terms.items():
        extent = axes[name].extent
        if not (factor.is_const and extent.is_const):
            return None
        far = factor.const * (extent.const - 1)
        low, high = low + min(far, 0), high + max(far, 0)
    return low, high


# --- vectors that are normalised ------------------------------------------------------------------


def _is_normalised(kernel: Kernel) -> bool:
    """Whether its reductions are the same for all elements."""
    (stage,) = kernel.stages
    many = {axis.name for axis in stage.axes if axis.extent != _ONE}
    found = [node for node in walk(*kernel.roots) if isinstance(node, Reduce)]
    return bool(found) and not any(node.free_axes & many for node in found)


def _join_factor(step: DraftSegment, maker: Kernel, log: DecisionLog) -> None:
    users = _users(step, maker.outputs[0].name)
    if not users:
        return
    made = {id(user): _inlined(user, maker) for user in users}
    if any(blocks_of(kernel) > _MOST_BLOCKS for kernel in made.values()):
        return
    items = [made.get(id(i), i) if isinstance(i, Kernel) else i for i in step.items]
    step.items = [item for item in items if item is not maker]
    log.add("vector", "+".join(maker.sources), f"computed by {len(users)} readers")
