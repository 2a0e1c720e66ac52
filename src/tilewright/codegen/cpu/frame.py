"""Where evaluation stands inside a nest: positions, copies, lanes, masks, and what is known.

Input -> Output: a builder, a nest and its argument block -> sizes, addresses, masks and scopes of
remembered values.
Guarantees: a value is remembered for the variants that cannot tell it apart, inside its scope only.
Not here: the meaning of expressions (codegen.cpu.evaluate).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.codegen.cpu.emit import I64, PTR, Builder, Type, Value, index
from tilewright.codegen.cpu.layout import ArgumentLayout, nest_buffers, nest_dims
from tilewright.core.shape import Dim
from tilewright.kernel.nest import Nest

Variant = tuple[int, ...]


@dataclass(slots=True)
class Scope:
    """What is known inside one block: values, and partial addresses by access."""

    values: dict[tuple[object, ...], Value] = field(default_factory=dict)
    partials: dict[int, list[tuple[frozenset[str], tuple[object, ...], Value]]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Tail:
    """The lanes of a vector that are active: a mask, and how many first ones where it is known."""

    mask: Value
    lanes: int | None = None


@dataclass(slots=True)
class Frame:
    """Where evaluation stands: axis positions, unrolled axes, lanes, masks, known values.

    Attributes:
        position: axis -> its first index (of copy 0, lane 0).
        unrolled: axis -> (place in a variant, distance between copies).
        copies: axis -> number of copies.
        vector: the axis that lanes run along, or None.
        lanes: lanes of a vector.
        tails: by copy of the vector axis, where not all lanes are active.
        guard: lane mask from enclosing selects, or None.
        branches: number of enclosing branches that only some variants take.
        scopes: what is known, innermost last.
    """

    position: dict[str, Value] = field(default_factory=dict)
    unrolled: dict[str, tuple[int, int]] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    vector: str | None = None
    lanes: int = 1
    tails: dict[int, Tail] = field(default_factory=dict)
    guard: Value | None = None
    branches: int = 0
    scopes: list[Scope] = field(default_factory=lambda: [Scope()])


class Positions:
    """The state of evaluation in one function."""

    def __init__(self, builder: Builder, nest: Nest, layout: ArgumentLayout, args: Value) -> None:
        self.b = builder
        self.nest = nest
        self.args = args
        self.frame = Frame()
        self._dims = {dim: self.slot(layout.dim_slots[dim], I64) for dim in nest_dims(nest)}
        self._pointers = {
            name: self.slot(layout.buffer_slots[name], PTR) for name in nest_buffers(nest)
        }

    def slot(self, number: int, kind: Type) -> Value:
        """A word of the argument block."""
        return self.b.load(kind, self.b.gep(self.args, number, 8), 8)

    def dim(self, dim: Dim) -> Value:
        """A size as i64."""
        return index(dim.const) if dim.is_const else self._dims[dim]

    def pointer(self, buffer: str) -> Value:
        """A buffer's address."""
        return self._pointers[buffer]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values found inside are forgotten at the end."""
        self.frame.scopes.append(Scope())
        yield
        self.frame.scopes.pop()

    def project(self, axes: frozenset[str], variant: Variant) -> tuple[object, ...]:
        """The part of a variant that a value with these dependencies can see."""
        return tuple(
            (place, variant[place])
            for axis, (place, _) in self.frame.unrolled.items()
            if axis in axes
        )

    def recall(self, key: tuple[object, ...]) -> Value | None:
        for scope in reversed(self.frame.scopes):
            found = scope.values.get(key)
            if found is not None:
                return found
        return None

    def remember(self, key: tuple[object, ...], value: Value) -> Value:
        self.frame.scopes[-1].values[key] = value
        return value

    def at(self, axis: str, variant: Variant) -> Value:
        """The (first lane's) index on an axis for a variant."""
        start = self.frame.position[axis]
        place, distance = self.frame.unrolled.get(axis, (-1, 0))
        return self.b.add(start, index(variant[place] * distance)) if place >= 0 else start

    def mask(self, variant: Variant) -> Value | None:
        """The active lanes of a variant; None means all."""
        tail, guard = self._tail(variant), self.frame.guard
        if tail is None or guard is None:
            return guard if tail is None else tail.mask
        return self.b.and_(tail.mask, guard)

    def active(self, variant: Variant) -> int | None:
        """How many first lanes of a variant the mask holds for; None where that is not known."""
        tail = self._tail(variant)
        return None if tail is None or self.frame.guard is not None else tail.lanes

    def _tail(self, variant: Variant) -> Tail | None:
        vector = self.frame.vector
        if vector is None:
            return None
        place, _ = self.frame.unrolled.get(vector, (-1, 0))
        return self.frame.tails.get(variant[place] if place >= 0 else 0)

    def splat(self, value: Value) -> Value:
        """The value in every lane of the current vectors."""
        return self.b.splat(value, self.frame.lanes) if self.frame.vector else value
