"""Small valid models and engines that mutators start from.

Input -> Output: a folder for caches -> the bytes of models; the bytes of engine files.
Guarantees: the same in each process; every family of structures occurs (sub-graphs, functions,
sparse and typed weights, sequences, strings, symbolic dims, metadata).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from property.strategies import generate

_SAMPLES = (3, 36, 59, 73, 121, 208, 402, 1450)  # random models with many kinds of nodes


def models() -> list[bytes]:
    """Models as files."""
    made = [generate(seed).model for seed in _SAMPLES]
    made += [_function(), _branches(), _typed_weights(), _sequence(), _convolutions()]
    return [model.SerializeToString() for model in made]


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    weights: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 21)]
    if functions:
        imports.append(helper.make_opsetid("own", 1))
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        [onnx.ValueInfoProto(name=name) for name in outputs],
        list(weights),
    )
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    helper.set_model_props(model, {"author": "a", "note": "b"})
    return model


def _info(name: str, *dims: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def _function() -> onnx.ModelProto:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Relu", ["s"], ["r"])]
    square = helper.make_function(
        "own", "Square", ["a"], ["r"], body, [helper.make_opsetid("", 21)]
    )
    nodes = [
        helper.make_node("Square", ["x"], ["y"], domain="own"),
        helper.make_node("Square", ["y"], ["z"], domain="own"),
    ]
    return _model(nodes, [_info("x", "n", 3)], ["z"], functions=[square])


def _branches() -> onnx.ModelProto:
    def side(name: str, op: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["x"], [name])
        return helper.make_graph([node], name, [], [_info(name, "n")])

    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["t"]),
            helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [
            _info("i", dtype=TensorProto.INT64),
            _info("c", dtype=TensorProto.BOOL),
            _info("s", "n"),
        ],
        [_info("d", dtype=TensorProto.BOOL), _info("t", "n")],
    )
    nodes = [
        helper.make_node(
            "If", ["flag"], ["y"], then_branch=side("p", "Relu"), else_branch=side("q", "Neg")
        ),
        helper.make_node("Loop", ["m", "", "y"], ["z"], body=body),
    ]
    weights = [numpy_helper.from_array(np.asarray(2), "m")]
    return _model(nodes, [_info("x", "n"), _info("flag", dtype=TensorProto.BOOL)], ["z"], weights)


def _typed_weights() -> onnx.ModelProto:
    halves = TensorProto(
        name="h", data_type=TensorProto.BFLOAT16, dims=[3], int32_data=[16256, 16384, 16448]
    )
    nibbles = TensorProto(name="q", data_type=TensorProto.INT4, dims=[3], int32_data=[0x21, 0x03])
    texts = TensorProto(name="t", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"b"])
    nodes = [
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
        helper.make_node("Cast", ["q"], ["i"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["y", "i"], ["z"]),
        helper.make_node("Identity", ["t"], ["u"]),
    ]
    model = _model(nodes, [_info("x", 2, 3)], ["z", "u"], [halves, nibbles, texts])
    sparse = model.graph.sparse_initializer.add(dims=[2, 3])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([1, 2], np.float32), "sp"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 4], np.int64), "sp_indices"))
    model.graph.node.append(helper.make_node("Add", ["z", "sp"], ["w"]))
    model.graph.output.append(onnx.ValueInfoProto(name="w"))
    return model


def _sequence() -> onnx.ModelProto:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0),
        helper.make_node("SequenceAt", ["s", "k"], ["y"]),
        helper.make_node("ConcatFromSequence", ["s"], ["z"], axis=0),
        helper.make_node("Reshape", ["z", "shape"], ["w"]),
    ]
    weights = [
        numpy_helper.from_array(np.asarray(0), "k"),
        numpy_helper.from_array(np.asarray([-1, 2]), "shape"),
    ]
    return _model(nodes, [_info("x", 4, 6)], ["y", "w"], weights)


def _convolutions() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3), np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(8, np.float32), "b"),
        numpy_helper.from_array(rng.standard_normal((32, 5), np.float32), "m"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["o"]),
        helper.make_node("Softmax", ["o"], ["y"], axis=-1),
    ]
    return _model(nodes, [_info("x", "n", 3, 8, 8)], ["y"], weights)


def engines(folder: Path) -> list[bytes]:
    """Engine files of a few models; ``folder`` takes intermediate files."""
    import tilewright as tw

    found = []
    for number, model in enumerate((_branches(), _typed_weights(), _convolutions(), _sequence())):
        path = folder / f"{number}.tw"
        tw.compile(model, verify=False, threads=1).save(path)
        found.append(path.read_bytes())
    return found
