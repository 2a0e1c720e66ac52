"""The meaning of a kernel, executed slowly with NumPy.

Input -> Output: a ``Kernel``, arrays of its inputs, values of its symbols -> arrays of its outputs.
Guarantees: axes become broadcast dimensions; ordered axes and ``steps`` run as loops, in order;
lanes that a ``select`` or a guard leaves out may be out of bounds, lanes in use may not; buffers
start as rubbish, so that reading what nobody stored shows.
Not here: the meaning of scalar operations (kernel.interp_ops), legality (kernel.verify).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import numpy as np

from tilewright.core.errors import InternalError, OutOfRange
from tilewright.kernel.interp_ops import (
    NUMPY_COMBINERS,
    NUMPY_OPS,
    convert,
    integer_range,
    literal,
    reinterpret,
    storage,
)
from tilewright.kernel.interp_scope import (
    Array,
    Fault,
    Scope,
    Value,
    align,
    aligned,
    blocks,
    worst,
)
from tilewright.kernel.ir import (
    AxisVar,
    Buffer,
    Call,
    Cast,
    Const,
    DimValue,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    identity_of,
    loaded,
)

_LANE_BITS = 40


def interpret(
    kernel: Kernel,
    feeds: Mapping[str, Array],
    sizes: Mapping[str, int],
    *,
    wide: bool = False,
) -> dict[str, Array]:
    """Executes a kernel.

    Args:
        kernel: what to compute.
        feeds: an array for each input buffer, of its shape under ``sizes``.
        sizes: values of the symbols in extents and shapes.
        wide: hold float32, float16 and bfloat16 as float64 (the reference for tolerances).

    Raises:
        InternalError: a feed does not fit, or a lane in use loads or stores out of bounds.
        OutOfRange: a ``checked_index`` in use lies outside.
    """
    run = _Run(dict(sizes), wide)
    for buffer in kernel.inputs:
        run.arrays[buffer.name] = _feed(buffer, feeds, sizes, wide)
    for buffer in (*kernel.outputs, *kernel.temporaries):
        run.arrays[buffer.name] = _rubbish(buffer, sizes, wide)
    with np.errstate(all="ignore"):
        steps = range(kernel.steps.extent.evaluate(sizes)) if kernel.steps else range(1)
        for step in steps:
            fixed = {kernel.steps.name: step} if kernel.steps else {}
            for stage in kernel.stages:
                run.stage(stage, fixed)
    return {buffer.name: run.arrays[buffer.name] for buffer in kernel.outputs}


def _feed(
    buffer: Buffer, feeds: Mapping[str, Array], sizes: Mapping[str, int], wide: bool
) -> Array:
    if buffer.name not in feeds:
        raise InternalError(f"no feed for {buffer.name}")
    array = np.asarray(feeds[buffer.name])
    shape = tuple(dim.evaluate(sizes) for dim in buffer.shape)
    held = storage(buffer.dtype, wide)
    if array.shape != shape or array.dtype not in (buffer.dtype.numpy, held):
        raise InternalError(
            f"{buffer.name} is {buffer.dtype}{list(shape)}, fed {array.dtype}{list(array.shape)}"
        )
    return array.astype(held, copy=False)


def _rubbish(buffer: Buffer, sizes: Mapping[str, int], wide: bool) -> Array:
    """A fresh buffer whose contents show when they are used."""
    shape = tuple(dim.evaluate(sizes) for dim in buffer.shape)
    dtype = buffer.dtype
    if dtype.is_float:
        value: float = math.nan
    else:
        value = integer_range(dtype)[1] if dtype.is_integer else 1
    return np.full(shape, literal(value, dtype, wide)[()], storage(dtype, wide))


class _Run:
    """One execution: buffers, sizes and the faults met so far."""

    def __init__(self, sizes: dict[str, int], wide: bool) -> None:
        self.sizes, self.wide = sizes, wide
        self.arrays: dict[str, Array] = {}
        self.faults: list[Fault] = []

    # --- loops ------------------------------------------------------------------------------------

    def stage(self, stage: Stage, fixed: dict[str, int]) -> None:
        """Runs a loop nest; ordered axes outermost, as parallel points are independent."""
        ordered = [axis for axis in stage.axes if axis.ordered]
        parallel = [axis for axis in stage.axes if not axis.ordered]
        extents = [axis.extent.evaluate(self.sizes) for axis in parallel]
        rereads = _reads_own_stores(stage)
        for point in product(*(range(axis.extent.evaluate(self.sizes)) for axis in ordered)):
            here = fixed | {axis.name: index for axis, index in zip(ordered, point, strict=True)}
            for ranges in blocks(parallel, extents, 1):
                scope = Scope(ranges, fixed=here)
                for store in stage.stores:
                    if rereads:
                        scope = Scope(ranges, fixed=here)
                    self.store(store, scope)
                self.faults.clear()

    def store(self, store: Store, scope: Scope) -> None:
        shape = tuple(high - low for low, high in scope.ranges.values())
        value, fault = self.evaluate(store.value, scope)
        active: Array | None = None
        if store.guard is not None:
            active, guard_fault = self.evaluate(store.guard, scope)
            self.check(guard_fault, None, scope.depth)
            active = np.broadcast_to(align(active, scope.depth), shape)
        self.check(fault, active, scope.depth)
        target = self.arrays[store.buffer]
        value = np.broadcast_to(align(value, scope.depth), shape)
        view = self.slices(store.index, target, scope) if active is None else None
        if view is not None and view.ndim == scope.depth and view.shape == shape:
            view[...] = value
            return
        indices = []
        for part in store.index:
            index, index_fault = self.evaluate(part, scope)
            self.check(index_fault, active, scope.depth)
            full = np.broadcast_to(align(index, scope.depth), shape)
            indices.append(full.reshape(-1) if active is None else full[active])
        for index, size in zip(indices, target.shape, strict=True):
            if index.size and not (index.min() >= 0 and index.max() < size):
                raise InternalError(
                    f"store to {store.buffer}{list(target.shape)} out of bounds: "
                    f"index {index.min()}..{index.max()}"
                )
        target[tuple(indices)] = value.reshape(-1) if active is None else value[active]

    def check(self, fault: Array | None, active: Array | None, depth: int) -> None:
        """Raises the fault of a lane in use, if there is one."""
        if fault is None:
            return
        if active is not None:
            fault = np.where(active, align(fault, depth), 0)
        code = int(fault.max(initial=0))
        if code:
            self.faults[(code >> _LANE_BITS) - 1].raise_at(code & ((1 << _LANE_BITS) - 1))

    # --- expressions ------------------------------------------------------------------------------

    def evaluate(self, root: Expr, scope: Scope) -> Value:
        """The value of an expression; iterative, since expressions may be thousands deep."""
        stack = [root]
        while stack:
            node = stack[-1]
            home = scope.home(node)
            if id(node) in home.cache:
                stack.pop()
            elif isinstance(node, Reduce):
                home.cache[id(node)] = self.reduce(node, home)
            else:
                values = [scope.home(child).cache.get(id(child)) for child in node.children]
                missing = [
                    child
                    for child, value in zip(node.children, values, strict=True)
                    if value is None
                ]
                if missing:
                    stack.extend(missing)
                else:
                    known = [value for value in values if value is not None]
                    home.cache[id(node)] = self.apply(node, known, home)
        return scope.home(root).cache[id(root)]

    def apply(self, node: Expr, operands: list[Value], scope: Scope) -> Value:
        if isinstance(node, Const):
            return literal(node.value, node.dtype, self.wide), None
        if isinstance(node, DimValue):
            return np.asarray(node.dim.evaluate(self.sizes), np.int64), None
        if isinstance(node, AxisVar):
            return self.axis(node.name, scope), None
        if isinstance(node, Load):
            return self.load(node, operands, scope)
        if isinstance(node, Cast):
            value, fault = operands[0]
            source = node.arg.dtype
            if node.bits:
                return reinterpret(value, source, node.dtype, self.wide), fault
            return convert(value, source, node.dtype, node.saturate, self.wide), fault
        if isinstance(node, Call):
            return self.call(node, operands)
        raise InternalError(f"cannot interpret a {type(node).__name__}")

    def axis(self, name: str, scope: Scope) -> Array:
        owner = scope.find(name)
        if owner is None:
            return np.asarray(scope.fixed_index(name), np.int64)
        low, high = owner.ranges[name]
        return np.arange(low, high).reshape((1,) * owner.positions[name] + (-1,))

    def call(self, node: Call, operands: list[Value]) -> Value:
        arrays = aligned(*(value for value, _ in operands))
        faults = [fault for _, fault in operands]
        if node.op == "select":
            return np.where(arrays[0], arrays[1], arrays[2]), _chosen(arrays[0], faults)
        if node.op == "blend":
            return np.where(arrays[0], arrays[1], arrays[2]), worst(*faults)
        if node.op == "checked_index":
            index, size = np.broadcast_arrays(*arrays)
            wrapped = np.where(index < 0, index + size, index)
            bad = (wrapped < 0) | (wrapped >= size)
            text = "index out of range [-n, n-1]"
            return wrapped, worst(*faults, self.fault(bad, text, (index, size), OutOfRange))
        return np.asarray(NUMPY_OPS[node.op](*arrays)), worst(*faults)

    def fault(
        self, bad: Array, text: str, indices: tuple[Array, ...], error: type[Exception]
    ) -> Array | None:
        if not bad.any():
            return None
        shaped = tuple(np.broadcast_to(index, bad.shape) for index in indices)
        self.faults.append(Fault(text, shaped, error))
        lanes = np.arange(bad.size, dtype=np.int64).reshape(bad.shape)
        return np.where(bad, (len(self.faults) << _LANE_BITS) | lanes, 0)

    def load(self, node: Load, operands: list[Value], scope: Scope) -> Value:
        array = self.arrays[node.buffer]
        view = self.slices(node.index, array, scope)
        if view is not None:
            return view, None
        if not operands:
            return array, None
        indices = np.broadcast_arrays(*aligned(*(value for value, _ in operands)))
        bad = np.zeros(indices[0].shape, np.bool_)
        for index, size in zip(indices, array.shape, strict=True):
            bad |= (index < 0) | (index >= size)
        earlier = worst(*(fault for _, fault in operands))
        if earlier is not None:
            bad &= align(earlier, bad.ndim) == 0
        text = f"load of {node.buffer}{list(array.shape)} out of bounds"
        fault = worst(earlier, self.fault(bad, text, tuple(indices), InternalError))
        if not array.size:
            return np.zeros(bad.shape, array.dtype), fault
        inside = tuple(
            np.clip(index, 0, size - 1) for index, size in zip(indices, array.shape, strict=True)
        )
        return array[inside], fault

    def slices(self, index: tuple[Expr, ...], array: Array, scope: Scope) -> Array | None:
        """The view that plain axis indices address, dims at the axes' positions, else None."""
        keys: list[slice | int] = []
        positions: list[int] = []
        for part, size in zip(index, array.shape, strict=True):
            owner = scope.find(part.name) if isinstance(part, AxisVar) else None
            if isinstance(part, AxisVar) and owner is not None:
                low, high = owner.ranges[part.name]
                if high > size or owner.positions[part.name] in positions:
                    return None
                keys.append(slice(low, high))
                positions.append(owner.positions[part.name])
                continue
            if isinstance(part, AxisVar):
                fixed = scope.fixed_index(part.name)
            elif isinstance(part, Const):
                fixed = int(part.value)
            else:
                return None
            if not 0 <= fixed < size:
                return None
            keys.append(fixed)
        view: Array = array[(*keys, ...)]
        if not positions:
            return view
        view = view.transpose([int(k) for k in np.argsort(positions)])
        depth = max(positions) + 1
        return view[tuple(slice(None) if k in positions else None for k in range(depth))]

    def reduce(self, node: Reduce, scope: Scope) -> Value:
        """Combines the body over blocks of the reduction's points."""
        extents = [axis.extent.evaluate(self.sizes) for axis in node.axes]
        total: Array = literal(identity_of(node.combiner, node.dtype), node.dtype, self.wide)
        fault: Array | None = None
        if not math.prod(extents):
            return total, None
        outer = 1
        for name in node.free_axes:
            owner = scope.find(name)
            if owner is not None:
                low, high = owner.ranges[name]
                outer *= high - low
        combine, first = NUMPY_COMBINERS[node.combiner], True
        for ranges in blocks(list(node.axes), extents, outer):
            inner = Scope(ranges, parent=scope)
            value, bad = self.evaluate(node.body, inner)
            places = tuple(range(scope.depth, inner.depth))
            part = combine.reduce(self.spread(value, inner), axis=places, dtype=value.dtype)
            total = np.asarray(part if first else combine(total, part))
            first = False
            if bad is not None:
                fault = worst(fault, np.max(self.spread(bad, inner), axis=places))
        return total, fault

    def spread(self, array: Array, inner: Scope) -> Array:
        """The array with its full extent along the reduction's dims."""
        array = align(array, inner.depth)
        start = inner.depth - len(inner.ranges)
        lengths = tuple(high - low for low, high in inner.ranges.values())
        return np.broadcast_to(array, array.shape[:start] + lengths)


def _chosen(condition: Array, faults: list[Array | None]) -> Array | None:
    if faults[1] is None and faults[2] is None:
        return faults[0]
    none = np.zeros((), np.int64)
    arrays = [condition, *(none if fault is None else fault for fault in faults[1:])]
    return worst(faults[0], np.where(*aligned(*arrays)))


def _reads_own_stores(stage: Stage) -> bool:
    stored = {store.buffer for store in stage.stores}
    return not stored.isdisjoint(loaded(*stage.roots))
