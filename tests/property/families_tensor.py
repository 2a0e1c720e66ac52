"""Operators that move, select, join and make tensors, for random models.

Input -> Output: a draft -> the draft with one more node (or a few), or ``Rejected``.
Not here: arithmetic (families), windows (families_heavy).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from property.draft import Draft, Rejected, Value
from property.families import INTEGERS, Maker, anything, floats, numbers, partner
from tilewright.core.dtypes import BOOL, FLOAT32, INT32, INT64


def transpose(draft: Draft) -> object:
    x = anything(draft, 1 if draft.chance(0.9) else 0)
    perm = list(range(x.rank))
    draft.rng.shuffle(perm)
    return draft.emit("Transpose", [x], {"perm": perm if draft.chance(0.9) else None})


def reshape(draft: Draft) -> object:
    """A fixed target, a target with 0 and -1, or one computed from ``Shape``."""
    x = anything(draft)
    choice = draft.rng.random()
    if choice < 0.35:
        return draft.emit("Reshape", [x, draft.constant(_zeros_and_rest(draft, x))])
    if choice < 0.55:
        return draft.emit("Flatten", [x], {"axis": draft.rng.randint(-x.rank, x.rank)})
    if choice < 0.8 and x.rank:
        target = _computed_shape(draft, x)
        # Where a computed size is 0 the spec would copy the data's; allowzero makes it a size.
        zero = any((array == 0).any() for array in target.narrow)
        return draft.emit("Reshape", [x, target], {"allowzero": 1 if zero else None})
    sizes = {array.size for array in x.narrow}
    if len(sizes) != 1:
        raise Rejected("the number of elements differs")
    return draft.emit("Reshape", [x, draft.constant(_factors(draft, sizes.pop()))])


def _zeros_and_rest(draft: Draft, x: Value) -> list[int]:
    kept = draft.rng.randint(0, x.rank)
    return [0] * kept + [-1] + [1] * draft.rng.randint(0, 1)


def _factors(draft: Draft, size: int) -> list[int]:
    if not size:
        raise Rejected("no elements")
    parts = []
    for prime in (2, 2, 3, 2, 5, 7):
        if size % prime == 0 and draft.chance(0.6):
            parts.append(prime)
            size //= prime
    parts.append(size)
    draft.rng.shuffle(parts)
    return parts[:5] if np.prod(parts[:5], dtype=int) == np.prod(parts, dtype=int) else parts


def _computed_shape(draft: Draft, x: Value) -> Value:
    """Two axes of x swapped or merged, by Shape, Gather, Mul and Concat."""
    shape = draft.emit("Shape", [x])[0]
    parts: list[Value] = []
    order = list(range(x.rank))
    draft.rng.shuffle(order)
    merged = draft.chance(0.5) and len(order) > 1
    sizes = [draft.emit("Gather", [shape, draft.constant([axis])])[0] for axis in order]
    parts += sizes[2 if merged else 0 :]
    if merged:
        pair = sizes[:2]
        joined = draft.emit("Mul", pair)[0]
        parts.insert(0, draft.constant([-1]) if draft.chance(0.3) else joined)
    if draft.chance(0.2):
        parts.append(draft.constant([1]))
    return draft.emit("Concat", parts, {"axis": 0})[0]


def squeeze(draft: Draft) -> object:
    x = anything(draft)
    if draft.chance(0.5):
        count = draft.rng.randint(1, 2)
        rank = x.rank + count
        axes = draft.rng.sample(range(rank), count)
        axes = [axis - rank if draft.chance(0.4) else axis for axis in axes]
        return draft.emit("Unsqueeze", [x, draft.constant(axes)])
    ones = [axis for axis, dim in enumerate(x.dims) if set(dim) == {1}]
    if not ones:
        raise Rejected("no axis of size 1")
    chosen = draft.rng.sample(ones, draft.rng.randint(1, len(ones)))
    chosen = [axis - x.rank if draft.chance(0.4) else axis for axis in chosen]
    return draft.emit("Squeeze", [x, draft.constant(chosen)])


def slice_(draft: Draft) -> object:
    x = anything(draft, 1)
    axes = draft.rng.sample(range(x.rank), draft.rng.randint(1, x.rank))
    steps = [draft.one((1, 1, 1, 2, 3, -1, -2)) for _ in axes]
    low, high = -(2**63), 2**63 - 1
    starts = [draft.one((0, 1, 2, -1, -3, -100, 100, high if step < 0 else 0)) for step in steps]
    ends = [draft.one((1, 3, -1, 100, high if step > 0 else low, -2)) for step in steps]
    signed = [axis - x.rank if draft.chance(0.3) else axis for axis in axes]
    parts: list[Value | None] = [draft.constant(starts), draft.constant(ends)]
    ordered = axes == list(range(len(axes)))
    parts.append(None if ordered and draft.chance(0.5) else draft.constant(signed))
    parts.append(None if all(step == 1 for step in steps) else draft.constant(steps))
    if draft.chance(0.2):  # bounds that the compiler does not know
        arrays = [np.asarray(starts, np.int64)] * draft.num_runs
        parts[0] = draft.per_run(arrays)
    return draft.emit("Slice", [x, *parts])


def pad(draft: Draft) -> object:
    x = anything(draft, 1)
    mode = draft.one(("constant", "constant", "reflect", "edge", "wrap"))
    least = -1 if mode == "constant" and draft.chance(0.4) else 0
    pads = [draft.rng.randint(least, 2) for _ in range(2 * x.rank)]
    value = None
    if mode == "constant" and draft.chance(0.6):
        value = draft.constant(1, x.dtype.numpy)
    return draft.emit("Pad", [x, draft.constant(pads), value], {"mode": mode})


def concat(draft: Draft) -> object:
    x = anything(draft, 1)
    axis = draft.rng.randint(0, x.rank - 1)
    parts = [x]
    for _ in range(draft.rng.randint(0, 3)):
        old = [v for v in draft.values if v.dtype is x.dtype and _joins(v, x, axis)]
        if old and draft.chance(0.5):
            parts.append(draft.one(old))
        else:
            dims = list(x.dims)
            dims[axis] = draft.dim()
            parts.append(draft.fresh(x.dtype, dims))
    draft.rng.shuffle(parts)
    return draft.emit("Concat", parts, {"axis": axis - x.rank if draft.chance(0.3) else axis})


def _joins(a: Value, b: Value, axis: int) -> bool:
    return a.rank == b.rank and all(
        left == right
        for k, (left, right) in enumerate(zip(a.dims, b.dims, strict=True))
        if k != axis
    )


def split(draft: Draft) -> object:
    x = anything(draft, 1)
    axis = draft.rng.randint(-x.rank, x.rank - 1)
    count = draft.rng.randint(1, 3)
    dim = x.dims[axis]
    if draft.opset >= 18 and draft.chance(0.5):
        return draft.emit("Split", [x], {"axis": axis, "num_outputs": count}, outputs=count)
    if len(set(dim)) > 1:
        raise Rejected("the size differs")
    cuts = sorted(draft.rng.randint(0, dim[0]) for _ in range(count - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, dim[0]], strict=True)]
    return draft.emit("Split", [x, draft.constant(sizes)], {"axis": axis}, outputs=count)


def expand(draft: Draft) -> object:
    x = anything(draft, 0, 3)
    if draft.chance(0.5):
        like = partner(draft, x)
        return draft.emit("Expand", [x, draft.emit("Shape", [like])[0]])
    target = [draft.one((1, dim[0])) if dim[0] != 1 else draft.one((1, 2, 3, 0)) for dim in x.dims]
    target = [draft.one((1, 2))] * draft.rng.randint(0, 1) + target
    return draft.emit("Expand", [x, draft.constant(target)])


def tile(draft: Draft) -> object:
    x = anything(draft, 1)
    return draft.emit(
        "Tile",
        [
            x,
            draft.constant(
                [draft.one((1, 1, 2, 3, 0 if draft.chance(0.2) else 1)) for _ in x.dims]
            ),
        ],
    )


def _indices(draft: Draft, dims: list[Any], size: int, low: int | None = None) -> Value:
    if size == 0:
        raise Rejected("nothing to point at")
    kind = draft.one((INT64, INT32))
    bottom = -size if low is None else low
    return draft.fresh(
        kind,
        dims,
        make=lambda shape, _run: (
            np.random.default_rng(draft.rng.getrandbits(32))
            .integers(bottom, size, shape)
            .astype(kind.numpy)
        ),
    )


def gather(draft: Draft) -> object:
    x = anything(draft, 1)
    axis = draft.rng.randint(0, x.rank - 1)
    size = min(x.dims[axis])
    dims = draft.shape(0, 2)
    signed = axis - x.rank if draft.chance(0.3) else axis
    if draft.chance(0.5):
        return draft.emit("Gather", [x, _indices(draft, dims, size)], {"axis": signed})
    dims = [
        dim if k != axis else draft.same(draft.rng.randint(1, 4)) for k, dim in enumerate(x.dims)
    ]
    return draft.emit("GatherElements", [x, _indices(draft, dims, size)], {"axis": signed})


def gather_nd(draft: Draft) -> object:
    x = anything(draft, 1)
    batch = draft.one([b for b in (0, 0, 0, 1) if b < x.rank])
    depth = draft.rng.randint(1, x.rank - batch)
    size = min(min(dim) for dim in x.dims[batch : batch + depth])
    dims = [*x.dims[:batch], *draft.shape(0, 1), draft.same(depth)]
    indices = _indices(draft, dims, size)
    if indices.dtype is not INT64:
        raise Rejected("GatherND takes int64")
    return draft.emit("GatherND", [x, indices], {"batch_dims": batch})


def scatter(draft: Draft) -> object:
    x = numbers(draft, 1)
    how = draft.one(("none", "none", "add", "mul", "max", "min"))
    if draft.opset < 18 and how in ("max", "min"):
        raise Rejected("newer")
    axis = draft.rng.randint(0, x.rank - 1)
    size = min(x.dims[axis])
    if draft.chance(0.5):
        dims = [draft.same(draft.rng.randint(0, min(3, *dim))) for dim in x.dims]
        if how == "none":  # two updates of one element have no order: one index on each line
            dims[axis] = draft.same(min(1, size))
        indices = _indices(draft, list(dims), size)
        updates = draft.fresh(x.dtype, dims)
        return draft.emit(
            "ScatterElements", [x, indices, updates], {"axis": axis, "reduction": how}
        )
    depth = draft.rng.randint(1, x.rank)
    bound = min(min(dim) for dim in x.dims[:depth])
    count = draft.same(1) if how == "none" else draft.dim()
    indices = _indices(draft, [count, draft.same(depth)], bound)
    updates = draft.fresh(x.dtype, [count, *x.dims[depth:]])
    return draft.emit("ScatterND", [x, indices, updates], {"reduction": how})


def space(draft: Draft) -> object:
    x = numbers(draft, 4)
    block = draft.one((1, 2, 3))
    if draft.chance(0.5):
        return draft.emit("SpaceToDepth", [x], {"blocksize": block})
    return draft.emit("DepthToSpace", [x], {"blocksize": block, "mode": draft.one(("DCR", "CRD"))})


def trilu(draft: Draft) -> object:
    x = anything(draft, 2)
    k = draft.constant(draft.rng.randint(-3, 3)) if draft.chance(0.7) else None
    return draft.emit("Trilu", [x, k], {"upper": draft.one((0, 1))})


def shape(draft: Draft) -> object:
    x = anything(draft)
    if draft.chance(0.3):
        return draft.emit("Size", [x])
    if draft.chance(0.5):
        return draft.emit("Shape", [x])
    return draft.emit(
        "Shape", [x], {"start": draft.rng.randint(-3, 3), "end": draft.rng.randint(-3, 4)}
    )


def generated(draft: Draft) -> object:
    """ConstantOfShape, Range, EyeLike, OneHot."""
    choice = draft.one(("fill", "range", "eye", "one_hot"))
    if choice == "fill":
        like = anything(draft, 0, 3)
        kind = draft.one((FLOAT32, INT64, BOOL, *INTEGERS[:2]))
        value = None if draft.chance(0.2) else draft.array(kind, (1,), -2, 3)
        return draft.emit("ConstantOfShape", [draft.emit("Shape", [like])[0]], {"value": value})
    if choice == "range":
        limit = draft.emit("Size", [anything(draft, 0, 2)])[0]
        return draft.emit(
            "Range",
            [draft.constant(draft.one((0, 1, -2))), limit, draft.constant(draft.one((1, 2)))],
        )
    if choice == "eye":
        x = numbers(draft, 2, 2)
        return draft.emit("EyeLike", [x], {"k": draft.rng.randint(-1, 2)})
    depth = draft.rng.randint(1, 5)
    indices = _indices(draft, draft.shape(0, 2), depth)
    values = draft.constant([0.5, 2.0], np.float32)
    return draft.emit(
        "OneHot", [indices, draft.constant(depth), values], {"axis": draft.one((-1, 0))}
    )


def resize(draft: Draft) -> object:
    x = floats(draft, 3)
    mode = draft.one(("nearest", "linear", "cubic"))
    if (mode == "cubic" and x.rank > 4) or (mode != "nearest" and not x.finite):
        raise Rejected("rank, or a product of zero and infinity")
    where = draft.one(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attributes = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        attributes["nearest_mode"] = draft.one(("round_prefer_floor", "floor", "ceil"))
    factors = [1.0, 1.0] + [draft.one((1.0, 2.0, 0.5, 4.0)) for _ in x.dims[2:]]
    if draft.chance(0.5):
        return draft.emit("Resize", [x, None, draft.constant(factors, np.float32)], attributes)
    if any(len(set(dim)) > 1 for dim in x.dims[:2]):
        raise Rejected("sizes are constants here")
    sizes = [x.dims[0][0], x.dims[1][0]] + [draft.rng.randint(1, 9) for _ in x.dims[2:]]
    if mode == "nearest" and where != "asymmetric":
        raise Rejected("ties depend on rounding")
    return draft.emit("Resize", [x, None, None, draft.constant(sizes)], attributes)


def counted(draft: Draft) -> object:
    """Results whose size depends on the data."""
    x = numbers(draft, 1)
    if x.noisy or not x.finite:
        raise Rejected("a step")
    choice = draft.one(("nonzero", "compress", "unique"))
    if choice == "nonzero":
        return draft.emit("NonZero", [x])
    if choice == "compress":
        axis = draft.one((None, *range(-x.rank, x.rank)))
        length = draft.rng.randint(1, 4)
        size = min(array.size if axis is None else array.shape[axis] for array in x.narrow)
        condition = draft.fresh(BOOL, [draft.same(min(length, size))])
        return draft.emit("Compress", [x, condition], {"axis": axis})
    outputs = draft.one((1, 4))
    return draft.emit("Unique", [x], {"sorted": draft.one((0, 1))}, outputs=outputs)


def reverse_sequence(draft: Draft) -> object:
    x = anything(draft, 2)
    axes = draft.one((0, 1))
    lengths = [
        np.asarray(
            [draft.rng.randint(1, max(1, a.shape[axes])) for _ in range(a.shape[1 - axes])],
            np.int64,
        )
        for a in x.narrow
    ]
    if any(array.size == 0 for array in x.narrow):
        raise Rejected("no sequence")
    return draft.emit(
        "ReverseSequence", [x, draft.per_run(lengths)], {"time_axis": axes, "batch_axis": 1 - axes}
    )


FAMILIES: tuple[tuple[Maker, float], ...] = (
    (transpose, 2.5),
    (reshape, 2.5),
    (squeeze, 1.5),
    (slice_, 2.5),
    (pad, 2),
    (concat, 2),
    (split, 1.5),
    (expand, 1.5),
    (tile, 1),
    (gather, 2),
    (gather_nd, 0.7),
    (scatter, 1.5),
    (space, 0.7),
    (trilu, 0.7),
    (shape, 0.7),
    (generated, 1),
    (resize, 1),
    (counted, 0.6),
    (reverse_sequence, 0.4),
)
