"""Write a model, or the part of it between some values, as valid ONNX.

Input -> Output: our ``onnx_ir.Model`` -> ``onnx.ModelProto`` or a file that other tools open.
Guarantees: all operator domains are imported; inputs and outputs have types, and shapes where
``infos`` or the model give them; weights beyond 2 GB go into one file beside the model; the given
model is not changed.
Not here: pictures of graphs (report).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from tilewright.core.errors import BadOption, InternalError
from tilewright.core.whole_file import check_output, whole_file, whole_files
from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.clone import clone_node
from tilewright.graph.element_types import element_type_of
from tilewright.graph.info import TensorInfo
from tilewright.graph.walk import all_nodes, subgraphs

_INLINE_LIMIT_BYTES = 1_900_000_000
_IR_VERSION = 13

Infos = Mapping[str, TensorInfo]


def to_proto(model: ir.Model, *, infos: Infos | None = None) -> onnx.ModelProto:
    """Returns the model as protobuf.

    Raises:
        InternalError: its nodes are written for different operator sets (normalise it first).
    """
    return ir.serde.serialize_model(_dressed(model, infos or {}))


def save_model(model: ir.Model, path: str | Path, *, infos: Infos | None = None) -> None:
    """Writes the model; large weights go to ``<name>.data`` beside it.

    Raises:
        CacheError: the file cannot be written.
    """
    path = Path(path)
    dressed = _dressed(model, infos or {})
    size = sum(
        value.const_value.nbytes
        for value in dressed.graph.initializers.values()
        if value.const_value is not None
    )
    if size <= _INLINE_LIMIT_BYTES:
        with whole_file(path) as unfinished:
            unfinished.write_bytes(ir.serde.serialize_model(dressed).SerializeToString())
        return
    check_output(path)
    with whole_files(path.parent) as folder:
        ir.save(dressed, folder / path.name, external_data=f"{path.name}.data")


def extract(
    model: ir.Model,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    infos: Infos | None = None,
) -> ir.Model:
    """Returns the part of the outermost graph that computes ``outputs`` from ``inputs``.

    Graph inputs that are needed besides ``inputs`` become inputs too; needed weights come along.

    Raises:
        BadOption: a name is not a value of the outermost graph.
    """
    graph = model.graph
    known = {value.name: value for node in graph for value in node.outputs if value.name}
    known.update({value.name: value for value in graph.inputs if value.name})
    known.update(graph.initializers.items())
    missing = [name for name in (*inputs, *outputs) if name not in known]
    if missing:
        raise BadOption(
            f"the graph has no value {', '.join(map(repr, missing))}",
            remedy="name values of the outermost graph; --dump-graph shows them",
        )
    cut = {known[name] for name in inputs}
    nodes, needed = _needed(graph, [known[name] for name in outputs], cut)
    values: dict[ir.Value, ir.Value | None] = {}
    starts = [known[name] for name in inputs]
    starts += [value for value in graph.inputs if value in needed and value not in cut]
    weights = [value for value in graph.initializers.values() if value in needed - cut]
    for value in (*starts, *weights):
        weight = value.const_value if value in weights else None
        values[value] = _copy(value, infos or {}, weight)
    body = [clone_node(node, values, {}) for node in graph if node in nodes]
    results = [values[known[name]] for name in outputs]
    for name, result in zip(outputs, results, strict=True):
        if result is not None:
            _declare(result, known[name], infos or {})
    part = ir.Graph(
        [new for old in starts if (new := values[old]) is not None],
        [new for new in results if new is not None],
        nodes=body,
        initializers=[new for old in weights if (new := values[old]) is not None],
        name=graph.name,
        opset_imports=dict(model.opset_imports),
    )
    return ir.Model(part, ir_version=_IR_VERSION, producer_name="tilewright")


def _needed(
    graph: ir.Graph, outputs: list[ir.Value], cut: set[ir.Value]
) -> tuple[set[ir.Node], set[ir.Value]]:
    """Nodes of the graph that the outputs depend on, without crossing the cut, and values read."""
    nodes: set[ir.Node] = set()
    values: set[ir.Value] = set()
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value in values:
            continue
        values.add(value)
        node = value.producer()
        if value in cut or node is None or node in nodes or node.graph is not graph:
            continue
        nodes.add(node)
        waiting.extend(_reads(node))
    return nodes, values


def _reads(node: ir.Node) -> list[ir.Value]:
    found = [value for value in node.inputs if value is not None]
    for graph in subgraphs(node):
        for inner in graph:
            found.extend(_reads(inner))
        found.extend(graph.outputs)
    return found


def _copy(value: ir.Value, infos: Infos, weight: ir.TensorProtocol | None) -> ir.Value:
    new = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=weight)
    _declare(new, value, infos)
    return new


def _declare(target: ir.Value, source: ir.Value, infos: Infos) -> None:
    """Gives a value the type and shape that are known of it."""
    info = infos.get(source.name or "")
    if target.type is None:
        dtype = info.dtype if info is not None else element_type_of(source)
        if dtype is not None:
            target.type = ir.TensorType(ir.DataType(dtype.code))
    if target.shape is None and info is not None and info.shape is not None:
        target.shape = ir.Shape([dim.const if dim.is_const else str(dim) for dim in info.shape])


def _dressed(model: ir.Model, infos: Infos) -> ir.Model:
    """A copy that other tools accept."""
    versions: dict[str, int] = {}
    for node in all_nodes(model.graph):
        version = node.version if node.version is not None else model.opset_imports.get(node.domain)
        version = version or 1
        if versions.setdefault(node.domain, version) != version:
            raise InternalError(
                f"nodes of {node.domain or 'ai.onnx'} are written for opsets "
                f"{versions[node.domain]} and {version}; normalise the model before saving it"
            )
    copy = model.clone()
    for own, value in zip(copy.graph.outputs, model.graph.outputs, strict=True):
        _declare(own, value, infos)
    copy.graph.opset_imports.clear()
    copy.graph.opset_imports.update(versions or {"": NEWEST_OPSET})
    copy.ir_version = max(model.ir_version or 0, _IR_VERSION)
    copy.producer_name = copy.producer_name or "tilewright"
    return copy
