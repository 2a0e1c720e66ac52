"""What a stage needs of the rows that another stage stored.

Input -> Output: a buffer, one of its dims, the stage that stores it, the stage that loads it ->
``Hand``, or the reason why the dim does not order both of them.
    for h: t[h + 1] = f(h);  for y: out[y] = g(t[2*y], t[2*y + 1], t[2*y + 2])
    ->  row y of the reader needs the writer's rows 2*y - 1 .. 2*y + 1
Guarantees: a reader's row needs no other rows than its ``Hand`` says.
Not here: chains of kernels (lower.row_bands), the order of execution (codegen.cpu.waves).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, affine
from tilewright.kernel.ir import Axis, Buffer, Expr, Load, Reduce, Stage, walk

ROWS = 2  # the dim of rows: behind batch and channels
_ONE = Dim.of(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """Row y of the reader needs the writer's rows ``stride*y + first .. stride*y + last``.

    Attributes:
        writer, reader: the axes of both stages that count rows.
    """

    writer: Axis
    reader: Axis
    stride: int
    first: int
    last: int


def hand(buffer: Buffer, writer: Stage, reader: Stage, dim: int = ROWS) -> Hand | str:
    """How the reader depends on the writer, row by row; or why it is not ordered by rows."""
    if len(buffer.shape) <= dim + 1:
        return "it has no rows"
    stored = _single(s.index[dim] for s in writer.stores if s.buffer == buffer.name)
    if stored is None or list(stored.terms.values()) != [_ONE] or not stored.offset.is_const:
        return "its rows are not stored by one axis"
    loads = [n for n in walk(*reader.roots) if isinstance(n, Load) and n.buffer == buffer.name]
    inner = {a.name: a for n in walk(*reader.roots) if isinstance(n, Reduce) for a in n.axes}
    axes = {axis.name: axis for axis in reader.axes}
    windows = [_window(affine(node.index[dim]), axes, inner) for node in loads]
    known = [window for window in windows if window is not None]
    if len(known) < len(windows) or len({window[:2] for window in known}) != 1:
        return "its rows are not loaded along one axis"
    name, stride = known[0][:2]
    writing = next((axis for axis in writer.axes if axis.name in stored.terms), None)
    if writing is None or writing.ordered or axes[name].ordered:
        return "its rows are in an order of their own"
    offset = stored.offset.const
    return Hand(
        writer=writing,
        reader=axes[name],
        stride=stride,
        first=min(window[2] for window in known) - offset,
        last=max(window[3] for window in known) - offset,
    )


def rings(hands: Sequence[Hand], rows: int) -> list[int]:
    """Rows of each value that so many rows of the last stage need, rounded up to a power of two.

    Of one row alone an index would not say that it depends on the row.
    """
    found: list[int] = []
    for link in reversed(hands):
        rows = link.stride * (rows - 1) + link.last - link.first + 1
        found.append(max(2, 1 << (rows - 1).bit_length()))
    return found[::-1]


def _single(indices: Iterable[Expr]) -> Affine | None:
    """The one form of all indices."""
    forms = [affine(index) for index in indices]
    same = bool(forms) and all(form == forms[0] for form in forms) and not forms[0].rest
    return forms[0] if same else None


def _window(
    form: Affine, axes: dict[str, Axis], inner: dict[str, Axis]
) -> tuple[str, int, int, int] | None:
    """The stage's axis in an index, its factor, and the least and largest of what is added."""
    own = [name for name in form.terms if name in axes]
    if len(own) != 1 or form.rest or not form.offset.is_const:
        return None
    low = high = form.offset.const
    for name, factor in form.terms.items():
        if not factor.is_const:
            return None
        if name == own[0]:
            continue
        extent = inner[name].extent
        if not extent.is_const:
            return None
        end = factor.const * (extent.const - 1)
        low, high = low + min(0, end), high + max(0, end)
    stride = form.terms[own[0]].const
    return (own[0], stride, low, high) if stride > 0 else None
