"""Refuse models that contradict themselves, before anything is built from them.

Input -> Output: a parsed model -> nothing, or ``InvalidModel`` that names file, node and remedy.
Guarantees: afterwards versions are known ones, every name is defined exactly once in its scope,
nothing undefined is read, attributes are well formed, and nesting is bounded.
Not here: weights (tensors), cycles (load sorts), operators (check_nodes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import AttributeProto

from tilewright.core import dtypes
from tilewright.core.errors import InvalidModel, UnsupportedOp
from tilewright.graph.tensors import element_type

OLDEST_OPSET = 1
NEWEST_OPSET = 28
MAX_DEPTH = 24
_DAMAGED = "the file is damaged or was edited by hand; export the model again"
_UNIQUE = "give every value its own name; `onnx.checker.check_model` names all of them"
_FIELD_OF = {
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}


def check_versions(opset_imports: Iterable[tuple[str, int]], *, file: str) -> None:
    """Refuses operator sets outside of 1 to 28.

    Raises:
        InvalidModel: no ai.onnx version, or two of them.
        UnsupportedOp: the version is newer than what Tilewright knows.
    """
    seen: dict[str, int] = {}
    for domain, version in opset_imports:
        key = "" if domain == "ai.onnx" else domain
        if version < 1 or seen.get(key, version) != version:
            raise InvalidModel(
                f"opset version {version} of domain {domain!r} is impossible or ambiguous",
                file=file,
                remedy=_DAMAGED,
            )
        seen[key] = version
    if not seen:
        raise InvalidModel(
            "no operator set is imported",
            file=file,
            remedy="not an ONNX model, or truncated; export the model again",
        )
    version = seen.get("", NEWEST_OPSET)
    if version > NEWEST_OPSET:
        raise UnsupportedOp(
            f"ai.onnx {version} is not supported; {OLDEST_OPSET} to {NEWEST_OPSET} are",
            file=file,
            operators=(f"ai.onnx opset {version}",),
            remedy=f"export with opset_version={NEWEST_OPSET} or older",
        )


def check_proto(model: onnx.ModelProto, *, file: str) -> None:
    """Checks everything that can be checked without weights.

    Raises:
        InvalidModel: the model contradicts itself.
        UnsupportedOp: its versions or types are unknown.
    """
    if not model.HasField("graph"):
        raise InvalidModel(
            "not an ONNX model: there is no graph in it",
            file=file,
            remedy="check that this is the .onnx file and that it was copied whole",
        )
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedOp(
            f"IR version {model.ir_version} is newer than {onnx.IR_VERSION}",
            file=file,
            remedy="export with an older version of onnx",
        )
    checker = _Checker(file=file)
    checker.text(*(entry.domain for entry in model.opset_import))
    check_versions(((entry.domain, entry.version) for entry in model.opset_import), file=file)
    checker.graph(model.graph, [], depth=0)
    seen: set[tuple[str, str, str]] = set()
    for function in model.functions:
        checker.text(function.domain, function.name, function.overload, *function.output)
        checker.text(*(entry.domain for entry in function.opset_import), *function.attribute)
        identity = (function.domain, function.name, function.overload)
        if identity in seen or not function.name:
            raise InvalidModel(
                f"function {function.name!r} is defined twice or has no name",
                file=file,
                remedy=_UNIQUE,
            )
        seen.add(identity)
        checker.function(function)


@dataclass(slots=True)
class _Checker:
    file: str
    in_function: bool = False

    def fail(self, message: str, node: str | None = None, remedy: str = _DAMAGED) -> None:
        raise InvalidModel(message, file=self.file, node=node, remedy=remedy)

    def text(self, *names: object) -> None:
        """Protobuf gives bytes where a text field is not UTF-8."""
        for name in names:
            if not isinstance(name, str):
                self.fail(f"a name is not UTF-8 text: {name!r}")

    def define(self, name: str, scope: set[str], what: str, node: str | None = None) -> None:
        self.text(name)
        if not name:
            self.fail(f"{what} has no name", node, "name it")
        if name in scope:
            self.fail(f"{what} {name!r} is defined twice", node, _UNIQUE)
        scope.add(name)

    def graph(self, graph: onnx.GraphProto, outer: list[set[str]], depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail(f"sub-graphs are nested deeper than {MAX_DEPTH}")
        scope: set[str] = set()
        for value in graph.input:
            self.define(value.name, scope, "graph input")
            self.type(value.type, f"input {value.name!r}", needed=depth == 0)
        inputs = set(scope)
        weights: set[str] = set()
        for tensor in _weights(graph):
            self.define(tensor.name, weights, "initialiser")
            element_type(tensor.data_type, file=self.file, what=f"initialiser {tensor.name!r}")
        scope |= weights
        self.body(graph.node, scope, outer, depth)
        for value in graph.output:
            if not value.name:
                self.fail("a graph output has no name", remedy="name it")
            if value.name not in scope:
                self.fail(
                    f"graph output {value.name!r} is not computed by any node",
                    remedy="remove the output or add the node that computes it",
                )
            self.type(value.type, f"output {value.name!r}", needed=False)
        if depth == 0 and not graph.output:
            self.fail("the graph has no outputs", remedy="name at least one value as an output")
        self.text(graph.name, *(value.name for value in graph.value_info))
        for value in graph.value_info:
            if value.name not in inputs:
                self.type(value.type, f"value {value.name!r}", needed=False)

    def body(
        self,
        nodes: Iterable[onnx.NodeProto],
        scope: set[str],
        outer: list[set[str]],
        depth: int,
    ) -> None:
        labels = [(node.name or f"{node.op_type} #{k}", node) for k, node in enumerate(nodes)]
        for label, node in labels:
            self.text(label, node.op_type, node.domain, node.overload, *node.input)
            if not node.op_type:
                self.fail("a node has no operator", label)
            for name in node.output:
                if name:
                    self.define(name, scope, "value", label)
        for label, node in labels:
            for name in node.input:
                if name and name not in scope and not any(name in names for names in outer):
                    self.fail(
                        f"{node.op_type} reads {name!r}, which nothing defines",
                        label,
                        "define the value, or remove the input",
                    )
            self.attributes(node, label, [*outer, scope], depth)

    def attributes(
        self, node: onnx.NodeProto, label: str, scopes: list[set[str]], depth: int
    ) -> None:
        names: set[str] = set()
        for attribute in node.attribute:
            self.define(attribute.name, names, f"attribute of {node.op_type}", label)
            self.attribute(attribute, label)
            if attribute.ref_attr_name:
                continue
            if attribute.type == AttributeProto.GRAPH:
                self.graph(attribute.g, scopes, depth + 1)
            for graph in attribute.graphs if attribute.type == AttributeProto.GRAPHS else ():
                self.graph(graph, scopes, depth + 1)

    def attribute(self, attribute: onnx.AttributeProto, label: str) -> None:
        self.text(attribute.ref_attr_name)
        if attribute.ref_attr_name:
            if not self.in_function:
                self.fail(
                    f"attribute {attribute.name!r} refers to an attribute outside of a function",
                    label,
                )
            return
        kind = attribute.type
        if kind == AttributeProto.UNDEFINED or kind not in AttributeProto.AttributeType.values():
            self.fail(f"attribute {attribute.name!r} has no known type", label)
        field = _FIELD_OF.get(kind)
        if field is not None and not attribute.HasField(field):
            self.fail(f"attribute {attribute.name!r} has no value", label)
        try:
            for text in (attribute.s, *attribute.strings):
                text.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"attribute {attribute.name!r} is not UTF-8 text", label)
        for tensor in (
            *([attribute.t] if kind == AttributeProto.TENSOR else []),
            *attribute.tensors,
        ):
            what = f"attribute {attribute.name!r} of {label}"
            element_type(tensor.data_type, file=self.file, what=what)
        for proto in (
            *([attribute.tp] if kind == AttributeProto.TYPE_PROTO else []),
            *attribute.type_protos,
        ):
            self.type(proto, f"attribute {attribute.name!r}", needed=True)

    def function(self, function: onnx.FunctionProto) -> None:
        scope: set[str] = set()
        for name in function.input:
            self.define(name, scope, f"input of function {function.name}")
        self.in_function = True
        self.body(function.node, scope, [], 0)
        self.in_function = False
        for name in function.output:
            if name not in scope:
                self.fail(f"function {function.name} does not compute its output {name!r}")

    def type(self, proto: onnx.TypeProto, what: str, *, needed: bool, depth: int = 0) -> None:
        kind = proto.WhichOneof("value")
        if kind == "tensor_type":
            code = proto.tensor_type.elem_type
            if code not in dtypes.BY_CODE and (code or needed):
                self.fail(f"{what} has an element type that is not supported (code {code})")
            self.text(*(dim.dim_param for dim in proto.tensor_type.shape.dim))
            if any(dim.dim_value < -1 for dim in proto.tensor_type.shape.dim):
                self.fail(f"{what} has a negative dimension")
        elif kind in ("sequence_type", "optional_type") and depth < 4:
            inner = proto.sequence_type if kind == "sequence_type" else proto.optional_type
            self.type(inner.elem_type, what, needed=needed, depth=depth + 1)
        elif kind is not None:
            raise UnsupportedOp(
                f"{what} is a {kind.removesuffix('_type')}, which is not supported",
                file=self.file,
                operators=(kind,),
                remedy="use tensors (scikit-learn models: export with options={'zipmap': False})",
            )
        elif needed:
            self.fail(f"{what} has no type", remedy="declare its element type")


def _weights(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    return [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
