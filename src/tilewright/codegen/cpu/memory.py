"""Elements of buffers: contiguous, broadcast, strided and masked accesses.

Input -> Output: a buffer's address, an element index, a stride -> register lanes, and back.
Guarantees: lanes whose mask does not hold touch no memory; without a mask no byte is touched that
lies before the first or after the last element accessed.
Not here: which index belongs to which loop (generate), conversions (convert).
"""

from __future__ import annotations

from tilewright.codegen.cpu.convert import register_type, storage_type, to_register, to_storage
from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.values import I64, Value, constant
from tilewright.core.dtypes import DType
from tilewright.core.errors import InternalError

# Up to this stride, loading everything between and shuffling beats a gather.
_MAX_SHUFFLED_STRIDE = 4


def load_element(
    b: Builder,
    pointer: Value,
    element_index: Value,
    dtype: DType,
    lanes: int = 1,
    *,
    stride: int | Value | None = 1,
    mask: Value | None = None,
    active: int | None = None,
) -> Value:
    """Lanes ``element_index + lane * stride`` of a buffer, in the element's register type.

    Args:
        pointer: address of element 0.
        element_index: i64 of lane 0; or i64 lanes, one index each (``stride`` is then ignored).
        stride: elements from lane to lane; 0 is one element for all lanes; None with index lanes.
        mask: i1 lanes (or one i1 for all); the others are 0 and read nothing.
        active: for how many first lanes it holds, if that is known: 2, 4 or 8 are a vector.
    """
    if lanes == 1 or (stride == 0 and not element_index.type.is_vector):
        return _load_one(b, pointer, element_index, dtype, lanes, mask)
    kind = storage_type(dtype, lanes)
    mask = None if mask is None else b.splat(mask, lanes)
    if stride == 1 and not element_index.type.is_vector:
        address = b.gep(pointer, element_index, kind.element_bytes)
        if mask is None:
            stored = b.load(kind, address)
        elif _is_vector(active):
            part = b.load(kind.with_lanes(active or 1), address)
            rest = constant(part.type, 0)
            stored = b.shuffle(part, rest, [min(lane, active or 1) for lane in range(lanes)])
        else:
            stored = b.masked_load(kind, address, mask)
    elif mask is None and isinstance(stride, int) and _is_shuffled(stride, element_index):
        stored = _load_strided(b, pointer, element_index, dtype, lanes, stride)
    else:
        addresses = _addresses(b, pointer, element_index, dtype, lanes, stride)
        stored = b.gather(kind, addresses, mask)
    return to_register(b, stored, dtype)


def store_element(
    b: Builder,
    pointer: Value,
    element_index: Value,
    value: Value,
    dtype: DType,
    *,
    stride: int | Value | None = 1,
    mask: Value | None = None,
    often_whole: bool = False,
    active: int | None = None,
) -> None:
    """Stores register lanes at ``element_index + lane * stride``.

    Args:
        element_index, stride, mask, active: as for ``load_element``; where lanes share an element,
            the last one stays.
        often_whole: the mask mostly holds for all lanes. Without masks in hardware it is asked
            first, as processors take a masked store apart (18 cycles on Zen 4).
    """
    stored = to_storage(b, value, dtype)
    lanes = stored.type.lanes
    size = stored.type.element_bytes
    if lanes == 1:
        if mask is None:
            b.store(stored, b.gep(pointer, element_index, size))
            return
        with b.when(mask):
            b.store(stored, b.gep(pointer, element_index, size))
        return
    mask = None if mask is None else b.splat(mask, lanes)
    if stride == 1 and not element_index.type.is_vector:
        address = b.gep(pointer, element_index, size)
        if mask is None:
            b.store(stored, address)
        elif _is_vector(active):
            b.store(b.shuffle(stored, None, range(active or 1)), address)
        elif often_whole and not b.target.has_masks:
            is_whole = b.all_lanes(mask)
            with b.when(is_whole):
                b.store(stored, address)
            with b.when(b.not_(is_whole)):
                b.masked_store(stored, address, mask)
        else:
            b.masked_store(stored, address, mask)
        return
    b.scatter(stored, _addresses(b, pointer, element_index, dtype, lanes, stride), mask)


def _is_vector(active: int | None) -> bool:
    return active is not None and active > 1 and not active & (active - 1)


def _load_one(
    b: Builder, pointer: Value, index: Value, dtype: DType, lanes: int, mask: Value | None
) -> Value:
    def load() -> Value:
        kind = storage_type(dtype)
        stored = b.load(kind, b.gep(pointer, index, kind.element_bytes))
        return b.splat(to_register(b, stored, dtype), lanes)

    if mask is None:
        return load()
    rest = constant(register_type(dtype, lanes), 0)
    value = b.if_else(b.any_lane(mask), load, lambda: rest)
    return b.select(mask, value, rest) if mask.type.is_vector else value


def _addresses(
    b: Builder, pointer: Value, index: Value, dtype: DType, lanes: int, stride: int | Value | None
) -> Value:
    """One address a lane."""
    size = storage_type(dtype).element_bytes
    if index.type.is_vector:
        return b.gep(pointer, index, size)
    if stride is None:
        raise InternalError("a scalar index of several lanes needs a stride")
    wide = I64.with_lanes(lanes)
    step = constant(I64, stride) if isinstance(stride, int) else stride
    first = b.gep(pointer, index, size)
    if step.const is not None:  # constant offsets need no index arithmetic at run time
        return b.gep(first, b.iota(wide, int(step.const)), size)
    return b.gep(first, b.mul(b.iota(wide), b.splat(step, lanes)), size)


def _is_shuffled(stride: int, index: Value) -> bool:
    return not index.type.is_vector and (stride == -1 or 2 <= stride <= _MAX_SHUFFLED_STRIDE)


def _load_strided(
    b: Builder, pointer: Value, index: Value, dtype: DType, lanes: int, stride: int
) -> Value:
    """Contiguous loads that cover the span from the first to the last lane, then shuffles."""
    kind = storage_type(dtype, lanes)
    size = kind.element_bytes
    if stride == -1:
        first = b.gep(pointer, b.add(index, constant(I64, 1 - lanes)), size)
        return b.shuffle(b.load(kind, first), None, range(lanes - 1, -1, -1))
    base = b.gep(pointer, index, size)
    last = (lanes - 1) * stride
    merged: Value | None = None
    for part in range(stride):
        start = min(part * lanes, last + 1 - lanes)
        piece = b.load(kind, b.gep(base, start, size))
        here = [lane * stride - start for lane in range(lanes)]
        taken = [lane if 0 <= lane < lanes else -1 for lane in here]
        if merged is None:
            merged = b.shuffle(piece, None, taken)
        else:
            picks = [lanes + pick if pick >= 0 else lane for lane, pick in enumerate(taken)]
            merged = b.shuffle(merged, piece, picks)
    if merged is None:
        raise InternalError("a strided load has a positive stride")
    return merged
