"""Replace calls of functions by their bodies.

Call(f, x) -> the nodes of f with x for its input, its attributes by reference filled in
Input -> Output: a model with model-local functions -> the same model without any.
Guarantees: nested functions, sub-graphs in bodies and a body's own operator versions are kept;
functions that call themselves and expansions beyond a million nodes are refused.
Not here: unique names after inlining (walk.unique_names).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from tilewright.core.errors import InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.graph.check_nodes import schema
from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.clone import clone_node
from tilewright.graph.element_types import element_type_of
from tilewright.graph.info import TensorInfo
from tilewright.graph.normalize import normalize
from tilewright.graph.walk import (
    all_graphs,
    all_nodes,
    node_label,
    own_values,
    subgraphs,
    unique_names,
)

MAX_NODES = 1_000_000
_MAX_ROUNDS = 8
_GIVEN, _OUTSIDE = "given|", "outside|"  # marks in names while a body is made
Wanted = Callable[[str, str], bool]
Identifier = tuple[str, str, str]


def inline_functions(model: ir.Model, *, file: str | None = None) -> None:
    """Inlines every call of a model-local function and drops the functions, in place.

    Raises:
        InvalidModel: functions call each other in a circle, get the wrong number of arguments, or
            expand beyond a million nodes.
    """
    if not model.functions:
        return
    _check_size(model, file)
    _inline_in(model.graph, model.functions, file)
    model.functions.clear()


def _check_size(model: ir.Model, file: str | None) -> None:
    """Counts the nodes after expansion without expanding; finds circles on the way."""
    sizes: dict[Identifier, int] = {}
    path: list[Identifier] = []

    def size(identifier: Identifier) -> int:
        if identifier in path or len(path) > 200:
            circle = [
                name for _, name, _ in path[path.index(identifier) if identifier in path else 0 :]
            ]
            raise InvalidModel(
                "functions call each other in a circle or too deeply: "
                + " -> ".join([*circle[:12], identifier[1]]),
                file=file,
                node=identifier[1],
                remedy="ONNX functions must not be recursive; use Loop",
            )
        if identifier not in sizes:
            path.append(identifier)
            sizes[identifier] = total(all_nodes(model.functions[identifier].graph))
            path.pop()
        return sizes[identifier]

    def total(nodes: Iterable[ir.Node]) -> int:
        count = 0
        for node in nodes:
            identifier = node.op_identifier()
            count += size(identifier) if identifier in model.functions else 1
        return count

    for identifier in model.functions:
        size(identifier)
    expanded = total(all_nodes(model.graph))
    if expanded > MAX_NODES:
        raise InvalidModel(
            f"the functions expand to {expanded} nodes, more than {MAX_NODES}",
            file=file,
            remedy="split the model",
        )


def _inline_in(
    graph: ir.Graph, functions: Mapping[Identifier, ir.Function], file: str | None
) -> None:
    """Inlines the calls in one graph; bodies may hold further calls, which follow at once."""
    waiting = list(graph)
    while waiting:
        node = waiting.pop()
        function = functions.get(node.op_identifier())
        if function is not None:
            waiting.extend(inline_call(node, function, file=file))
            continue
        for inner in subgraphs(node):
            _inline_in(inner, functions, file)


def inline_call(
    node: ir.Node,
    function: ir.Function,
    *,
    file: str | None = None,
    captured: Mapping[str, ir.Value] | None = None,
) -> list[ir.Node]:
    """Replaces one node by a function's body; returns the nodes put in its place.

    ``captured`` gives function inputs of these names, after those of the call.

    Raises:
        InvalidModel: more arguments or results than the function has.
    """
    if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
        raise InvalidModel(
            f"{node.op_type} got {len(node.inputs)} inputs and {len(node.outputs)} outputs; "
            f"the function has {len(function.inputs)} and {len(function.outputs)}",
            file=file,
            node=node_label(node),
            remedy="call the function as it is defined",
        )
    given = list(node.inputs) + [None] * (len(function.inputs) - len(node.inputs))
    values: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, given, strict=True))
    for value in function.inputs:
        if captured and value.name is not None and value.name in captured:
            values[value] = captured[value.name]
    attributes = {
        name: attribute
        for name, attribute in function.attributes.items()
        if attribute.value is not None
    }
    attributes.update(node.attributes)
    prefix = node.name or node.op_type
    added = [clone_node(inner, values, attributes, prefix) for inner in function]
    graph = node.graph
    if graph is None:
        raise InvalidModel(
            "a call outside of any graph",
            file=file,
            node=node_label(node),
            remedy="put the node into the model's graph",
        )
    graph.insert_before(node, added)
    added += _hand_over(node, [values.get(value) for value in function.outputs], graph)
    graph.remove(node)
    return added


def _hand_over(node: ir.Node, results: list[ir.Value | None], graph: ir.Graph) -> list[ir.Node]:
    """Makes users of a call read the body's results, under the old names."""
    identities: list[ir.Node] = []
    handed: set[ir.Value] = set()
    inside = {id(value) for value in node.inputs}
    for old, new in zip(node.outputs, results, strict=False):
        name = old.name
        if not name and not old.uses():
            continue
        if new is None or id(new) in inside or new in handed or new.producer() is None:
            identity = ir.Node("", "Identity", [new], num_outputs=1, version=13)
            identity.name = f"{node.name}/Identity"
            graph.insert_before(node, identity)
            identities.append(identity)
            new = identity.outputs[0]
        handed.add(new)
        new.name = name
        new.type = new.type or old.type
        new.shape = new.shape or old.shape
        old.name = None if not old.is_initializer() else name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    return identities


# --- operators that ONNX defines by a function body -----------------------------------------------


def expand_functions(
    model: ir.Model,
    wanted: Wanted,
    *,
    infos: Mapping[str, TensorInfo] | None = None,
    log: DecisionLog | None = None,
    file: str | None = None,
) -> list[str]:
    """Replaces operators by the bodies that ONNX gives for them, in place.

    Args:
        model: a normalised model; it is normalised again afterwards.
        wanted: says of ``(domain, op_type)`` whether to expand it; operators with graphs inside
            are expanded in any case, those of control flow excepted.
        infos: types and shapes by value name, for bodies that depend on them.
        log: takes a decision for each expansion.
        file: the model's name in messages.

    Returns:
        The labels of nodes that are wanted but have no body, or whose input types are not known.
    """
    log = log if log is not None else DecisionLog()

    def found() -> list[ir.Node]:
        return [
            node
            for node in all_nodes(model.graph)
            if wanted(node.domain, node.op_type) or _maps_graphs(node)
        ]

    for _ in range(_MAX_ROUNDS):
        expanded = False
        for node in found():
            outside: dict[str, ir.Value] = {}
            function = _body_of(node, infos or {}, outside)
            if function is None:
                continue
            log.add("expand_functions", node_label(node), "replaced by ONNX's function body")
            inline_call(node, function, file=file, captured=outside)
            expanded = True
        if not expanded:
            break
        unique_names(model)
        normalize(model, log=log, file=file)
    return [node_label(node) for node in found()]


def _maps_graphs(node: ir.Node) -> bool:
    """An operator with graphs inside that is no control flow (SequenceMap, FlexAttention)."""
    if node.domain == "" and node.op_type in ("If", "Loop", "Scan"):
        return False
    return any(True for _ in subgraphs(node))


def _body_of(
    node: ir.Node, infos: Mapping[str, TensorInfo], outside: dict[str, ir.Value]
) -> ir.Function | None:
    """The function that ONNX gives for a node, its attributes completed by their defaults.

    Values that the node's own graphs read from around it are entered into ``outside``, under the
    names that they have in the function.
    """
    definition = schema(node.domain, node.op_type, node.version or NEWEST_OPSET)
    if definition is None:
        return None
    for name, attribute in definition.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            default = onnx.AttributeProto.FromString(attribute.default_value.SerializeToString())
            node.attributes[name] = ir.serde.deserialize_attribute(default)
    data = _body_bytes(node, definition, infos, outside)
    if not data:
        return None
    proto = onnx.FunctionProto.FromString(data)
    if not _complete_outputs(proto, node):
        return None
    proto.input.extend(outside)
    function = ir.serde.deserialize_function(proto)
    for inner in function.all_nodes():
        inner.version = function.opset_imports.get(inner.domain, NEWEST_OPSET)
        name = inner.name or ""
        if name.startswith(_GIVEN):  # a node of the call's own graphs
            inner.version = NEWEST_OPSET
            inner.name = name.removeprefix(_GIVEN)
    return function


def _complete_outputs(proto: onnx.FunctionProto, node: ir.Node) -> bool:
    """Bodies name outputs that they do not compute; harmless unless the call wants them."""
    made = {name for inner in proto.node for name in inner.output} | set(proto.input)
    for index, name in enumerate(proto.output):
        if name in made:
            continue
        if index < len(node.outputs) and (node.outputs[index].name or node.outputs[index].uses()):
            return False
        proto.output[index] = proto.output[0]
    return True


def _body_bytes(
    node: ir.Node,
    definition: Any,
    infos: Mapping[str, TensorInfo],
    outside: dict[str, ir.Value],
) -> bytes | None:
    """The body as protobuf; ``definition`` is an OpSchema (its stubs lack the function part)."""
    data: bytes | None = None
    if definition.has_function:
        version = max(v for v in definition.function_opset_versions if v <= NEWEST_OPSET)
        data = definition.get_function_with_opset_version(version)
    elif definition.has_context_dependent_function:
        types = [_type_of(value, infos) for value in node.inputs]
        if any(kind is None for kind in types):
            return None
        versions = definition.context_dependent_function_opset_versions
        data = definition.get_context_dependent_function_with_opset_version(
            max(v for v in versions if v <= NEWEST_OPSET),
            _node_proto(node, outside).SerializeToString(),
            [kind for kind in types if kind is not None],
        )
    return data


def _node_proto(node: ir.Node, outside: dict[str, ir.Value]) -> onnx.NodeProto:
    """The node for ONNX: marks the nodes of its graphs, and what these read from outside."""
    proto = ir.serde.serialize_node(node)
    own = {value for graph in subgraphs(node) for value in _all_values(graph)}
    names: dict[str, str] = {}
    for graph in subgraphs(node):
        for inner in all_nodes(graph):
            for value in inner.inputs:
                if value is not None and value not in own and value.name not in names:
                    names[str(value.name)] = f"{_OUTSIDE}{len(names)}"
                    outside[names[str(value.name)]] = value
    for attribute in proto.attribute:
        for inner_graph in (attribute.g, *attribute.graphs):
            _mark(inner_graph, names)
    return proto


def _all_values(graph: ir.Graph) -> Iterable[ir.Value]:
    for inner in all_graphs(graph):
        yield from own_values(inner)


def _mark(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.name = f"{_GIVEN}{node.name}"
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _mark(inner, names)


def _type_of(value: ir.Value | None, infos: Mapping[str, TensorInfo]) -> bytes | None:
    """A serialised TypeProto; empty for an absent input, None when the type is not known."""
    if value is None:
        return b""
    info = infos.get(value.name or "")
    dtype = info.dtype if info is not None else element_type_of(value)
    if dtype is None:
        return None
    dims = None
    if info is not None and info.shape is not None:
        dims = [dim.const if dim.is_const else str(dim) for dim in info.shape]
    elif value.const_value is not None:
        dims = [int(dim) for dim in value.const_value.shape]  # type: ignore[arg-type]
    proto: onnx.TypeProto = onnx.helper.make_tensor_type_proto(dtype.code, dims)
    if info is not None and info.container == "sequence":
        proto = onnx.helper.make_sequence_type_proto(proto)
    data: bytes = proto.SerializeToString()
    return data
