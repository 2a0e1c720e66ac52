"""Names of dims that are only known at run time, and the scopes in which they have a value.

Input -> Output: (node, parameter) -> a symbol whose name is unique, readable and always the same.
Guarantees: asking twice for the same parameter of the same node gives the same symbol; a symbol
made while a sub-graph is inferred has no value outside of it (``visible`` says so).
Not here: who computes the value (``Binding``s, or the executor for late symbols).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.core.shape import Dim
from tilewright.graph.info import Binding, DimsArg, LiteralArg, TensorArg
from tilewright.graph.shapes.algebra import Facts

Argument = TensorArg | DimsArg | LiteralArg


def _key(function: str, args: tuple[Argument, ...]) -> str:
    # Literals may be lists, which cannot be hashed; their text says all of them.
    return f"{function}{args!r}"


@dataclass(slots=True)
class Symbols:
    """The symbols of one inference.

    Attributes:
        facts: what is proven of dims.
        late: symbols that no binding sets: the executor reads them off the arrays it got.
        scopes: ids of the graphs around the node at hand, outermost first.
    """

    facts: Facts = field(default_factory=Facts)
    late: set[str] = field(default_factory=set)
    scopes: list[int] = field(default_factory=lambda: [0])
    _owners: dict[str, str] = field(default_factory=dict)
    _scope_of: dict[str, int] = field(default_factory=dict)
    _bound: list[dict[str, tuple[Dim, ...]]] = field(default_factory=lambda: [{}])
    _common: list[dict[tuple[Dim, Dim], Dim]] = field(default_factory=lambda: [{}])
    _operands: dict[str, frozenset[Dim]] = field(default_factory=dict)
    _marks: list[int] = field(default_factory=list)
    _next_scope: int = 1

    def reserve(self, names: frozenset[str]) -> None:
        """Keeps names of the model's own dims from being given to anything else."""
        for name in names:
            self._owners.setdefault(name, "")

    def fresh(self, name: str) -> Dim:
        """A symbol for the parameter called ``name`` (``node.starts0``)."""
        wanted = name.replace("`", "'")
        found = wanted
        number = 1
        while self._owners.get(found, name) != name:
            number += 1
            found = f"{wanted}_{number}"
        self._owners[found] = name
        self._scope_of[found] = self.scopes[-1]
        return Dim.symbol(found)

    def late_dim(self, value: str, axis: int) -> Dim:
        """One size of a tensor that is known only once the tensor exists."""
        dim = self.fresh(f"{value}.d{axis}")
        self.late.update(dim.symbols)
        return dim

    def late_shape(self, value: str, rank: int) -> tuple[Dim, ...]:
        """All sizes of such a tensor."""
        return tuple(self.late_dim(value, axis) for axis in range(rank))

    # --- scopes ---------------------------------------------------------------------------------

    def enter(self, given: Iterable[Dim] = ()) -> None:
        """Starts a sub-graph; dims of its inputs that have no value outside belong to it."""
        own = [name for dim in given for name in dim.symbols if not self.visible(dim)]
        self.scopes.append(self._next_scope)
        self._common.append({})
        self._bound.append({})
        self._marks.append(self.facts.mark())
        for name in own:
            if self._scope_of.get(name, 0) not in self.scopes:
                self._scope_of[name] = self._next_scope
        self._next_scope += 1

    def inner_dim(self, value: str, axis: int) -> Dim:
        """A late dim of a sub-graph's input: it has no value outside of the sub-graph."""
        self.enter()
        dim = self.late_dim(value, axis)
        self.leave()
        return dim

    def leave(self) -> None:
        """Ends the sub-graph: its symbols lose their values, its sizes prove nothing any more."""
        self.scopes.pop()
        self._common.pop()
        self._bound.pop()
        self.facts.forget(self._marks.pop())

    def visible(self, dim: Dim) -> bool:
        """Whether every symbol in the dim has a value here."""
        return all(self._scope_of.get(name, 0) in self.scopes for name in dim.symbols)

    # --- bindings -------------------------------------------------------------------------------

    def bound(self, function: str, args: tuple[Argument, ...]) -> tuple[Dim, ...] | None:
        """The symbols that such a binding has set, in this scope or around it; else None."""
        for scope in self._bound:
            found = scope.get(_key(function, args))
            if found is not None:
                return found
        return None

    def note_bindings(self, bindings: Iterable[Binding]) -> None:
        """Remembers the bindings of a node that is kept."""
        for binding in bindings:
            found = tuple(Dim.symbol(name) for name in binding.symbols)
            self._bound[-1][_key(binding.function, binding.args)] = found

    # --- broadcast results ----------------------------------------------------------------------

    def common(self, left: Dim, right: Dim) -> Dim | None:
        """The known common size of two dims that were broadcast before, else None."""
        if right in self._operands.get(left.as_symbol() or "", ()):
            return left
        if left in self._operands.get(right.as_symbol() or "", ()):
            return right
        for scope in self._common:
            found = scope.get((left, right)) or scope.get((right, left))
            if found is not None:
                return found
        return None

    def note_common(self, left: Dim, right: Dim, result: Dim) -> None:
        """Remembers the symbol that stands for the common size of two dims."""
        self._common[-1][left, right] = result
        name = result.as_symbol()
        if name is not None:
            parts = {left, right}
            for part in (left, right):
                parts |= self._operands.get(part.as_symbol() or "", frozenset())
            self._operands[name] = frozenset(parts)
