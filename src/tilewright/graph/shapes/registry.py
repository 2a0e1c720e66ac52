"""Which rule infers which operator, and what a rule is given.

Input -> Output: ``@shape_rule("Softmax")`` on a function of a ``RuleContext`` -> an entry of
``RULES``.
Guarantees: a mistake in the model is ``InvalidModel`` or ``ShapeMismatch`` with the node's name; an
input of unknown rank that a rule needs gives outputs of unknown rank.
Not here: the order of nodes and sub-graphs (infer), contents computed from contents (content).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import BY_CODE, DType
from tilewright.core.errors import InternalError, InvalidModel, ShapeMismatch
from tilewright.core.shape import Dim, shape_text
from tilewright.graph.info import Binding, DimsArg, LiteralArg, NodeInfo, TensorArg, TensorInfo
from tilewright.graph.shapes.algebra import Facts, never_one
from tilewright.graph.shapes.broadcast import matches
from tilewright.graph.shapes.symbols import Symbols
from tilewright.graph.view import GraphView, NodeView

Array = npt.NDArray[Any]
Shape = tuple[Dim, ...]
Argument = TensorArg | DimsArg | LiteralArg
Rule = Callable[["RuleContext"], NodeInfo]
DTypeRule = Callable[["RuleContext"], DType]
ONE = Dim.of(1)
MAX_CONTENT = 1024  # elements of a small tensor whose contents are followed


class UnknownRank(Exception):
    """A rule asked for the shape of a tensor whose rank is unknown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule with the element types of its outputs (the last one repeats)."""

    rule: Rule
    dtypes: tuple[DTypeRule, ...]


RULES: dict[tuple[str, str], Entry] = {}


def shape_rule(
    *op_types: str, domain: str = "", dtypes: Sequence[DTypeRule | DType] | None = None
) -> Callable[[Rule], Rule]:
    """Registers a rule for operators of a domain (newest opset semantics).

    Args:
        op_types: the operators.
        domain: ``""`` for ai.onnx.
        dtypes: the outputs' element types, the last one repeated; that of input 0 by default.
    """
    kinds = tuple(_constant(kind) for kind in dtypes) if dtypes else (like(0),)

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            if (domain, op_type) in RULES:
                raise InternalError(f"two shape rules for {domain or 'ai.onnx'}.{op_type}")
            RULES[domain, op_type] = Entry(rule, kinds)
        return rule

    return register


def _constant(kind: DTypeRule | DType) -> DTypeRule:
    return (lambda ctx: kind) if isinstance(kind, DType) else kind  # noqa: ARG005


def like(position: int) -> DTypeRule:
    """The element type of an input."""
    return lambda ctx: ctx.dtype(position)


def attribute_dtype(name: str, default: DTypeRule | DType) -> DTypeRule:
    """The element type that an attribute names (as ONNX's code); 0 or absent is the default."""
    fallback = _constant(default)

    def choose(ctx: RuleContext) -> DType:
        code = int(ctx.node.attribute(name, 0) or 0)
        if not code:
            return fallback(ctx)
        if code not in BY_CODE:
            ctx.fail(f"attribute {name}: unknown element type {code}")
        return BY_CODE[code]

    return choose


@dataclass(slots=True)
class RuleContext:
    """One operator call being inferred.

    Attributes:
        node: the call.
        inputs: what is known of each input position, None where absent.
        symbols: names of run-time dims and what is proven of dims.
        recurse: infers a sub-graph: (graph, infos of its inputs) -> infos of its outputs.
        attempt: infers a branch that may never run: also gives the error that it would end in.
        give_up: takes an error that the node would always end in; raises it, unless the node is in
            a branch that may never run.
        dtypes: the outputs' element types.
        element_container: what an optional's output is declared to hold (``tensor`` by default).
        bindings: what has been bound so far.
    """

    node: NodeView
    inputs: tuple[TensorInfo | None, ...]
    symbols: Symbols
    recurse: Callable[[GraphView, Sequence[TensorInfo]], tuple[TensorInfo, ...]]
    attempt: Callable[[GraphView], tuple[tuple[TensorInfo, ...], ShapeMismatch | None]]
    give_up: Callable[[ShapeMismatch], None]
    dtypes: tuple[DTypeRule, ...]
    element_container: str = "tensor"
    bindings: list[Binding] = field(default_factory=list)

    # --- errors ---------------------------------------------------------------------------------

    def fail(self, message: str, remedy: str | None = None) -> NoReturn:
        """Raises InvalidModel with the node's name."""
        raise InvalidModel(
            f"{self.node.op_type}: {message}",
            node=self.node.name,
            remedy=remedy or f"see the definition of {self.node.op_type}, and mend the node",
        )

    def mismatch(self, message: str, remedy: str | None = None) -> NoReturn:
        """Raises ShapeMismatch with the node's name."""
        raise ShapeMismatch(
            f"{self.node.op_type}: {message}",
            node=self.node.name,
            remedy=remedy or "mend the node, or the declared shapes that it works on",
        )

    def require_least(self, name: str, values: Iterable[int], least: int = 1) -> None:
        """Requires an attribute's numbers to be at least so much."""
        given = list(values)
        if any(value < least for value in given):
            shown = given[0] if len(given) == 1 else given
            kind = "positive" if least == 1 else f"at least {least}"
            self.fail(f"{name} = {shown} must be {kind}", f"give {name} of at least {least}")

    # --- inputs ---------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        return self.symbols.facts

    def has(self, position: int) -> bool:
        """Whether an input is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def info(self, position: int) -> TensorInfo:
        """A required input."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            self.fail(f"input {position} is missing")
        return found

    def dtype(self, position: int) -> DType:
        """The element type of a required input."""
        return self.info(position).dtype

    def shape(self, position: int) -> Shape:
        """The shape of a required input.

        Raises:
            UnknownRank: its rank is unknown.
        """
        shape = self.info(position).shape
        if shape is None:
            raise UnknownRank
        return shape

    def shape_of_rank(self, position: int, rank: int) -> Shape:
        """The shape of a required input that must have this rank."""
        shape = self.shape(position)
        if len(shape) != rank:
            self.mismatch(f"input {position} must have rank {rank}, it is {shape_text(shape)}")
        return shape

    def content(self, position: int) -> Array | None:
        """Known elements: numbers, or an object array of ``Dim``; None where unknown."""
        return self.info(position).content if self.has(position) else None

    def dims(self, position: int) -> Shape | None:
        """Known elements of an integer input as flat dims, None where unknown or absent."""
        content = self.content(position)
        if content is None or content.size > MAX_CONTENT:
            return None
        if content.dtype != object and content.dtype.kind not in "iub":
            return None
        return tuple(Dim.of(part) for part in content.reshape(-1).tolist())

    def ints(self, position: int) -> list[int] | None:
        """Known constant elements of an integer input, None where unknown or symbolic."""
        dims = self.dims(position)
        if dims is None or not all(dim.is_const for dim in dims):
            return None
        return [dim.const for dim in dims]

    def length(self, position: int) -> int | None:
        """The number of elements of a list-like input where it is static, None otherwise."""
        shape = self.info(position).shape
        if shape is None or not all(dim.is_const for dim in shape):
            return None
        return int(np.prod([dim.const for dim in shape], dtype=np.int64))

    def argument(self, position: int) -> Argument:
        """An input as a binding's argument: literal, dims or run-time tensor."""
        if not self.has(position):
            return LiteralArg(None)
        content = self.content(position)
        if content is not None and content.size <= MAX_CONTENT:
            dims = self.dims(position)
            if dims is not None and not all(dim.is_const for dim in dims):
                return DimsArg(dims)
            if content.dtype != object:
                flat = content.reshape(-1)
                plain = flat.astype(np.float64) if content.dtype.kind not in "iub" else flat
                return LiteralArg(plain.tolist())
        name = self.node.inputs[position]
        if name is None:
            return LiteralArg(None)
        return TensorArg(name)

    # --- attributes -----------------------------------------------------------------------------

    def axis(self, default: int | None = None, *, rank: int, name: str = "axis") -> int:
        """An axis attribute made non-negative."""
        value = self.node.attribute(name, default)
        if value is None:
            self.fail(f"attribute {name} is required")
        return self.normal_axis(int(value), rank)

    def normal_axis(self, axis: int, rank: int) -> int:
        """An axis made non-negative."""
        if not -rank <= axis < rank:
            self.mismatch(f"axis {axis} is outside of rank {rank}")
        return axis % rank

    def normal_axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes made non-negative; a repeated axis is an error."""
        found = tuple(self.normal_axis(int(axis), rank) for axis in axes)
        if len(set(found)) != len(found):
            self.mismatch(f"an axis is repeated in {list(axes)}")
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute, required when no default is given."""
        value = self.node.attribute(name, default)
        if value is None:
            self.fail(f"attribute {name} is required")
        return int(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An integer list attribute, None where absent."""
        value = self.node.attribute(name)
        return None if value is None else tuple(int(part) for part in np.asarray(value).reshape(-1))

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.node.attribute(name, default)
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)

    # --- run-time symbols -----------------------------------------------------------------------

    def fresh(self, name: str) -> Dim:
        """A symbol named after this node's parameter."""
        return self.symbols.fresh(f"{self.node.name}.{name}")

    def bind(self, function: str, arguments: Sequence[Any], names: Sequence[str]) -> Shape:
        """Binds symbols to a function's results; plain values become literals.

        The same function of the same arguments gives the symbols that it gave before.
        """
        args = tuple(
            part
            if isinstance(part, TensorArg | DimsArg | LiteralArg)
            else DimsArg(tuple(part))
            if isinstance(part, tuple)
            else LiteralArg(part)
            for part in arguments
        )
        known = self.symbols.bound(function, args)
        if known is not None and len(known) == len(names):
            return known
        found = tuple(self.fresh(name) for name in names)
        symbols = tuple(dim.as_symbol() or "" for dim in found)
        binding = Binding(function=function, args=args, symbols=symbols)
        if binding not in self.bindings:
            self.bindings.append(binding)
        return found

    def bind_shape(
        self, function: str, arguments: Sequence[Any], rank: int, name: str = "shape"
    ) -> Shape:
        """Binds ``rank`` symbols that are sizes."""
        shape = self.bind(function, arguments, [f"{name}{axis}" for axis in range(rank)])
        self.facts.learn(shape)
        return shape

    def check(self, function: str, arguments: Sequence[Any]) -> None:
        """Adds a run-time check: a binding that sets nothing and raises where sizes do not fit."""
        self.bind(function, arguments, ())

    def late(self, position: int, rank: int | None) -> Shape | None:
        """Dims of an output that are known only once it exists."""
        return None if rank is None else tuple(self.late_dim(position, k) for k in range(rank))

    def late_dim(self, position: int, axis: int) -> Dim:
        """One size of an output that is known only once it exists."""
        value = self.node.outputs[position] if position < len(self.node.outputs) else None
        return self.symbols.late_dim(value or f"{self.node.name}.{position}", axis)

    # --- relations of dims ----------------------------------------------------------------------

    def equal(self, left: Dim, right: Dim, what: str) -> Dim:
        """Requires two dims to be equal, at run time where that is not proven; the simpler one."""
        if left == right:
            return left
        if (left.is_const and right.is_const) or self.facts.different(left, right):
            self.mismatch(f"{what}: {left} differs from {right}")
        self.check("require_equal", [(left,), (right,), what])
        return right if right.is_const else left

    def broadcast_dim(self, left: Dim, right: Dim, place: str) -> Dim:
        """The common size of two dims."""
        if left == right or right == ONE:
            return left
        if left == ONE:
            return right
        if left.is_const and right.is_const:
            self.mismatch(f"sizes {left} and {right} do not broadcast ({place})")
        if matches(left, right) or (never_one(left) and never_one(right)):
            self.check("require_equal", [(left,), (right,), "broadcast"])
            return min(left, right, key=lambda dim: (not dim.is_const, len(str(dim))))
        for fixed, free in ((left, right), (right, left)):
            if never_one(fixed) or (self.facts.lower_bound(fixed) or 0) > 1:
                self.check("require_broadcast", [(free,), (fixed,)])
                return fixed
        known = self.symbols.common(left, right)
        if known is not None:
            if known not in (left, right):
                return known
            other = right if known == left else left
            self.check("require_broadcast", [(other,), (known,)])
            return known
        (result,) = self.bind_shape("broadcast", [(left,), (right,)], 1, f"broadcast_{place}_")
        self.symbols.note_common(left, right, result)
        return result

    def broadcast(self, *shapes: Shape) -> Shape:
        """The common shape of several shapes."""
        result: Shape = ()
        for number, shape in enumerate(shapes):
            rank = max(len(result), len(shape))
            left = (ONE,) * (rank - len(result)) + result
            right = (ONE,) * (rank - len(shape)) + shape
            result = tuple(
                self.broadcast_dim(a, b, f"{number}_{axis}")
                for axis, (a, b) in enumerate(zip(left, right, strict=True))
            )
        return result

    def broadcast_inputs(self) -> Shape:
        """The common shape of all present inputs."""
        present = [k for k in range(len(self.inputs)) if self.has(k)]
        return self.broadcast(*(self.shape(position) for position in present))

    def same_dtype(self, *positions: int) -> None:
        """Requires present inputs to have one element type."""
        kinds = {self.dtype(position).name for position in positions if self.has(position)}
        if len(kinds) > 1:
            self.fail(f"inputs of one type are needed, they are {', '.join(sorted(kinds))}")

    # --- results --------------------------------------------------------------------------------

    def result(
        self,
        *shapes: Shape | None,
        params: Mapping[str, Sequence[Dim]] | None = None,
        content: Array | None = None,
        container: str = "tensor",
    ) -> NodeInfo:
        """The node's info: a shape for each output (the last one repeats), None = unknown rank."""
        outputs: list[TensorInfo | None] = []
        for position, name in enumerate(self.node.outputs):
            if name is None:
                outputs.append(None)
                continue
            outputs.append(
                TensorInfo(
                    dtype=self.output_dtype(position),
                    shape=shapes[min(position, len(shapes) - 1)],
                    content=content if position == 0 else None,
                    container=container,
                )
            )
        found = {name: tuple(dims) for name, dims in (params or {}).items()}
        return NodeInfo(outputs=tuple(outputs), params=found, bindings=tuple(self.bindings))

    def output_dtype(self, position: int) -> DType:
        """The element type of an output."""
        return self.dtypes[min(position, len(self.dtypes) - 1)](self)
