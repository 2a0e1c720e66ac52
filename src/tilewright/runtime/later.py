"""Records and texts of an engine that are decoded when someone looks at them.

Input -> Output: how to make the items -> a sequence or a mapping that makes them when it is asked.
Guarantees: what is made is the same each time; errors of making come then.
Not here: how they are made (engine_file).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class LaterSequence(Sequence[T]):
    """Items that one function makes, once."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._make = make
        self._items: Sequence[T] | None = None

    def _made(self) -> Sequence[T]:
        items = self._items
        if items is None:
            items = self._items = self._make()
        return items

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._made()[index]

    def __len__(self) -> int:
        return len(self._made())


class LaterMapping(Mapping[str, T]):
    """Values that a function makes of their names, each time they are asked for."""

    def __init__(self, names: Collection[str], make: Callable[[str], T]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
