"""What a legal kernel is.

Input -> Output: a ``Kernel`` -> nothing, or ``InternalError`` with the broken rule and the text.
Guarantees: operands have allowed types; axes are bound once; loads and stores fit their buffers;
parallel points of a stage do not depend on each other, as far as the indices show.
Not here: bounds of indices (the interpreter and checked builds test those).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.core.dtypes import BOOL, FLOAT32, FLOAT64, INT64, DType, Kind
from tilewright.core.errors import InternalError
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Cast,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    walk,
)
from tilewright.kernel.ops import COMBINERS, SCALAR_OPS, Result
from tilewright.kernel.text import print_expr, print_kernel


def verify(kernel: Kernel) -> None:
    """Checks every rule.

    Raises:
        InternalError: a rule is broken; the message names it and shows the kernel.
    """
    for problem in _problems(kernel):
        raise InternalError(f"illegal kernel: {problem}\n{print_kernel(kernel)}")


def _problems(kernel: Kernel) -> Iterator[str]:
    yield from _buffer_problems(kernel)
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    inputs = {buffer.name for buffer in kernel.inputs}
    for stage in kernel.stages:
        yield from _axis_problems(stage, kernel.steps)
        for store in stage.stores:
            yield from _store_problems(store, buffers, inputs)
        for node in walk(*stage.roots):
            problem = _node_problem(node, buffers)
            if problem:
                yield f"{problem} in {print_expr(node)}"
        yield from _dependence_problems(stage, kernel.steps)


def _buffer_problems(kernel: Kernel) -> Iterator[str]:
    names = [buffer.name for buffer in kernel.buffers]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"buffer {name} is declared twice"
    for buffer in kernel.buffers:
        if buffer.dtype.kind in (Kind.STRING, Kind.COMPLEX):
            yield f"buffer {buffer.name} is of type {buffer.dtype}"
    stored = {store.buffer for stage in kernel.stages for store in stage.stores}
    for buffer in kernel.outputs:
        if buffer.name not in stored:
            yield f"output {buffer.name} is never stored"
    yield from _early_loads(kernel)


def _early_loads(kernel: Kernel) -> Iterator[str]:
    """Own buffers hold rubbish until some store; with ``steps`` an earlier step may have stored."""
    own = {buffer.name for buffer in (*kernel.outputs, *kernel.temporaries)}
    stored: set[str] = set()
    if kernel.steps is not None:
        stored = {store.buffer for stage in kernel.stages for store in stage.stores}
    for stage in kernel.stages:
        stored |= {store.buffer for store in stage.stores}
        for node in walk(*stage.roots):
            if isinstance(node, Load) and node.buffer in own - stored:
                yield f"{node.buffer} is loaded before anything is stored in it"


# --- axes -----------------------------------------------------------------------------------------


def _axis_problems(stage: Stage, steps: Axis | None) -> Iterator[str]:
    around = [*stage.axes, *([steps] if steps is not None else [])]
    names = [axis.name for axis in around]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"axis {name} is bound twice"
    extents = {axis.name: axis for axis in around}
    inner: dict[int, frozenset[str]] = {}
    for node in walk(*stage.roots):
        bound = frozenset[str]().union(*(inner[id(child)] for child in node.children))
        if isinstance(node, Reduce):
            yield from _reduction_axis_problems(node, bound, frozenset(names), extents)
            bound |= {axis.name for axis in node.axes}
        inner[id(node)] = bound
    for root in stage.roots:
        for name in sorted(root.free_axes - set(names)):
            yield f"axis {name} is not bound in {print_expr(root)}"


def _reduction_axis_problems(
    node: Reduce, inside: frozenset[str], around: frozenset[str], extents: dict[str, Axis]
) -> Iterator[str]:
    own = [axis.name for axis in node.axes]
    if len(set(own)) < len(own):
        yield f"a reduction binds an axis twice: {', '.join(own)}"
    for axis in node.axes:
        if axis.ordered:
            yield f"reduction axis {axis.name} is ordered"
        if axis.name in around:
            yield f"reduction axis {axis.name} is an axis of the stage"
        elif axis.name in inside:
            yield f"axis {axis.name} is bound by a reduction within its own reduction"
        elif extents.setdefault(axis.name, axis).extent != axis.extent:
            yield f"axis {axis.name} has two extents"


# --- expressions ----------------------------------------------------------------------------------


def _letter(dtype: DType) -> str:
    """The class of a type in ``kernel.ops``; ``-`` where no arithmetic exists."""
    if dtype is BOOL:
        return "b"
    if dtype.is_float:
        return "f" if dtype in (FLOAT32, FLOAT64) else "-"
    if dtype.is_integer and dtype.bits >= 8:
        return "i" if dtype.is_signed else "u"
    return "-"


def _node_problem(node: Expr, buffers: dict[str, Buffer]) -> str | None:
    if isinstance(node, Load):
        return _load_problem(node, buffers)
    if isinstance(node, Call):
        return _call_problem(node)
    if isinstance(node, Reduce):
        if _letter(node.dtype) not in COMBINERS[node.combiner]:
            return f"{node.combiner} of {node.dtype}"
        return None if node.dtype is node.body.dtype else "a reduction changes its type"
    if isinstance(node, Cast):
        source = node.arg.dtype
        if Kind.STRING in (source.kind, node.dtype.kind) or Kind.COMPLEX in (
            source.kind,
            node.dtype.kind,
        ):
            return f"cast of {source} to {node.dtype}"
        if node.bits and source.storage_bytes != node.dtype.storage_bytes:
            return f"reinterprets {source} as {node.dtype}"
    return None


def _load_problem(node: Load, buffers: dict[str, Buffer]) -> str | None:
    buffer = buffers.get(node.buffer)
    if buffer is None:
        return f"loads undeclared buffer {node.buffer}"
    if node.dtype is not buffer.dtype:
        return f"loads {node.dtype} from {buffer.name} of {buffer.dtype}"
    return _index_problem(node.index, buffer)


def _index_problem(index: tuple[Expr, ...], buffer: Buffer) -> str | None:
    if len(index) != len(buffer.shape):
        return f"{len(index)} indices for {buffer.name} of rank {len(buffer.shape)}"
    wrong = [part.dtype.name for part in index if part.dtype is not INT64]
    return f"index of type {wrong[0]} for {buffer.name}" if wrong else None


def _call_problem(node: Call) -> str | None:
    spec = SCALAR_OPS[node.op]
    choice = SCALAR_OPS[node.op].result is Result.BRANCH
    values = node.args[1:] if choice else node.args
    if choice and node.args[0].dtype is not BOOL:
        return f"select on {node.args[0].dtype}"
    if any(value.dtype is not values[0].dtype for value in values):
        return f"{node.op} of {', '.join(value.dtype.name for value in values)}"
    if node.op == "checked_index" and values[0].dtype is not INT64:
        return f"checked_index of {values[0].dtype}"
    if spec.classes != "*" and _letter(values[0].dtype) not in spec.classes:
        return f"{node.op} of {values[0].dtype}"
    return None


# --- stores ---------------------------------------------------------------------------------------


def _store_problems(store: Store, buffers: dict[str, Buffer], inputs: set[str]) -> Iterator[str]:
    buffer = buffers.get(store.buffer)
    if buffer is None:
        yield f"stores to undeclared buffer {store.buffer}"
        return
    if store.buffer in inputs:
        yield f"stores to input {store.buffer}"
    problem = _index_problem(store.index, buffer)
    if problem:
        yield f"store: {problem}"
    if store.value.dtype is not buffer.dtype:
        yield f"stores {store.value.dtype} to {buffer.name} of {buffer.dtype}"
    if store.guard is not None and store.guard.dtype is not BOOL:
        yield f"guard of type {store.guard.dtype}"


def _dependence_problems(stage: Stage, steps: Axis | None) -> Iterator[str]:
    """A load of what the same stage stores must be of the same element, or iterations ordered."""
    if any(axis.ordered for axis in stage.axes) or steps is not None:
        return
    places: dict[str, set[tuple[Expr, ...]]] = {}
    for store in stage.stores:
        places.setdefault(store.buffer, set()).add(store.index)
    for node in walk(*stage.roots):
        if isinstance(node, Load) and places.get(node.buffer, {node.index}) != {node.index}:
            yield f"parallel points exchange values through {node.buffer}"
    yield from _shared_targets(stage)


def _shared_targets(stage: Stage) -> Iterator[str]:
    """Without an order or a guard, several points must not store to one element."""
    for store in stage.stores:
        used = frozenset[str]().union(*(part.free_axes for part in store.index))
        for axis in stage.axes:
            single = axis.extent.is_const and axis.extent.const <= 1
            if store.guard is None and axis.name not in used and not single:
                yield f"every point of axis {axis.name} stores to one element of {store.buffer}"
