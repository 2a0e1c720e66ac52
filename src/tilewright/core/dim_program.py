"""Many dims as one list of operations, evaluated at once.

Input -> Output: dims and operations on them -> slots; sizes of names -> a value for each slot.
Guarantees: values are those of ``Dim.evaluate``, exact whatever their size; what several dims share
is computed once.
Not here: the arithmetic of expressions (core.shape), limits of values (those who use them).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from tilewright.core.errors import InternalError
from tilewright.core.shape import Atom, Dim

Operation = Callable[[int, int], int]


class DimProgram:
    """Operations in the order in which they are computed; more may be added at any time."""

    def __init__(self) -> None:
        self._start: list[int] = []  # constants; 0 where a name or an operation has its slot
        self._names: dict[str, int] = {}
        self._constants: dict[int, int] = {}
        self._operations: list[tuple[int, Operation, int, int]] = []
        self._known: dict[tuple[str, int, int], int] = {}
        self._dims: dict[str, int] = {}

    def __len__(self) -> int:
        """The operations of one evaluation."""
        return len(self._operations)

    @property
    def names(self) -> tuple[str, ...]:
        """What has to have a size."""
        return tuple(self._names)

    def slot(self, dim: Dim) -> int:
        """The slot of a dim, which is added where it is new."""
        slot = self._dims.get(dim.text)
        if slot is None:
            slot = self._dims[dim.text] = self._sum(dim)
        return slot

    def constant(self, number: int) -> int:
        """The slot of a number."""
        slot = self._constants.get(number)
        if slot is None:
            slot = self._constants[number] = self._new(number)
        return slot

    def apply(self, name: str, left: int, right: int) -> int:
        """The slot of an operation on two slots.

        Args:
            name: add, mul, floordiv, mod (0 for a division by 0), max or min.
        """
        key = (name, left, right)
        slot = self._known.get(key)
        if slot is None:
            slot = self._known[key] = self._new(0)
            self._operations.append((slot, _OPERATIONS[name], left, right))
        return slot

    def evaluate(self, sizes: Mapping[str, int]) -> list[int]:
        """The values of all slots.

        Raises:
            KeyError: a name has no size.
        """
        values = self._start.copy()
        for name, slot in self._names.items():
            values[slot] = sizes[name]
        for slot, operation, left, right in self._operations:
            values[slot] = operation(values[left], values[right])
        return values

    def _new(self, value: int) -> int:
        self._start.append(value)
        return len(self._start) - 1

    def _sum(self, dim: Dim) -> int:
        total = None
        for monomial, factor in dim.terms:
            term = None
            for atom in monomial:
                slot = self._atom(atom)
                term = slot if term is None else self.apply("mul", term, slot)
            if term is None:
                term = self.constant(factor)
            elif factor != 1:
                term = self.apply("mul", term, self.constant(factor))
            total = term if total is None else self.apply("add", total, term)
        return self.constant(0) if total is None else total

    def _atom(self, atom: Atom) -> int:
        if not atom.op:
            slot = self._names.get(atom.name)
            if slot is None:
                slot = self._names[atom.name] = self._new(0)
            return slot
        if atom.left is None or atom.right is None:
            raise InternalError("a function atom lacks an operand")
        return self.apply(atom.op, self.slot(atom.left), self.slot(atom.right))


def _floordiv(left: int, right: int) -> int:
    return left // right if right else 0


def _mod(left: int, right: int) -> int:
    return left % right if right else 0


def _max(left: int, right: int) -> int:
    return left if left > right else right


def _min(left: int, right: int) -> int:
    return left if left < right else right


_OPERATIONS: dict[str, Operation] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "max": _max,
    "min": _min,
}
