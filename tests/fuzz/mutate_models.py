"""Damages ONNX files: bytes, single fields, structure.

Input -> Output: the bytes of valid models and a random generator -> hostile bytes.
Not here: running them (worker).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import TensorProto, helper

INTEGERS = (0, 1, -1, 2, 7, 28, 127, 255, 1024, 65_537, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63))
_TEXTS = ("", "x", "y", "Conv", "Reshape", "If", "ai.onnx", "own", "a/b", "../x", "\0", "é" * 50)
_MAX_NESTING = 3000
_MAX_BYTES = 1 << 20  # what is larger is not damaged further, which would take long


def mutate(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A damaged model."""
    data = rng.choice(seeds)
    if rng.random() < 0.25:
        return damage_bytes(rng, data)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choices(_MUTATIONS, _WEIGHTS)[0](rng, model, seeds)
    try:
        result = model.SerializeToString()
    except ValueError:  # a text that is no UTF-8, or too deep
        return damage_bytes(rng, data)
    return damage_bytes(rng, result) if rng.random() < 0.1 else result


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flips, cuts, repeats, inserts; nests messages."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        if not raw or len(raw) > _MAX_BYTES:
            break
        place = rng.randrange(len(raw))
        kind = rng.randrange(7)
        if kind <= 1:
            raw[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            raw[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 3:
            del raw[place : place + rng.choice((1, 2, 16, len(raw)))]
        elif kind == 4:
            raw[place:place] = raw[place : place + rng.choice((1, 8, 64))]
        elif kind == 5:
            raw[place:place] = rng.choice((b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\0" * 8))
        elif rng.random() < 0.7:
            raw = bytearray(_nested(rng, bytes(raw)))
        else:
            raw = bytearray(_too_deep(rng, bytes(raw)))
    return bytes(raw)


def _nested(rng: random.Random, data: bytes) -> bytes:
    """Wraps bytes in length-delimited fields."""
    for _ in range(rng.choice((1, 10, 120))):
        tag = rng.choice((7, 1, 5, 6)) << 3 | 2
        data = bytes([tag]) + _varint(len(data)) + data
    return data


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


# --- fields ---------------------------------------------------------------------------------------


def _messages(message: Message, depth: int = 0) -> list[Message]:
    """A message and all messages in it."""
    found = [message]
    if depth > 40:
        return found
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                found += _messages(part, depth + 1)
    return found


def change_field(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """One field of one message: another value, gone, or twice."""
    del seeds
    message = rng.choice(_messages(model))
    field = rng.choice(list(message.DESCRIPTOR.fields))
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _change_part(rng, message, field)
    elif field.is_repeated:
        _change_list(rng, message, field)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    else:
        _assign(message, field.name, _scalar(rng, field))


def _change_part(rng: random.Random, message: Message, field: FieldDescriptor) -> None:
    if not field.is_repeated:
        if rng.random() < 0.5:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
        return
    parts = getattr(message, field.name)
    kind = rng.randrange(4)
    if not parts or kind == 0:
        parts.add()
    elif kind == 1:
        del parts[rng.randrange(len(parts))]
    elif kind == 2:
        parts.add().CopyFrom(rng.choice(parts))
    else:
        a, b = rng.randrange(len(parts)), rng.randrange(len(parts))
        kept = type(parts[a])()
        kept.CopyFrom(parts[a])
        parts[a].CopyFrom(parts[b])
        parts[b].CopyFrom(kept)


def _change_list(rng: random.Random, message: Message, field: FieldDescriptor) -> None:
    values = getattr(message, field.name)
    kind = rng.randrange(5)
    if kind == 0:
        message.ClearField(field.name)
    elif kind == 1 and len(values):
        del values[rng.randrange(len(values))]
    elif kind == 2 and len(values):
        _assign(values, rng.randrange(len(values)), _scalar(rng, field))
    elif kind == 3:
        for _ in range(rng.choice((1, 3, 500))):
            _append(values, _scalar(rng, field))
    else:
        _append(values, _scalar(rng, field))


def _scalar(rng: random.Random, field: FieldDescriptor) -> Any:
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        text = rng.choice(_TEXTS)
        if rng.random() < 0.05:
            text = "n" * 100_000
        return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    return rng.choice((*INTEGERS, rng.randrange(40)))


def _assign(holder: Any, key: Any, value: Any) -> None:
    try:
        if isinstance(key, str):
            setattr(holder, key, value)
        else:
            holder[key] = value
    except (ValueError, TypeError, OverflowError):  # out of the field's range
        return


def _append(values: Any, value: Any) -> None:
    try:
        values.append(value)
    except (ValueError, TypeError, OverflowError):
        return


# --- structure ------------------------------------------------------------------------------------


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [part for part in _messages(model) if isinstance(part, onnx.GraphProto)]


def rewire(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """A node reads or makes another name: cycles, missing and repeated values."""
    del seeds
    nodes = [node for graph in _graphs(model) for node in graph.node]
    if not nodes:
        return
    names = [name for node in nodes for name in (*node.input, *node.output)] + ["", "nowhere"]
    node = rng.choice(nodes)
    ports = node.input if rng.random() < 0.6 else node.output
    if len(ports) and rng.random() < 0.8:
        ports[rng.randrange(len(ports))] = rng.choice(names)
    else:
        ports.append(rng.choice(names))


def change_operator(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """Another operator with the same operands."""
    del seeds
    nodes = [node for graph in _graphs(model) for node in graph.node]
    if nodes:
        schemas = onnx.defs.get_all_schemas()
        chosen = rng.choice(nodes)
        chosen.op_type = rng.choice(schemas).name
        if rng.random() < 0.5:
            del chosen.attribute[:]


def change_attribute(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """Hostile numbers in attributes, or an attribute of another type."""
    del seeds
    nodes = [node for graph in _graphs(model) for node in graph.node]
    if not nodes:
        return
    node = rng.choice(nodes)
    schema_names = [
        "axis",
        "axes",
        "pads",
        "strides",
        "kernel_shape",
        "group",
        "to",
        "perm",
        "alpha",
    ]
    schema_names += ["mode", "equation", "hidden_size", "direction", "num_outputs", "body"]
    name = rng.choice([a.name for a in node.attribute] or schema_names)
    name = rng.choice(schema_names) if rng.random() < 0.2 else name
    for index, attribute in reversed(list(enumerate(node.attribute))):
        if attribute.name == name:
            del node.attribute[index]
    value: Any = rng.choice(
        (
            rng.choice(INTEGERS),
            [rng.choice(INTEGERS) for _ in range(rng.randrange(1, 6))],
            [rng.randrange(-3, 6) for _ in range(rng.randrange(1, 6))],
            1.5,
            "text",
            b"\xff\xfe",
            [0.5, float("nan")],
        )
    )
    node.attribute.append(helper.make_attribute(name, value))


def change_weight(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """Dims, types and bytes of a tensor that contradict each other."""
    del seeds
    tensors = [part for part in _messages(model) if isinstance(part, TensorProto)]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    kind = rng.randrange(6)
    if kind == 0:
        tensor.dims[:] = [rng.choice(INTEGERS) for _ in range(rng.randrange(0, 5))]
    elif kind == 1:
        tensor.data_type = rng.randrange(-1, 30)
    elif kind == 2:
        tensor.raw_data = bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 7, 8, 64))))
    elif kind == 3:
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": rng.choice(("w.bin", "../w", "/etc/passwd", ""))}
        entries["offset"] = str(rng.choice(INTEGERS))
        entries["length"] = str(rng.choice(INTEGERS))
        for key, text in entries.items():
            if rng.random() < 0.8:
                tensor.external_data.add(key=key, value=text)
    elif kind == 4:
        tensor.int64_data.extend([rng.choice(INTEGERS) for _ in range(rng.choice((1, 4)))])
    else:
        raw = bytearray(tensor.raw_data)
        if raw:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
            tensor.raw_data = bytes(raw)


def change_shape(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """Hostile dims of inputs and outputs."""
    del seeds
    values = [part for part in _messages(model) if isinstance(part, onnx.ValueInfoProto)]
    if not values:
        return
    value = rng.choice(values)
    kind = value.type.tensor_type
    if rng.random() < 0.2:
        kind.elem_type = rng.randrange(-1, 30)
        return
    if kind.shape.dim and rng.random() < 0.7:
        dim = rng.choice(kind.shape.dim)
        if rng.random() < 0.5:
            dim.dim_value = rng.choice(INTEGERS)
        else:
            dim.dim_param = rng.choice((*_TEXTS, "n", "n*2", "-n", "9" * 400, "n+1"))
    else:
        for _ in range(rng.choice((1, 2, 70))):
            kind.shape.dim.add().dim_value = rng.choice(INTEGERS)


def nest(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """A branch within a branch within a branch ..."""
    del seeds
    depth = rng.choice((2, 5, 15, 25, 25))
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["deep"])], "g", [], [])
    inner.output.add().name = "deep"
    for level in range(depth):
        node = helper.make_node("If", ["flag"], [f"d{level}"])
        other = inner if level < 5 else onnx.GraphProto()
        node.attribute.append(helper.make_attribute("then_branch", inner))
        node.attribute.append(helper.make_attribute("else_branch", other))
        inner = helper.make_graph([node], "g", [], [])
        inner.output.add().name = f"d{level}"
    model.graph.node.extend(inner.node)


def _too_deep(rng: random.Random, data: bytes) -> bytes:
    """Graphs in attributes in nodes in graphs, deeper than protobuf itself builds."""
    graph = b""
    for _ in range(rng.choice((33, 34, 200, _MAX_NESTING))):
        attribute = b"\x0a\x01g\x32" + _varint(len(graph)) + graph + b"\xa0\x01\x05"
        node = b"\x22\x02If\x2a" + _varint(len(attribute)) + attribute
        graph = b"\x0a" + _varint(len(node)) + node
    return data + b"\x3a" + _varint(len(graph)) + graph


def chain(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """A long chain of nodes."""
    del seeds
    made = [name for node in model.graph.node for name in node.output if name]
    name = rng.choice(made or ["x"])
    op = rng.choice(("Relu", "Neg", "Identity", "Transpose", "Add"))
    for number in range(rng.choice((10, 200))):
        following = f"chain{number}"
        operands = [name, name] if op == "Add" else [name]
        model.graph.node.append(helper.make_node(op, operands, [following]))
        name = following
    model.graph.output.add().name = name


def splice(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """Nodes and weights of another model."""
    other = onnx.ModelProto()
    other.ParseFromString(rng.choice(seeds))
    model.graph.node.extend(other.graph.node)
    if rng.random() < 0.7:
        model.graph.initializer.extend(other.graph.initializer)
    if rng.random() < 0.5:
        model.graph.input.extend(other.graph.input)
    if rng.random() < 0.3:
        model.functions.extend(other.functions)


def versions(rng: random.Random, model: onnx.ModelProto, seeds: Sequence[bytes]) -> None:
    """Other versions of operator sets and of the format."""
    del seeds
    kind = rng.randrange(4)
    if kind == 0:
        model.ir_version = rng.choice((0, 1, 2, 3, 13, 14, 2**31, 2**62))
    elif kind == 1 and model.opset_import:
        model.opset_import[0].version = rng.choice((0, 1, 2, 6, 9, 12, 29, 1000, 2**62, -1))
    elif kind == 2:
        model.opset_import.add(domain=rng.choice(("", "ai.onnx", "own", "ai.onnx.ml")), version=1)
    else:
        del model.opset_import[:]


_Mutation = Callable[[random.Random, onnx.ModelProto, Sequence[bytes]], None]
_TABLE: tuple[tuple[_Mutation, float], ...] = (
    (change_field, 6),
    (rewire, 2),
    (change_operator, 2),
    (change_attribute, 2.5),
    (change_weight, 2.5),
    (change_shape, 2),
    (nest, 0.3),
    (chain, 0.4),
    (splice, 0.6),
    (versions, 0.7),
)
_MUTATIONS = [mutation for mutation, _ in _TABLE]
_WEIGHTS = [weight for _, weight in _TABLE]
