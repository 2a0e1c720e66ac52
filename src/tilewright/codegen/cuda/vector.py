"""Several neighbours by one thread: 16 bytes are read and written at once.

    y[n] = f(x[n], s)
    ->  pack = x[n .. n+7]; for e < 8: out[e] = f(pack[e], s); y[n .. n+7] = out
Input -> Output: a stage at a position of its other axes -> lines of ``width`` points of one axis.
Requires: every store lies along the axis, aligned; nothing is guarded or read after it is stored.
Reductions are combined for all points at once.
Not here: which thread takes which points (pack, columns, row, deep).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tilewright.codegen.cuda import exact, scalar
from tilewright.codegen.cuda.plan import ONE
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32, DType
from tilewright.core.shape import Dim
from tilewright.kernel.affine import ZERO, Affine
from tilewright.kernel.ir import Axis, Call, Cast, Expr, Load, Reduce, identity_of, walk

WIDTH = 8
_OF_PACK = ".v[e]"  # the point of a loop
_UNROLLED = 7  # points of a reduction's axis whose reads are under way together


def whole_refusal(writer: Writer) -> str | None:
    """Why the stage cannot be written in packs along its last axis, in any order, or None."""
    axes = writer.nest.axes
    if not axes:
        return "no axes"
    if any(axis.ordered for axis in axes):
        return "an axis is ordered"
    return refusal(writer, axes[-1])


def refusal(writer: Writer, axis: Axis) -> str | None:
    """Why the stage cannot be written several points at a time, or None."""
    stage = writer.nest.stage
    if not axis.extent.is_const or axis.extent.const % WIDTH:
        return f"an extent of {axis.extent}"
    if any(store.guard is not None for store in stage.stores):
        return "a store is guarded"
    if any(isinstance(n, Load) and n.buffer in writer.stored for n in walk(*stage.roots)):
        return "it reads what it stores"
    if not all(is_aligned(form, axis.name) for form in writer.nest.stores):
        return "a store does not run along the last axis"
    return None


def is_aligned(form: Affine, axis: str) -> bool:
    """Whether ``WIDTH`` neighbours along an axis lie side by side from a multiple of ``WIDTH``."""
    if form.rest or form.stride(axis) != ONE:
        return False
    others = [factor for name, factor in form.terms.items() if name != axis]
    return all((factor % WIDTH) == Dim.of(0) for factor in (*others, form.offset))


def write_points(writer: Writer, axis: str, base: str, given: Mapping[Expr, str]) -> None:
    """Writes all stores for the points ``base .. base + WIDTH - 1`` of an axis.

    Args:
        given: text, with the number ``e`` of the point, of what is known already.
    """
    stores = list(zip(writer.nest.stage.stores, writer.nest.stores, strict=True))
    values = [store.value for store, _ in stores]
    with writer.positions():
        writer.position[axis] = base
        known = dict(given)
        for node in reductions(writer, values):
            if node not in known:
                known[node] = accumulate(writer, node, axis, base)
        known.update(load_packs(writer, axis, values, known))
        _convert_float8(writer, axis, base, values, known)
        packs = _packs(writer, axis, base, values, known)
        for (store, form), pack in zip(stores, packs, strict=True):
            kind = pack_type(writer.types[store.buffer])
            place = f"{writer.layout.buffers[store.buffer]}[{writer.address(form)}]"
            writer.line(f"*({kind}*)&{place} = {pack};")


def _packs(
    writer: Writer, axis: str, base: str, values: list[Expr], known: Mapping[Expr, str]
) -> list[str]:
    """The texts of packs of values; bytes are put together where that takes few instructions."""
    packs: list[str] = []
    lines: list[tuple[str, Expr, bool]] = []
    for value in values:
        if known.get(value, "").endswith(_OF_PACK):
            packs.append(known[value].removesuffix(_OF_PACK))
            continue
        name, kind = writer.name("out"), scalar.c_type(value.dtype)
        marked = writer.exact and exact.is_last_byte(value)
        writer.line(f"u32 {name}[{WIDTH}];" if marked else f"{pack_type(value.dtype)} {name};")
        packs.append(f"tw_last_bytes<{kind}>({name})" if marked else name)
        lines.append((name, value, marked))
    if not lines:
        return packs
    with each_point(writer, axis, base, known):
        for name, value, marked in lines:
            if marked:
                writer.line(f"{name}[e] = {exact.last_byte(value, writer.value)};")
            else:
                writer.line(f"{name}.v[e] = {writer.value(value)};")
    return packs


def _convert_float8(
    writer: Writer, axis: str, base: str, values: list[Expr], known: dict[Expr, str]
) -> None:
    """Converts neighbours to float8 and back together: what is inside of others first."""
    nodes = list(dict.fromkeys(n for value in values for n in writer.always(value).values()))
    casts = [n for n in nodes if isinstance(n, Cast) and not n.bits and n not in known]
    for node in sorted(casts, key=lambda node: node.height):
        if node.dtype is FLOAT8_E4M3FN and node.saturate and node.arg.dtype is FLOAT32:
            wide, name = writer.name("wide"), writer.name("pack")
            writer.line(f"float {wide}[{WIDTH}];")
            with each_point(writer, axis, base, known):
                total = exact.float8_sum(node.arg, writer.value) if writer.exact else None
                writer.line(f"{wide}[e] = {total or writer.value(node.arg)};")
            writer.line(f"const {pack_type(node.dtype)} {name} = tw_floats_to_e4m3({wide});")
            known[node] = f"{name}{_OF_PACK}"
        elif node.dtype is FLOAT32 and node.arg.dtype is FLOAT8_E4M3FN:
            text = known.get(node.arg, "")
            if text.endswith(_OF_PACK):
                wide = writer.name("wide")
                writer.line(f"float {wide}[{WIDTH}];")
                writer.line(f"tw_e4m3_to_floats({wide}, {text.removesuffix(_OF_PACK)});")
                known[node] = f"{wide}[e]"


def pack_type(dtype: DType) -> str:
    """The C type of ``WIDTH`` neighbours."""
    return f"TwPack<{scalar.c_type(dtype)}, {WIDTH}>"


def reductions(writer: Writer, roots: list[Expr]) -> list[Reduce]:
    """Reductions that every point needs."""
    nodes = (node for root in roots for node in writer.always(root).values())
    return list(dict.fromkeys(node for node in nodes if isinstance(node, Reduce)))


def accumulate(
    writer: Writer,
    node: Reduce,
    axis: str,
    base: str,
    loop: AbstractContextManager[object] | None = None,
) -> str:
    """A reduction for all points at once; the text of a point's result.

    Args:
        loop: over the reduction's points; all of them, if none is given.
    """
    kind = scalar.c_type(node.dtype)
    start = scalar.literal(identity_of(node.combiner, node.dtype), node.dtype)
    total = writer.name("acc")
    writer.line(f"{kind} {total}[{WIDTH}];")
    writer.line("#pragma unroll")
    writer.line(f"for (int e = 0; e < {WIDTH}; ++e) {total}[e] = {start};")
    with ExitStack() as loops:
        if loop is not None:
            loops.enter_context(loop)
        for inner in writer.nest.reduce_axes[id(node)] if loop is None else ():
            if inner.extent.is_const and inner.extent.const <= _UNROLLED:
                writer.line("#pragma unroll")
            loops.enter_context(writer.loop(inner))
        packs = load_packs(writer, axis, [node.body])
        packs.update(_guarded_packs(writer, axis, node.body))
        with each_point(writer, axis, base, packs):
            combine = f"{scalar.COMBINE[node.combiner]}<{kind}>"
            writer.line(f"{total}[e] = {combine}({total}[e], {writer.value(node.body)});")
    return f"{total}[e]"


def _guarded_packs(writer: Writer, axis: str, root: Expr) -> dict[Expr, str]:
    """Packs that are read only under a condition, which all points share."""
    packs: dict[Expr, str] = {}
    for node in writer.always(root).values():
        if not isinstance(node, Call) or node.op != "select" or node in packs:
            continue
        if axis in writer.nest.depends(node.args[0]):
            continue
        for part in writer.always(node.args[1]).values():
            form = writer.nest.loads.get(id(part))
            if isinstance(part, Load) and form is not None and is_aligned(form, axis):
                name, kind = writer.name("pack"), pack_type(part.dtype)
                writer.line(f"{kind} {name};")
                writer.line(f"memset(&{name}, 0, sizeof {name});")
                place = writer.load(part)
                writer.line(f"if ({writer.value(node.args[0])}) {name} = *(const {kind}*)&{place};")
                packs[part] = f"{name}.v[e]"
    return packs


def load_packs(
    writer: Writer, axis: str, roots: list[Expr], known: Collection[Expr] = ()
) -> dict[Expr, str]:
    """Reads what lies along the axis as packs, and what does not depend on it once."""
    packs: dict[Expr, str] = {}
    for root in roots:
        for node in writer.always(root).values():
            form = writer.nest.loads.get(id(node))
            if not isinstance(node, Load) or form is None or node in packs or node in known:
                continue
            if is_aligned(form, axis):
                kind, name = pack_type(node.dtype), writer.name("pack")
                writer.line(f"const {kind} {name} = *(const {kind}*)&{writer.load(node)};")
                packs[node] = f"{name}.v[e]"
            elif not form.rest and form.terms.get(axis, ZERO) == ZERO:
                writer.value(node)
    return packs


@contextmanager
def each_point(writer: Writer, axis: str, base: str, known: Mapping[Expr, str]) -> Iterator[None]:
    """A loop over the points of a pack, in which what was read is known."""
    writer.line("#pragma unroll")
    with writer.positions(), writer.block(f"for (int e = 0; e < {WIDTH}; ++e)"):
        writer.position[axis] = f"({base} + e)"
        for node, text in known.items():
            writer.known_as(node, text)
        yield
