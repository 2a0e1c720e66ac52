"""Import a model: everything a caller may call one -> a checked ``onnx_ir.Model``.

Input -> Output: path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model`` -> a model of our own, whose
weights are arrays, whose functions are inlined, whose names are unique and whose nodes are sorted.
Guarantees: ``InvalidModel`` or ``UnsupportedOp`` with file, node and remedy for everything else;
the caller's objects are not changed; time and memory of a refusal are bounded by the file's size.
Not here: rewriting operators (normalize), shapes (graph.shapes).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from tilewright.core.errors import InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.graph.build_view import view
from tilewright.graph.check_nodes import Known, check_nodes
from tilewright.graph.check_proto import check_proto, check_versions
from tilewright.graph.functions import inline_functions
from tilewright.graph.source import read_source, source_name
from tilewright.graph.tensors import TensorReader, dense, element_type
from tilewright.graph.verify import sort_nodes, verify
from tilewright.graph.walk import all_graphs, all_nodes, node_label, unique_names

__all__ = ["Known", "Source", "load_model", "read_model", "source_name", "view"]

Source = str | Path | bytes | onnx.ModelProto | ir.Model
_DAMAGED = "the model is damaged or was edited by hand; export it again"


def load_model(
    source: Source, *, known: Known | None = None, log: DecisionLog | None = None
) -> ir.Model:
    """Imports a model.

    Args:
        source: a path, the bytes of a file, or a model in memory (left as it is).
        known: says whether an operator ``(domain, op_type, opset)`` can be executed; by default,
            whether ONNX defines it.
        log: takes a decision for each change that a caller could notice.

    Raises:
        InvalidModel: not a model, damaged, contradictory or hostile.
        UnsupportedOp: operators, versions or types that are not known, all of them at once.
    """
    model = read_model(source, log=log)
    check_nodes(model, known, file=source_name(source))
    return model


def read_model(source: Source, *, log: DecisionLog | None = None) -> ir.Model:
    """Imports a model whose nodes may be no calls that ONNX defines (see ``load_model``).

    Raises:
        InvalidModel: not a model, damaged, contradictory or hostile.
    """
    log = log if log is not None else DecisionLog()
    name = source_name(source)
    if isinstance(source, ir.Model):
        model, folder = _clone(source, name), None
        check_versions(model.opset_imports.items(), file=name)
        _own_tensors(model, TensorReader(file=name, folder=folder))
    else:
        model, folder = _read(source, name)
        _own_tensors(model, TensorReader(file=name, folder=folder))
    _set_versions(model, name)
    inline_functions(model, file=name)
    _drop_initialised_inputs(model, log)
    _merge_repeated_outputs(model, log)
    sort_nodes(model, file=name)
    unique_names(model)
    verify(model, file=name)
    return model


def _read(source: str | Path | bytes | onnx.ModelProto, name: str) -> tuple[ir.Model, Path | None]:
    read = read_source(source)
    check_proto(read.proto, file=name)
    proto = _without_sparse(read.proto, TensorReader(file=name, folder=read.folder), read.owned)
    with _quiet_onnx_ir():
        try:
            model = ir.serde.deserialize_model(proto)
        except ir.serde.SerdeError as error:
            raise InvalidModel(_innermost(error), file=name, remedy=_DAMAGED) from error
        _declare_inputs(model, proto)
    return model, read.folder


def _declare_inputs(model: ir.Model, proto: onnx.ModelProto) -> None:
    """An input that is an output as well keeps its declaration as an input."""
    outputs = {id(value) for value in model.graph.outputs}
    declared = {value.name: value for value in proto.graph.input}
    for value in model.graph.inputs:
        if id(value) in outputs and value.name in declared:
            ir.serde.deserialize_value_info_proto(declared[value.name], value)


def _clone(source: ir.Model, name: str) -> ir.Model:
    try:
        return source.clone()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidModel(str(error)[:500], file=name, remedy=_DAMAGED) from error


@contextmanager
def _quiet_onnx_ir() -> Iterator[None]:
    """What onnx-ir warns of has been checked already, and its messages may print whole weights."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"cannot be read as a graph: {str(error)[:300] or type(error).__name__}"


# --- weights --------------------------------------------------------------------------------------


def _without_sparse(proto: onnx.ModelProto, reader: TensorReader, owned: bool) -> onnx.ModelProto:
    """Makes sparse weights and attributes dense (onnx-ir has no sparse tensors)."""
    if not any(_sparse_parts(proto.graph)):
        return proto
    if not owned:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        proto = copy
    for part in list(_sparse_parts(proto.graph)):
        if isinstance(part, onnx.GraphProto):
            for sparse in part.sparse_initializer:
                what = f"initialiser {sparse.values.name!r}"
                part.initializer.append(dense(sparse, reader, what))
            del part.sparse_initializer[:]
        else:
            tensor = dense(part.sparse_tensor, reader, f"attribute {part.name!r}")
            part.name = "value" if part.name == "sparse_value" else part.name
            part.type = onnx.AttributeProto.TENSOR
            part.t.CopyFrom(tensor)
            part.ClearField("sparse_tensor")
    return proto


def _sparse_parts(
    graph: onnx.GraphProto,
) -> Iterator[onnx.GraphProto | onnx.AttributeProto]:
    if graph.sparse_initializer:
        yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                yield attribute
            for inner in (attribute.g, *attribute.graphs):
                yield from _sparse_parts(inner)


def _own_tensors(model: ir.Model, reader: TensorReader) -> None:
    """Replaces tensors that refer to protobuf or to files by checked arrays."""
    for graph in [*all_graphs(model.graph), *_function_graphs(model)]:
        for value in graph.initializers.values():
            if value.const_value is None:
                raise InvalidModel(
                    f"initialiser {value.name!r} has no value", file=reader.file, remedy=_DAMAGED
                )
            value.const_value = _own(value.const_value, reader, f"initialiser {value.name!r}")
            value.type = ir.TensorType(value.const_value.dtype)
            value.shape = ir.Shape(_dims(value.const_value))
        for node in graph:
            for key, attribute in list(node.attributes.items()):
                what = f"attribute {key!r} of {node_label(node)}"
                if attribute.is_ref():
                    continue
                if attribute.type is ir.AttributeType.TENSOR:
                    node.attributes[key] = ir.AttrTensor(
                        key, _own(attribute.as_tensor(), reader, what)
                    )
                elif attribute.type is ir.AttributeType.TENSORS:
                    tensors = [_own(tensor, reader, what) for tensor in attribute.as_tensors()]
                    node.attributes[key] = ir.AttrTensors(key, tensors)


def _function_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    for function in model.functions.values():
        yield from all_graphs(function.graph)


def _own(tensor: ir.TensorProtocol, reader: TensorReader, what: str) -> ir.TensorProtocol:
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return reader.read(tensor.raw, what)
    if isinstance(tensor, ir.ExternalTensor):
        folder = Path(tensor.base_dir) if tensor.base_dir else reader.folder
        own = TensorReader(file=reader.file, folder=folder) if folder != reader.folder else reader
        return own.read(_external_proto(tensor), what)
    if isinstance(tensor, ir.StringTensor):
        proto = onnx.TensorProto(
            dims=_dims(tensor),
            data_type=onnx.TensorProto.STRING,
            string_data=[bytes(text) for text in tensor.string_data()],
        )
        return reader.read(proto, what)
    element_type(int(tensor.dtype), file=reader.file, what=what)
    # The caller's arrays may change later, as the parameters of a torch module in training do.
    return ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=tensor.name)


def _dims(tensor: ir.TensorProtocol) -> list[int]:
    return [int(dim) for dim in tensor.shape]  # type: ignore[arg-type]


def _external_proto(tensor: ir.ExternalTensor) -> onnx.TensorProto:
    proto = onnx.TensorProto(
        name=tensor.name or "",
        dims=_dims(tensor),
        data_type=int(tensor.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    entries = {"location": str(tensor.location), "offset": tensor.offset, "length": tensor.length}
    for key, entry in entries.items():
        if entry is not None:
            proto.external_data.add(key=key, value=str(entry))
    return proto


# --- structure ------------------------------------------------------------------------------------


def _set_versions(model: ir.Model, name: str) -> None:
    """Writes on each node which version of its domain it was written for."""
    functions = {(domain, op_type) for domain, op_type, _ in model.functions}
    bodies = [(model.graph, model.opset_imports)]
    bodies += [(f.graph, f.opset_imports or model.opset_imports) for f in model.functions.values()]
    missing: dict[str, str] = {}
    for graph, imports in bodies:
        versions = {("" if key == "ai.onnx" else key): number for key, number in imports.items()}
        check_versions(versions.items(), file=name)
        for node in all_nodes(graph):
            if node.domain in versions:
                node.version = versions[node.domain]
            elif (node.domain, node.op_type) not in functions:
                missing.setdefault(node.domain, node_label(node))
    if missing:
        domain, label = next(iter(missing.items()))
        raise InvalidModel(
            f"domain {domain or 'ai.onnx'!r} is used but its operator set is not imported",
            file=name,
            node=label,
            remedy="add the domain to the model's opset_import",
        )


def _drop_initialised_inputs(model: ir.Model, log: DecisionLog) -> None:
    """A graph input that has an initialiser is a constant, not an input."""
    for graph in all_graphs(model.graph):
        for value in [value for value in graph.inputs if value.is_initializer()]:
            if graph is model.graph:
                log.add(
                    "load",
                    value.name or "",
                    "input with an initialiser: a constant, no longer an input",
                    (("keep it as an input", "its default could not be folded or packed"),),
                )
            graph.inputs.remove(value)


def _merge_repeated_outputs(model: ir.Model, log: DecisionLog) -> None:
    seen: set[int] = set()
    for index, value in reversed(list(enumerate(model.graph.outputs))):
        if any(value is other for other in model.graph.outputs[:index]):
            del model.graph.outputs[index]
            if id(value) not in seen:
                log.add("load", value.name or "", "output listed more than once: given once")
            seen.add(id(value))
