"""Windows that slide over an image, which the copy engine fetches as rows of a matrix.

Input -> Output: an operand of a match -> ``Window``, or the reason why it is none.
Requires: channels last, as many as some steps of the depth; constant sizes; borders of zeros.
Guarantees: what is fetched is what the operand's guards let through, zeros elsewhere.
Not here: products of plain matrices (tma), the driver's map (runtime.cuda.tensor_map).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.codegen.cuda.operands import Operand
from tilewright.codegen.cuda.plan import Draft
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, affine
from tilewright.kernel.ir import Axis, Call, Expr
from tilewright.runtime.program import Image

DEPTH = 64  # halves of a step
_CORNERS = range(-128, 128)  # where the first and the last window may begin, from the corners
_FARTHEST_TAP, _LONGEST_STEP = 255, 8
_Part = tuple[Axis, int]  # an axis, and how far its index moves


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slide:
    """Along one side: a window begins at ``step`` * place + ``first``, and has taps from there.

    Attributes:
        size: of the image.
        bounds: guards that keep it inside.
    """

    place: _Part | None
    tap: _Part | None
    first: int
    size: int
    bounds: int

    @property
    def step(self) -> int:
        return self.place[1] if self.place is not None else 1

    @property
    def last(self) -> int:
        """Where the last window begins."""
        return self.first + _reach(self.place)

    @property
    def fits(self) -> bool:
        """Whether the copy engine can count that far."""
        corners = self.first in _CORNERS and self.last - (self.size - 1) in _CORNERS
        return corners and self.step <= _LONGEST_STEP and _reach(self.tap) <= _FARTHEST_TAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a window slides down and across, and over which images of how many channels.

    Attributes:
        halves: channels, or pairs of them that are bytes.
    """

    buffer: int
    images: tuple[_Part | None, int]
    down: _Slide
    across: _Slide
    channels: Axis
    halves: int

    def image(self, box: int) -> Image:
        """What the driver makes a map of, for boxes of so many places."""
        sides = (self.down, self.across)
        return Image(
            buffer=self.buffer,
            shape=(self.images[1], sides[0].size, sides[1].size, self.halves),
            first=(sides[0].first, sides[1].first),
            last=(sides[0].last, sides[1].last),
            step=(sides[0].step, sides[1].step),
            box=box,
        )

    def write(self, writer: Writer, name: str) -> None:
        """Fetches a step by the map of that name, the positions of all axes known."""

        def index(part: _Part | None) -> str:
            return "0" if part is None else f"{writer.position[part[0].name]} * {part[1]}"

        sides = (self.across, self.down)
        parts = [writer.position[self.channels.name]]
        parts += [f"{index(side.place)} + {side.first}" for side in sides]
        parts += [index(self.images[0]), *(index(side.tap) for side in sides)]
        writer.line(f"tw_fetch_window(to, &{name}, {', '.join(parts)}, barrier);")


def find_window(draft: Draft, side: Operand, depth: tuple[Axis, ...]) -> Window | str:
    """The window that an operand slides over an image, or why there is none."""
    load = side.source
    if load is None or not side.deep:
        return "an operand does not run along the depth"
    names = [buffer.name for buffer in draft.kernel.buffers]
    number = names.index(load.buffer)
    shape, form = draft.kernel.buffers[number].shape, draft.nest.loads[id(load)]
    extents = [*shape, *(axis.extent for axis in (*side.axes, *depth))]
    if len(shape) != 4 or form.rest or not all(extent.is_const for extent in extents):
        return "an operand is no image of known size"
    images, high, wide, channels = (extent.const for extent in shape)
    halves, odd = divmod(channels * load.dtype.storage_bytes, 2)
    if odd or halves % DEPTH:
        return f"{channels} channels"
    if side.fill:
        return "a border that is not 0"
    if depth[-1].extent.const != channels:
        return "a depth that does not run along the channels alone"
    strides = (high * wide * channels, wide * channels, channels)
    places, taps = _parts(form, side.axes, strides), _parts(form, depth[:-1], strides)
    bounds = list(_bounds(side.value))
    if places is None or taps is None or taps[0] is not None:
        return "an operand is no window"
    if places[0] is None and not bounds:
        images, high = 1, images * high  # they lie one below the other
    if images != (places[0][0].extent.const if places[0] is not None else 1):
        return "an operand is no window on whole images"
    down, across = (_slide(places[d], taps[d], size, bounds) for d, size in ((1, high), (2, wide)))
    if down is None or across is None:
        return "an operand is no window"
    begins = down.first * strides[1] + across.first * strides[2]
    if form.offset != Dim.of(begins) or len(bounds) != down.bounds + across.bounds:
        return "an operand is no window"
    return Window(
        buffer=number,
        images=(places[0], images),
        down=down,
        across=across,
        channels=depth[-1],
        halves=halves,
    )


def _parts(
    form: Affine, axes: tuple[Axis, ...], strides: tuple[int, int, int]
) -> list[_Part | None] | None:
    """The axis that moves along images, down and across, at most one each."""
    found: list[_Part | None] = [None, None, None]
    for axis in axes:
        factor = form.terms.get(axis.name, Dim.of(0)).const
        fitting = [d for d, stride in enumerate(strides) if factor > 0 and factor % stride == 0]
        if not fitting or found[fitting[0]] is not None:
            return None
        found[fitting[0]] = axis, factor // strides[fitting[0]]
    return found if found[0] is None or found[0][1] == 1 else None


def _bounds(value: Expr) -> Iterator[tuple[Affine, bool] | None]:
    """What the guards ask: that a form is not negative (True), or that it is (False)."""
    while isinstance(value, Call):
        left = [value.children[0]]
        while left:
            test = left.pop()
            if not isinstance(test, Call) or test.op not in ("and", "ge", "lt"):
                yield None
            elif test.op == "and":
                left += test.children
            elif test.children[0].dtype is INT64:
                first, second = (affine(part) for part in test.children)
                yield first + second.scaled(Dim.of(-1)), test.op == "ge"
            else:
                yield None
        value = value.children[1]


def _slide(
    place: _Part | None, tap: _Part | None, size: int, bounds: list[tuple[Affine, bool] | None]
) -> _Slide | None:
    """The slide along one side, if the guards let through what lies inside, and only that."""
    terms = {part[0].name: Dim.of(part[1]) for part in (place, tap) if part is not None}
    own = [b for b in bounds if b is not None and not b[0].rest and dict(b[0].terms) == terms]
    firsts = {(form.offset if low else form.offset + size) for form, low in own} or {Dim.of(0)}
    if len(firsts) > 1 or not (first := firsts.pop()).is_const:
        return None
    slide = _Slide(place=place, tap=tap, first=first.const, size=size, bounds=len(own))
    ends = slide.last + _reach(tap) >= size
    for needed, kind in ((slide.first < 0, True), (ends, False)):
        if needed and all(low is not kind for _, low in own):
            return None
    return slide if slide.fits else None


def _reach(part: _Part | None) -> int:
    return part[1] * (part[0].extent.const - 1) if part is not None else 0
