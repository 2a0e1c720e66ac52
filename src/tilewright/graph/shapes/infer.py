"""Walk a graph in order and infer every tensor, sub-graphs included.

Input -> Output: ``GraphView`` -> ``Inference``: a ``TensorInfo`` for each value, a ``NodeInfo`` for
each node.
Guarantees: a dim that no declared input size and no ``Binding`` gives is a late symbol, listed in
``Inference.late``; a value that a known condition makes unreachable has no entry.
Not here: what an operator does with shapes (the rule files) or contents (content).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.core.dtypes import STRING, from_numpy
from tilewright.core.errors import InvalidModel, ShapeMismatch, UnsupportedOp
from tilewright.core.shape import Dim, shape_text
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes import constants, content
from tilewright.graph.shapes.declared import check_type
from tilewright.graph.shapes.element_types import type_error
from tilewright.graph.shapes.families import RULES
from tilewright.graph.shapes.registry import Array, RuleContext, UnknownRank
from tilewright.graph.shapes.symbols import Symbols
from tilewright.graph.view import GraphView, NodeView, ValueView
from tilewright.runtime.bindings import MAX_ELEMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What is known of a graph.

    Attributes:
        tensors: every value by name, those of sub-graphs too.
        nodes: every node by name, those of sub-graphs too.
        late: symbols that no binding sets; the executor reads them off the arrays that it got
            (graph inputs' undeclared dims are not among them).
        deferred: nodes of branches that cannot run with these sizes, with the reason.  Their
            outputs have no rank, so they are interpreted, and fail if the branch is ever taken.
    """

    tensors: Mapping[str, TensorInfo]
    nodes: Mapping[str, NodeInfo]
    late: frozenset[str]
    deferred: Mapping[str, str]


def infer(
    view: GraphView,
    known_inputs: Mapping[str, TensorInfo] | None = None,
    *,
    minimum: Mapping[str, int] | None = None,
) -> Inference:
    """Infers types, shapes and contents.

    Args:
        view: the graph in newest-opset form.
        known_inputs: what is known of graph inputs beyond their declarations.
        minimum: the smallest size of declared symbols (0 where absent); a promise of the caller.

    Raises:
        InvalidModel: the graph contradicts an operator's definition.
        ShapeMismatch: sizes that can never fit.
        UnsupportedOp: operators without a rule, all of them at once.
    """
    _require_rules(view)
    engine = _Engine(Symbols())
    engine.symbols.facts.minimum = dict(minimum or {})
    known = dict(known_inputs or {})
    view = replace(view, inputs=_open_inputs(view))
    engine.symbols.reserve(_declared_symbols(view, known))
    engine.run(view, [_input_info(engine, value, known) for value in view.inputs])
    return Inference(
        tensors=engine.tensors,
        nodes=engine.nodes,
        late=frozenset(engine.symbols.late),
        deferred=engine.deferred,
    )


def _require_rules(view: GraphView) -> None:
    missing = sorted(_missing_rules(view))
    if missing:
        raise UnsupportedOp(
            f"no shape rule for {', '.join(missing)}",
            operators=tuple(missing),
            remedy="export with standard operators, or give them a body (a model-local function)",
        )


def _missing_rules(view: GraphView) -> set[str]:
    missing: set[str] = set()
    for node in view.nodes:
        if (node.domain, node.op_type) not in RULES:
            missing.add(f"{node.domain or 'ai.onnx'}.{node.op_type}")
        for value in node.attributes.values():
            if isinstance(value, GraphView):
                missing |= _missing_rules(value)
    return missing


def _open_inputs(view: GraphView) -> tuple[ValueView, ...]:
    """Inputs without those that only give an initializer's type (models of IR version 3)."""
    return tuple(value for value in view.inputs if value.name not in view.initializers)


def _declared_symbols(view: GraphView, known: Mapping[str, TensorInfo]) -> frozenset[str]:
    names: set[str] = set()
    for value in view.inputs:
        shape = known[value.name].shape if value.name in known else value.shape
        for dim in shape or ():
            names |= dim.symbols
    return frozenset(names)


def _input_info(engine: _Engine, value: ValueView, known: Mapping[str, TensorInfo]) -> TensorInfo:
    if value.name in known:
        return known[value.name]
    if value.dtype is None:
        raise InvalidModel(
            f"input {value.name!r} has no declared type", remedy="declare its element type"
        )
    if value.shape is None:
        return TensorInfo(dtype=value.dtype, shape=None, container=value.container)
    shape = tuple(
        engine.symbols.fresh(f"{value.name}.d{axis}") if _undeclared(dim) else dim
        for axis, dim in enumerate(value.shape)
    )
    if value.container != "tensor" and not all(dim.is_const for dim in shape):
        # Elements of a sequence may differ in their undeclared sizes.
        return TensorInfo(dtype=value.dtype, shape=None, container=value.container)
    return TensorInfo(dtype=value.dtype, shape=shape, container=value.container)


def _undeclared(dim: Dim | None) -> bool:
    return dim is None or (dim.is_const and dim.const < 0) or dim.as_symbol() == ""


class _Engine:
    """The state of one inference; value names are unique, so one map serves all sub-graphs."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self.tensors: dict[str, TensorInfo] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.numbers: dict[str, Array] = {}
        self.containers: dict[str, str] = {}
        self.deferred: dict[str, str] = {}
        self.branch_errors: list[list[ShapeMismatch]] = []

    def run(self, view: GraphView, inputs: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Infers a graph whose inputs are known; returns the infos of its outputs."""
        for value, info in zip(view.inputs, inputs, strict=True):
            check_type(value, info)
            self._set(value.name, info)
        for name, array in view.initializers.items():
            shape = tuple(Dim.of(size) for size in array.shape)
            self._set(name, TensorInfo(dtype=from_numpy(array.dtype), shape=shape, content=array))
        self.containers.update((value.name, value.container) for value in view.outputs)
        for node in view.nodes:
            self._visit(node)
        outputs = tuple(self._get(value.name, None) for value in view.outputs)
        for value, info in zip(view.outputs, outputs, strict=True):
            check_type(value, info)
        return outputs

    def recurse(self, view: GraphView, inputs: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Infers a sub-graph in a scope of its own; symbols made inside have no value outside."""
        if not self.branch_errors:
            return self._inner(view, inputs)
        # A body inside of such a branch may run zero times: its errors are its own.
        return self._with_errors(view, inputs)[0]

    def attempt(self, view: GraphView) -> tuple[tuple[TensorInfo, ...], ShapeMismatch | None]:
        """Infers a branch that may never run: also gives the error that it would end in."""
        outputs, errors = self._with_errors(view, ())
        return outputs, errors[0] if errors else None

    def _with_errors(
        self, view: GraphView, inputs: Sequence[TensorInfo]
    ) -> tuple[tuple[TensorInfo, ...], list[ShapeMismatch]]:
        errors: list[ShapeMismatch] = []
        self.branch_errors.append(errors)
        try:
            return self._inner(view, inputs), errors
        finally:
            self.branch_errors.pop()

    def _inner(self, view: GraphView, inputs: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        self.symbols.enter(dim for info in inputs for dim in info.shape or ())
        try:
            return self.run(view, inputs)
        finally:
            self.symbols.leave()

    def _get(self, name: str, node: NodeView | None) -> TensorInfo:
        found = self.tensors.get(name)
        if found is None:
            raise InvalidModel(
                f"value {name!r} is used before it exists",
                node=node.name if node else None,
                remedy="order the nodes so that each value is made before it is read",
            )
        return found

    def _set(self, name: str, info: TensorInfo) -> None:
        self.tensors[name] = info
        self.numbers.pop(name, None)
        if info.shape is not None:
            self.symbols.facts.learn(info.shape)

    def _visit(self, node: NodeView) -> None:
        inputs = tuple(self._get(name, node) if name else None for name in node.inputs)
        reason = type_error(node, inputs)
        if reason is not None:
            raise InvalidModel(
                f"{node.op_type}: {reason}",
                node=node.name,
                remedy="cast the inputs to types that the operator takes",
            )
        entry = RULES[node.domain, node.op_type]
        container = self.containers.get(next(filter(None, node.outputs), ""), "tensor")
        context = RuleContext(
            node,
            inputs,
            self.symbols,
            self.recurse,
            self.attempt,
            self._give_up,
            entry.dtypes,
            container,
        )
        try:
            info = entry.rule(context)
            for name, output in zip(node.outputs, info.outputs, strict=True):
                _require_possible(node, name, output)
        except UnknownRank:
            context.bindings.clear()
            info = context.result(None)
        except ShapeMismatch as error:
            if any(isinstance(value, GraphView) for value in node.attributes.values()):
                raise
            info = self._defer(context, error)
        info = self._with_contents(node, inputs, info)
        if all(output is None or _is_constant(output) for output in info.outputs):
            info = replace(info, bindings=())
        self.symbols.note_bindings(info.bindings)
        self.nodes[node.name] = info
        for name, output in zip(node.outputs, info.outputs, strict=True):
            if name is not None and output is not None:
                self._set(name, output)
        self._keep_fractions(node)

    def _defer(self, context: RuleContext, error: ShapeMismatch) -> NodeInfo:
        """Lets a branch be wrong that may never run; anything else is wrong at once."""
        self._give_up(error)
        self.deferred[context.node.name] = error.message
        context.bindings.clear()
        return context.result(None)

    def _give_up(self, error: ShapeMismatch) -> None:
        if not self.branch_errors:
            raise error
        self.branch_errors[-1].append(error)

    # --- contents -------------------------------------------------------------------------------

    def _with_contents(
        self, node: NodeView, inputs: tuple[TensorInfo | None, ...], info: NodeInfo
    ) -> NodeInfo:
        self._fractions: dict[str, Array] = {}
        if any(output is not None and output.content is not None for output in info.outputs):
            return info
        folded = constants.fold(node, inputs, info)
        if folded is not None:
            return replace(info, outputs=_constant_outputs(info, folded))
        if not content.has_rule(node):
            return info
        results = content.propagate(self._content_call(node, inputs, info))
        if results is None:
            return info
        outputs = list(info.outputs)
        for position, numbers in enumerate(results[: len(outputs)]):
            output, name = outputs[position], node.outputs[position]
            if output is None or name is None:
                continue
            found = content.from_numbers(numbers, output.dtype)
            if found is None:
                self._fractions[name] = numbers
            else:
                shape = tuple(Dim.of(size) for size in numbers.shape)
                outputs[position] = replace(output, shape=shape, content=found)
        return replace(info, outputs=tuple(outputs))

    def _keep_fractions(self, node: NodeView) -> None:
        for name in node.outputs:
            if name in self._fractions:
                self.numbers[name] = self._fractions[name]

    def _content_call(
        self, node: NodeView, inputs: tuple[TensorInfo | None, ...], info: NodeInfo
    ) -> content.ContentCall:
        operands: list[Array | None] = []
        for name, entry in zip(node.inputs, inputs, strict=True):
            if name in self.numbers:
                operands.append(self.numbers[name])
            elif entry is None or entry.content is None:
                operands.append(None)
            else:
                operands.append(content.to_numbers(entry.content, entry.dtype))
        first = next((output for output in info.outputs if output is not None), None)
        shape = first.shape if first is not None else None
        static = shape is not None and all(dim.is_const for dim in shape)
        return content.ContentCall(
            node=node,
            operands=tuple(operands),
            kinds=tuple(entry.dtype if entry is not None else None for entry in inputs),
            shape=tuple(dim.const for dim in shape) if shape is not None and static else None,
            facts=self.symbols.facts,
        )


def _is_constant(info: TensorInfo) -> bool:
    """Whether the elements are numbers (or texts), so that nothing has to run."""
    known = info.content
    return known is not None and (known.dtype != object or info.dtype is STRING)


def _require_possible(node: NodeView, name: str | None, info: TensorInfo | None) -> None:
    """Refuses sizes that no tensor can have."""
    if info is None:
        return
    shape = info.shape or ()
    sizes = [dim.const for dim in shape if dim.is_const]
    factors = [abs(factor) for dim in shape for _, factor in dim.terms]
    if (
        any(size < 0 for size in sizes)
        or math.prod(max(size, 1) for size in sizes) > MAX_ELEMENTS
        or max(factors, default=0) > MAX_ELEMENTS
    ):
        raise ShapeMismatch(
            f"{node.op_type}: {name!r} would have the shape {shape_text(shape)}",
            node=node.name,
            remedy="mend the node, or the sizes that it works on: a tensor has at most 2**40 "
            "elements, and no negative size",
        )


def _constant_outputs(info: NodeInfo, arrays: Sequence[Array]) -> tuple[TensorInfo | None, ...]:
    outputs: list[TensorInfo | None] = []
    for output, array in zip(info.outputs, arrays, strict=True):
        if output is None:
            outputs.append(None)
            continue
        shape = tuple(Dim.of(size) for size in array.shape)
        outputs.append(replace(output, shape=shape, content=array))
    return tuple(outputs)
