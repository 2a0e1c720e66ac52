"""Whether a kernel may absorb another, and if not, why.

Input -> Output: a consumer, its loads of one buffer, the body that computes the buffer -> the
reason against inlining, or None.
Guarantees: no reduction is computed twice; what is computed again costs no more than a load.
Not here: rewriting (lower.fuse), indices through views (lower.reindex).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    walk,
)

# Limits of one loop nest: what its registers, and the compiler's patience, can hold.
_MAX_NODES = 160
_MAX_INPUTS = 12
# Operations of one element that may be computed again rather than be stored and loaded.
_CHEAP = 6
_HEAVY = 10
_BYTE = 8  # bits
_WIDENING = 2  # operations of a DequantizeLinear
_HEAVY_OPS = frozenset(
    "exp log log1p expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid "
    "gelu gelu_tanh pow div mod fmod sqrt atan2".split()
)
_ONE = Dim.of(1)
Loads = dict[int, list[Load]]  # of one buffer: number of the stage -> its loads


@dataclass(frozen=True, slots=True)
class Body:
    """The one expression of a pure kernel.

    Attributes:
        kernel, axes, value: where it comes from.
        size: number of nodes.
        cost: scalar operations for one element, heavy functions counted ten times.
        anchor: the kernel reduces, so that recomputing it would be expensive.
        inputs: names of the buffers that it loads.
    """

    kernel: Kernel
    axes: tuple[Axis, ...]
    value: Expr
    size: int
    cost: int
    anchor: bool
    inputs: tuple[str, ...]


def pure_body(kernel: Kernel, nodes: list[Expr]) -> Body:
    """The body of a pure kernel that consists of these nodes."""
    value = kernel.stages[0].stores[0].value
    loads = (node.buffer for node in nodes if isinstance(node, Load))
    return Body(
        kernel=kernel,
        axes=kernel.stages[0].axes,
        value=value,
        size=len(nodes),
        cost=sum(_node_cost(node) for node in nodes),
        anchor=any(isinstance(node, Reduce) for node in nodes),
        inputs=tuple(dict.fromkeys(loads)),
    )


def _node_cost(node: Expr) -> int:
    if not isinstance(node, Call) or node.dtype.name == "int64":  # index arithmetic
        return 0
    return _HEAVY if node.op in _HEAVY_OPS and not node.dtype.is_integer else 1


@dataclass(frozen=True, slots=True)
class Part:
    """A stage with its nodes, operands before users."""

    stage: Stage
    nodes: list[Expr]
    loads: list[Load]
    reductions: list[Reduce]


def part_of(stage: Stage) -> Part:
    """Looks through a stage."""
    nodes = walk(*stage.roots)
    return Part(
        stage=stage,
        nodes=nodes,
        loads=[node for node in nodes if isinstance(node, Load)],
        reductions=[node for node in nodes if isinstance(node, Reduce)],
    )


@dataclass(slots=True)
class Consumer:
    """A kernel that is absorbing what it loads, stage by stage.

    Attributes:
        kernel: as it was.
        parts: its stages as they are.
        sources: the nodes that are computed by now.
    """

    kernel: Kernel
    parts: list[Part]
    sources: list[str]

    def loads(self) -> dict[str, Loads]:
        """The loads of each buffer, buffers in order of appearance."""
        found: dict[str, Loads] = {}
        for number, part in enumerate(self.parts):
            for node in part.loads:
                found.setdefault(node.buffer, {}).setdefault(number, []).append(node)
        return found


def reason_against(
    consumer: Consumer,
    name: str,
    loads: Loads,
    body: Body,
    *,
    shared: bool,
    viewed: bool,
    kept: bool,
) -> str | None:
    """The reason against inlining, or None.

    Args:
        consumer: what would absorb the body.
        name: the buffer that it loads.
        loads: its loads of the buffer.
        body: what computes the buffer.
        shared: somebody else needs the buffer.
        viewed: the buffer is the body's result under another shape.
        kept: what the consumer computes is read outside of the segment.
    """
    for number, own in loads.items():
        reason = _too_large(name, consumer.parts[number], own, body)
        if reason is not None:
            return reason
    if body.anchor:
        if not kept and _only_widens(consumer, body):
            return "integers take less memory than the floats that they stand for"
        return _against_anchor(consumer, loads, shared=shared, viewed=viewed)
    if body.cost > _CHEAP:
        price = f"costs {body.cost} operations (limit {_CHEAP})"
        if shared:
            return f"the value has several users and {price} to compute again"
        if sum(map(len, loads.values())) > 1:
            return f"the value is loaded at several places and {price} to compute again"
        for number, own in loads.items():
            stage = consumer.parts[number].stage
            again = [axis for node in own for axis in _repeating_axes(stage, node)]
            if again:
                return f"the value {price} and would be computed again for each {again[0].extent}"
    if consumer.kernel.steps is not None and body.cost:
        return "the value would be computed again in every step"
    if not _plain(body.value) and _reuse(consumer, loads, body):
        return "the reduction loads each element more than once"
    return None


def _too_large(name: str, part: Part, loads: list[Load], body: Body) -> str | None:
    size = len(part.nodes) + len(loads) * body.size
    if size > _MAX_NODES:
        return f"the loop nest would have {size} nodes (limit {_MAX_NODES})"
    names = {node.buffer for node in part.loads} - {name} | {*body.inputs}
    if len(names) > _MAX_INPUTS:
        return f"the loop nest would read {len(names)} buffers (limit {_MAX_INPUTS})"
    return None


def _against_anchor(consumer: Consumer, loads: Loads, *, shared: bool, viewed: bool) -> str | None:
    if shared:
        return "the reduction has several users"
    if not consumer.kernel.is_pure:
        return "the consumer is not a pure kernel"
    (part,) = consumer.parts
    if part.reductions:
        return "the kernel would have two anchors"
    if viewed:
        return "the reduction is read under another shape"
    if len(loads[0]) != 1:
        return "the reduction would be computed at several indices"
    load = loads[0][0]
    if load.index != tuple(axis.var for axis in part.stage.axes):
        return "the consumer does not read the reduction at its own index"
    if _conditional(part.stage.stores[0].value, load):
        return "the consumer reads the reduction only under a condition"
    return None


def _only_widens(consumer: Consumer, body: Body) -> bool:
    """True for a conversion of bytes to floats, which whoever reads them can do as well."""
    stored = body.kernel.outputs[0].dtype
    if not consumer.kernel.is_pure or not stored.is_integer or stored.bits > _BYTE:
        return False
    (part,) = consumer.parts
    cost = sum(_node_cost(node) for node in part.nodes)
    return consumer.kernel.outputs[0].dtype.is_float and len(part.loads) <= 1 and cost <= _WIDENING


def _conditional(root: Expr, load: Load) -> bool:
    """True when a load is reached only through a branch of a select that is not computed always.

    Selects between finished values (LeakyRelu, Clip) have the load in their condition as well.
    """
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
    return True


def _plain(value: Expr) -> bool:
    """A load at another index, or a constant: nothing is computed again."""
    while isinstance(value, Cast):
        value = value.arg
    return isinstance(value, Load | Const)


def _repeating_axes(stage: Stage, load: Load) -> list[Axis]:
    """Axes around those that the load depends on: it is computed again for each of their indices.

    What depends on outer axes only is computed once, before the inner loops.
    """
    used = [number for number, axis in enumerate(stage.axes) if axis.name in load.free_axes]
    outer = stage.axes[: used[-1]] if used else ()
    return [axis for axis in outer if axis.name not in load.free_axes and axis.extent != _ONE]


def _reuse(consumer: Consumer, loads: Loads, body: Body) -> bool:
    """True when some reduction loads more often than the producer has elements."""
    elements = product(axis.extent for axis in body.axes)
    for number, own in loads.items():
        part = consumer.parts[number]
        users = _users({id(node) for node in own}, part.nodes) if part.reductions else set()
        points = product(axis.extent for axis in part.stage.axes)
        inside = (node for node in part.reductions if id(node) in users)
        if any(points * product(axis.extent for axis in n.axes) != elements for n in inside):
            return True
    return False


def _users(wanted: set[int], nodes: list[Expr]) -> set[int]:
    """Ids of the nodes that contain some of the wanted ones."""
    found = set(wanted)
    for node in nodes:
        if any(id(child) in found for child in node.children):
            found.add(id(node))
    return found
