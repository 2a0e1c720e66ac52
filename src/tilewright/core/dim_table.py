"""Many dims as one JSON list, in which what several of them share stands once.

Input -> Output: dims <-> entries, each of which refers only to those before it by their numbers:
    "batch"                  a name
    ["floordiv", 3, 5]       floordiv, mod, max or min of two dims
    [[2, 0, 4], [-1]]        a dim: the sum of products of a factor and names or functions
Guarantees: a dim comes back as it was, without arithmetic; whatever the entries, reading takes
little time and memory, and ends with dims or a ``ValueError``.
Not here: dims as text, for people (core.shape, core.parse_dim).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tilewright.core.errors import InternalError, InvalidModel
from tilewright.core.shape import FUNCTIONS, MAX_TEXT, Atom, Dim, Monomial

_MAX_CHARACTERS = 1 << 26  # of the texts of all entries; an entry can repeat long ones
T = TypeVar("T", Dim, Atom)


class DimTable:
    """Dims while their entries are written.

    Attributes:
        entries: a JSON value for ``read_dims``.
    """

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._dims: dict[str, int] = {}
        self._atoms: dict[str, int] = {}

    def number(self, dim: Dim) -> int:
        """The number of a dim, which is added where it is new."""
        known = self._dims.get(dim.text)
        if known is None:
            terms = [[factor, *map(self._atom, monomial)] for monomial, factor in dim.terms]
            known = self._dims[dim.text] = self._add(terms)
        return known

    def _atom(self, atom: Atom) -> int:
        known = self._atoms.get(atom.text)
        if known is None:
            known = self._atoms[atom.text] = self._add(self._entry(atom))
        return known

    def _entry(self, atom: Atom) -> Any:
        if not atom.op:
            return atom.name
        if atom.left is None or atom.right is None:
            raise InternalError("a function atom lacks an operand")
        return [atom.op, self.number(atom.left), self.number(atom.right)]

    def _add(self, entry: Any) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1


def read_dims(entries: Any) -> Sequence[Dim | Atom]:
    """What each entry is: a dim, or an atom of later ones.

    Raises:
        ValueError: they are not what ``DimTable`` writes, or too large.
    """
    if not isinstance(entries, list):
        raise ValueError("sizes are no list")
    found: list[Dim | Atom] = []
    left = _MAX_CHARACTERS
    try:
        for entry in entries:
            one = _read(entry, found)
            left -= len(one.text)
            if left < 0:
                raise ValueError(f"sizes of more than {_MAX_CHARACTERS} characters")
            found.append(one)
    except (TypeError, IndexError) as error:
        raise ValueError(f"unreadable size: {error}") from error
    except InvalidModel as error:
        raise ValueError(error.message) from error
    return found


def dim_of(number: Any, found: Sequence[Dim | Atom]) -> Dim:
    """The dim of a number, among what ``read_dims`` gives.

    Raises:
        ValueError: it is the number of no dim.
    """
    return _earlier(Dim, number, found)


def _read(entry: Any, found: Sequence[Dim | Atom]) -> Dim | Atom:
    if isinstance(entry, str):
        return Atom("", entry)
    if not isinstance(entry, list):
        raise ValueError(f"a size is {str(entry)[:40]!r}")
    if entry and isinstance(entry[0], str):
        op, left, right = entry
        if op not in FUNCTIONS:
            raise ValueError(f"no function {op[:40]!r} of sizes")
        return Atom(op, "", _earlier(Dim, left, found), _earlier(Dim, right, found))
    return Dim(tuple(_terms(entry, found)))


def _terms(entry: list[Any], found: Sequence[Dim | Atom]) -> Iterator[tuple[Monomial, int]]:
    """The terms of a dim; those of a text that no dim may have are not gone through."""
    left = MAX_TEXT
    for factor, *numbers in entry:
        if type(factor) is not int:
            raise ValueError(f"a factor is {str(factor)[:40]!r}")
        atoms = tuple([_earlier(Atom, number, found) for number in numbers])
        left -= sum([len(atom.text) for atom in atoms])
        if left < 0:
            raise ValueError(f"a size of more than {MAX_TEXT} characters")
        yield atoms, factor


def _earlier(kind: type[T], number: Any, found: Sequence[Dim | Atom]) -> T:
    if type(number) is not int or not 0 <= number < len(found):
        raise ValueError(f"no size before it is {str(number)[:40]!r}")
    one = found[number]
    if type(one) is not kind:
        raise ValueError(f"{one.text[:40]!r} is in the wrong place")
    return one
