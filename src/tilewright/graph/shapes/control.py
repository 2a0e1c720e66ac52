"""Shape rules of If, Loop, Scan and SequenceMap.

Input -> Output: infos of the outer values -> infos of everything in the bodies, and of the results.
Guarantees: a loop-carried size is used only if the body keeps it (found by a fixpoint); sizes that
belong to one iteration or branch never leak out: they become late symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.core.dtypes import BOOL, INT64
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes.registry import RuleContext, Shape, shape_rule
from tilewright.graph.view import GraphView

_SCALAR: Shape = ()


def body(ctx: RuleContext, name: str) -> GraphView:
    """A sub-graph attribute."""
    found = ctx.node.attribute(name)
    if not isinstance(found, GraphView):
        ctx.fail(f"attribute {name} must be a graph")
    return found


def _info(ctx: RuleContext, outputs: Sequence[TensorInfo]) -> NodeInfo:
    """The node's info; sizes without a value out here become late."""
    found: list[TensorInfo | None] = []
    if len(outputs) < len(ctx.node.outputs):
        ctx.fail(f"{len(ctx.node.outputs)} outputs, but the sub-graph gives {len(outputs)}")
    for position, name in enumerate(ctx.node.outputs):
        if name is None:
            found.append(None)
            continue
        info = outputs[position]
        shape = info.shape
        if shape is not None and info.container == "tensor":
            shape = tuple(
                dim if ctx.symbols.visible(dim) else ctx.late_dim(position, axis)
                for axis, dim in enumerate(shape)
            )
        elif shape is not None and not all(ctx.symbols.visible(dim) for dim in shape):
            shape = None
        found.append(replace(info, shape=shape))
    return NodeInfo(outputs=tuple(found), params={}, bindings=tuple(ctx.bindings))


@shape_rule("If")
def if_rule(ctx: RuleContext) -> NodeInfo:
    """What both branches agree on; a known condition leaves only its branch.

    A branch that cannot run with these sizes says nothing of the results: if it is taken, it fails.
    """
    condition = ctx.content(0)
    branches = [body(ctx, "then_branch"), body(ctx, "else_branch")]
    if condition is not None and condition.size == 1:
        taken = branches[0 if bool(condition.reshape(-1)[0]) else 1]
        outputs, error = ctx.attempt(taken)
        if error is not None:
            ctx.give_up(error)
        return _info(ctx, outputs)
    (yes_outputs, yes_error), (no_outputs, no_error) = map(ctx.attempt, branches)
    if yes_error is not None and no_error is not None:
        ctx.give_up(yes_error)
    elif yes_error is not None or no_error is not None:
        return _info(ctx, no_outputs if yes_error is not None else yes_outputs)
    if len(yes_outputs) != len(no_outputs):
        ctx.fail(f"the branches give {len(yes_outputs)} and {len(no_outputs)} outputs")
    merged = []
    for position, (yes, no) in enumerate(zip(yes_outputs, no_outputs, strict=True)):
        if yes.dtype is not no.dtype or yes.container != no.container:
            ctx.fail(f"the branches give output {position} different types")
        merged.append(_merge(ctx, position, yes, no))
    return _info(ctx, merged)


def _merge(ctx: RuleContext, position: int, yes: TensorInfo, no: TensorInfo) -> TensorInfo:
    shape = None
    if yes.shape is not None and no.shape is not None and len(yes.shape) == len(no.shape):
        same = yes.shape == no.shape
        if yes.container == "tensor":
            shape = tuple(
                one if one == other else ctx.late_dim(position, axis)
                for axis, (one, other) in enumerate(zip(yes.shape, no.shape, strict=True))
            )
        elif same:
            shape = yes.shape
    return replace(yes, shape=shape, content=None)


@shape_rule("Loop")
def loop_rule(ctx: RuleContext) -> NodeInfo:
    """Final carried values, then the values of each iteration stacked."""
    graph = body(ctx, "body")
    initial = [ctx.info(position) for position in range(2, len(ctx.inputs))]
    if len(graph.inputs) != len(initial) + 2:
        ctx.fail(f"the body takes {len(graph.inputs)} values, {len(initial) + 2} are given")
    fixed = [
        TensorInfo(dtype=INT64, shape=_SCALAR),
        TensorInfo(dtype=BOOL, shape=_SCALAR),
    ]
    results = _fixpoint(ctx, graph, fixed, initial, [], skip=1)
    carried = results[1 : 1 + len(initial)]
    stacked = [
        _stack(ctx, len(initial) + number, info, ctx.late_dim(len(initial) + number, 0), 0)
        for number, info in enumerate(results[1 + len(initial) :])
    ]
    return _info(ctx, [*carried, *stacked])


def _stack(ctx: RuleContext, position: int, info: TensorInfo, count: Dim, axis: int) -> TensorInfo:
    if info.shape is None or info.container != "tensor":
        return replace(info, shape=None, content=None, container="tensor")
    own = ctx.normal_axis(axis, len(info.shape) + 1)
    inner = tuple(
        dim if ctx.symbols.visible(dim) else ctx.late_dim(position, k + (k >= own))
        for k, dim in enumerate(info.shape)
    )
    return replace(info, shape=(*inner[:own], count, *inner[own:]), content=None)


def _fixpoint(
    ctx: RuleContext,
    graph: GraphView,
    before: Sequence[TensorInfo],
    initial: Sequence[TensorInfo],
    after: Sequence[TensorInfo],
    *,
    skip: int,
) -> list[TensorInfo]:
    """Infers a body until its carried values keep the shapes that they came in with.

    ``skip`` outputs come before the carried ones.  Each round opens at least one size or rank, so
    the number of rounds is bounded by the ranks.
    """
    carried = [replace(info, content=None) for info in initial]
    names = [value.name for value in graph.inputs[len(before) : len(before) + len(carried)]]
    while True:
        results = list(ctx.recurse(graph, [*before, *carried, *after]))
        if len(results) < skip + len(carried):
            ctx.fail(f"the body gives {len(results)} values, {skip + len(carried)} are carried")
        opened = [
            _open(ctx, name, held, result)
            for name, held, result in zip(names, carried, results[skip:], strict=False)
        ]
        if opened == carried:
            results[skip : skip + len(carried)] = carried
            return results
        carried = opened


def _open(ctx: RuleContext, name: str, held: TensorInfo, result: TensorInfo) -> TensorInfo:
    """What holds both before and after an iteration."""
    container = held.container
    if held.dtype is not result.dtype:
        ctx.fail(f"the body changes {name!r} from {held.dtype} to {result.dtype}")
    if container != result.container:
        if "optional" not in (container, result.container):
            ctx.fail(f"the body changes {name!r} from {container} to {result.container}")
        container = "optional"
    if held.shape is None or result.shape is None or len(held.shape) != len(result.shape):
        return replace(held, shape=None, container=container)
    if held.shape == result.shape:
        return replace(held, container=container)
    if container != "tensor":
        return replace(held, shape=None, container=container)
    shape = tuple(
        dim if dim == other else ctx.symbols.inner_dim(name, axis)
        for axis, (dim, other) in enumerate(zip(held.shape, result.shape, strict=True))
    )
    return replace(held, shape=shape)


@shape_rule("Scan")
def scan_rule(ctx: RuleContext) -> NodeInfo:
    """Final states, then one slice of each scanned output for each step."""
    graph = body(ctx, "body")
    num_scans = ctx.integer("num_scan_inputs")
    num_states = len(ctx.inputs) - num_scans
    if num_scans < 1 or num_states < 0 or len(graph.inputs) != len(ctx.inputs):
        ctx.fail(f"{len(ctx.inputs)} inputs, {num_scans} of them scanned")
    axes = ctx.integers("scan_input_axes") or (0,) * num_scans
    steps: Dim | None = None
    slices: list[TensorInfo] = []
    for number in range(num_scans):
        info = ctx.info(num_states + number)
        if info.shape is None:
            slices.append(replace(info, content=None))
            continue
        own = ctx.normal_axis(axes[number], len(info.shape))
        count = info.shape[own]
        steps = count if steps is None else ctx.equal(steps, count, "lengths of scanned inputs")
        shape = (*info.shape[:own], *info.shape[own + 1 :])
        slices.append(replace(info, shape=shape, content=None))
    states = [ctx.info(position) for position in range(num_states)]
    results = _fixpoint(ctx, graph, [], states, slices, skip=0)
    outputs = results[:num_states]
    out_axes = ctx.integers("scan_output_axes") or (0,) * (len(results) - num_states)
    for number, info in enumerate(results[num_states:]):
        position = num_states + number
        count = steps if steps is not None else ctx.late_dim(position, 0)
        outputs.append(_stack(ctx, position, info, count, out_axes[number]))
    return _info(ctx, outputs)


@shape_rule("SequenceMap")
def sequence_map(ctx: RuleContext) -> NodeInfo:
    """The body for each element of the sequences."""
    graph = body(ctx, "body")
    results = ctx.recurse(
        graph,
        [
            replace(ctx.info(position), container="tensor", content=None)
            for position in range(len(ctx.inputs))
        ],
    )
    return _info(ctx, [replace(info, container="sequence", content=None) for info in results])
