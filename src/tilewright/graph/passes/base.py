"""What a graph pass is, and the tools that it edits a model with.

Input -> Output: ``Pass.run(context)`` edits ``context.model`` in place and logs every choice.
Guarantees: new values take over the names of what they replace, so that a name denotes the same
value for as long as it exists and what was inferred of it stays true; graph inputs and outputs
keep their names; new nodes are in the newest form; new constants lie in the outermost graph.
Not here: the order of passes and their verification (standard), patterns (match).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilewright.core.dtypes import DType
from tilewright.core.errors import UnsupportedOp
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.graph.build_view import tensor_array, view
from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.element_types import element_type_of
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes import infer
from tilewright.graph.walk import Names, all_graphs, node_label, subgraphs

Array = npt.NDArray[Any]
RANDOM = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial".split()
)
_OWN_VERSION = 1  # of operators that are no ai.onnx ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One step over the whole graph; its module's docstring states before and after."""

    name: str
    run: Callable[[PassContext], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a rewrite that looked possible was not done, and the nodes or values in its way."""

    reason: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.reason} ({', '.join(self.nodes)})" if self.nodes else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What shape inference found: every value and every node by name, those of sub-graphs too."""

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    nodes: Mapping[str, NodeInfo] = field(default_factory=dict)


# What an attempt at a node gives: a text of what was done, a refusal, or None: not its pattern.
Outcome = str | Refused | None
Attempt = Callable[["PassContext", ir.Node], Outcome]


@dataclass(slots=True, kw_only=True)
class PassContext:
    """The model under edit.

    Attributes:
        model: in the newest form.
        log: takes each rewrite done and each one refused.
        assume_finite: NaN and infinities do not occur, and no query of an attention is forbidden
            every key; off, every rewrite keeps IEEE behaviour.
        stage: name of the running pass, for the log.
        changes: number of edits so far.
    """

    model: ir.Model
    log: DecisionLog = field(default_factory=DecisionLog)
    assume_finite: bool = False
    stage: str = ""
    changes: int = 0
    _names: Names | None = None
    _known: Known | None = None
    _inferred_at: int = -1
    _logged: set[tuple[str, str, str]] = field(default_factory=set)

    # --- what is known ----------------------------------------------------------------------------

    def info(self, *, fresh: bool = False) -> Known:
        """Symbolic shapes and contents.

        Args:
            fresh: infer again if the model changed. Otherwise values made since are unknown, and
                all that is known of the others still holds, because names keep their meaning.

        Raises:
            InvalidModel, ShapeMismatch: the model contradicts itself.
        """
        if self._known is None or (fresh and self._inferred_at != self.changes):
            try:
                found = infer(view(self.model))
            except UnsupportedOp as error:
                self.refuse("shapes", Refused(reason=f"no shapes: {error.message}"))
                self._known = Known()
            else:
                self._known = Known(tensors=found.tensors, nodes=found.nodes)
            self._inferred_at = self.changes
        return self._known

    def tensor(self, value: ir.Value | None) -> TensorInfo | None:
        """What was inferred of a value."""
        return None if value is None else self.info().tensors.get(value.name or "")

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The dims of a tensor, None where its rank is unknown."""
        if value is not None and value.const_value is not None and value.is_initializer():
            return tuple(Dim.of(int(size)) for size in tensor_array(value.const_value).shape)
        info = self.tensor(value)
        return info.shape if info is not None and info.container == "tensor" else None

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank of a tensor, None where it is unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def dtype(self, value: ir.Value | None) -> DType | None:
        """The element type of a tensor, None where only execution tells."""
        info = self.tensor(value)
        if info is not None:
            return info.dtype
        return None if value is None else element_type_of(value)

    def constant(self, value: ir.Value | None) -> Array | None:
        """The elements of an initialiser (read only), None for any other value."""
        if value is None or value.const_value is None or not value.is_initializer():
            return None
        return tensor_array(value.const_value)

    def scalar(self, value: ir.Value | None) -> float | None:
        """The number in a constant of one element."""
        array = self.constant(value)
        if array is None or array.size != 1 or array.dtype.kind in "OSUc":
            return None
        return float(array.reshape(-1)[0])

    def integers(self, value: ir.Value | None) -> list[int] | None:
        """The elements of a constant integer list."""
        array = self.constant(value)
        if array is None or array.dtype.kind not in "iu":
            return None
        return [int(part) for part in array.reshape(-1)]

    # --- walking ----------------------------------------------------------------------------------

    def graphs(self) -> list[ir.Graph]:
        """The outermost graph and all inside it, outer ones first."""
        return list(all_graphs(self.model.graph))

    def each(self, op_types: Collection[str], attempt: Attempt, domain: str = "") -> None:
        """Attempts a rewrite at every node of some types, in order; logs the outcomes."""
        for graph in self.graphs():
            for node in list(graph):
                if node.graph is not graph or node.op_type not in op_types:
                    continue
                if node.domain != domain:
                    continue
                label = node_label(node)
                outcome = attempt(self, node)
                if isinstance(outcome, Refused):
                    self.refuse(label, outcome)
                elif outcome is not None:
                    self.did(label, outcome)

    # --- the log ----------------------------------------------------------------------------------

    def did(self, subject: str, chosen: str) -> None:
        """Records a rewrite."""
        self.changes += 1
        self.log.add(self.stage, subject, chosen)

    def refuse(self, subject: str, refused: Refused) -> None:
        """Records a rewrite that was not done; the same refusal is recorded once."""
        key = (self.stage, subject, refused.reason)
        if key not in self._logged:
            self._logged.add(key)
            self.log.add(self.stage, subject, "kept", ((self.stage, str(refused)),))

    # --- editing ----------------------------------------------------------------------------------

    @property
    def names(self) -> Names:
        """The names in use."""
        if self._names is None:
            self._names = Names.of(self.model)
        return self._names

    def new_constant(self, array: npt.ArrayLike, hint: str) -> ir.Value:
        """A new initialiser of the outermost graph."""
        elements = np.asarray(array)
        name = self.names.claim(hint)
        tensor: ir.TensorProtocol
        if elements.dtype.kind == "O":
            texts = [str(text).encode("utf-8") for text in elements.reshape(-1)]
            tensor = ir.StringTensor(texts, shape=ir.Shape(elements.shape), name=name)
        else:
            tensor = ir.Tensor(elements, name=name)
        value = ir.Value(
            name=name,
            const_value=tensor,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(elements.shape),
        )
        self.model.graph.register_initializer(value)
        return value

    def new_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        before: ir.Node,
        num_outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        """A new node in front of another; its outputs get names of their own.

        Args:
            domain: of the operator: ai.onnx, or our own, which the model then imports.
        """
        if domain:
            self.model.opset_imports.setdefault(domain, _OWN_VERSION)
        graph = before.graph
        name = self.names.claim(f"{before.name}/{op_type}")
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [
                part if isinstance(part, ir.Attr) else ir.convenience.convert_attribute(key, part)
                for key, part in (attributes or {}).items()
            ],
            num_outputs=num_outputs,
            version=_OWN_VERSION if domain else NEWEST_OPSET,
            name=name,
        )
        for index, value in enumerate(node.outputs):
            value.name = self.names.claim(f"{name}.out{index}" if index else f"{name}.out")
        if graph is not None:
            graph.insert_before(before, node)
        self.changes += 1
        return node

    def adopt(self, old: ir.Value, new: ir.Value) -> None:
        """Lets a value made by this rewrite stand for an old one, under the old one's name."""
        name = old.name
        if not old.is_initializer():
            old.name = None
        new.name = name
        if not new.is_initializer():
            new.type, new.shape = old.type or new.type, old.shape or new.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.changes += 1

    def redirect(self, old: ir.Value, new: ir.Value) -> bool:
        """Lets the readers of a value read another that exists already.

        An old value that is a graph output keeps its name: the other value takes it over where it
        may (it is computed in the same graph and is no output itself); False says that it may not,
        and nothing was changed.
        """
        if old.is_graph_output():
            maker, own = new.producer(), old.producer()
            if new.is_graph_output() or maker is None or own is None:
                return False
            if maker.graph is not own.graph:
                return False
            self.adopt(old, new)
            return True
        old.replace_all_uses_with(new)
        self.changes += 1
        return True

    def bypass(self, node: ir.Node, value: ir.Value, inside: Iterable[ir.Node] = ()) -> None:
        """Lets the readers of a node's first output read ``value`` and removes the node.

        Where that output is a graph output that cannot take over the value, an Identity stays.
        """
        if self.redirect(node.outputs[0], value):
            self.remove(dict.fromkeys([node, *inside]))
        else:
            self.replace(node, inside, "Identity", [value])

    def remove(self, nodes: Iterable[ir.Node]) -> None:
        """Takes nodes out of their graphs, and then what fed only them.

        Their results must have no readers left.
        """
        waiting = list(nodes)
        fed_by: list[ir.Node] = []
        for node in waiting:
            fed_by += [maker for value in node.inputs if value and (maker := value.producer())]
            _detach(node)
            if node.graph is not None:
                node.graph.remove(node)
            self.changes += 1
        unread = {node: None for node in fed_by if node.graph is not None and not _is_read(node)}
        if unread:
            self.remove(unread)

    def replace(
        self,
        root: ir.Node,
        inside: Iterable[ir.Node],
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
    ) -> ir.Node:
        """Puts one node in the place of ``root`` (one output) and of what only feeds it."""
        node = self.new_node(op_type, inputs, attributes, before=root, domain=domain)
        self.adopt(root.outputs[0], node.outputs[0])
        self.remove(dict.fromkeys([root, *inside]))
        return node


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """An attribute's plain value, or the default when it is absent."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """An input, None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def enclosed(inside: Collection[ir.Node], root: ir.Node) -> Refused | None:
    """Checks that nothing but the matched nodes needs the values between them.

    Readers in sub-graphs count, and so do graph outputs.
    """
    members = {root, *inside}
    for node in inside:
        if node is root:
            continue
        for value in node.outputs:
            if value.is_graph_output():
                return Refused(
                    reason="a value in between is a graph output", nodes=(value.name or "",)
                )
            for reader, _ in value.uses():
                if reader not in members:
                    return Refused(
                        reason="a value in between has another reader",
                        nodes=(value.name or "", reader.name or ""),
                    )
    return None


def _is_read(node: ir.Node) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs)


def _detach(node: ir.Node) -> None:
    """Takes a node off the values that it reads, and empties its sub-graphs.

    A pass may hold those graphs; their nodes say by ``graph`` that they are gone.
    """
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    for graph in subgraphs(node):
        inside = list(graph)
        for inner in inside:
            _detach(inner)
        graph.outputs.clear()
        graph.remove(inside)
