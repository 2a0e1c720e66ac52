"""Runs lowered operators with the kernel interpreter and compares with ONNX's own cases.

Input -> Output: a model and feeds -> outputs, by way of shape rules, lowerings, ``verify`` and
``interpret``; every kernel is also run in canonical form, which must not change a bit.
Not here: the reference that interprets whole graphs (runtime.reference).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.defs
import pytest
from onnx import helper, numpy_helper

from tilewright.core.dtypes import from_numpy
from tilewright.core.shape import Dim
from tilewright.graph.build_view import view
from tilewright.graph.info import DimsArg, LiteralArg, NodeInfo, TensorInfo
from tilewright.graph.load import load_model
from tilewright.graph.normalize import normalize
from tilewright.graph.shapes import Inference, infer
from tilewright.graph.view import GraphView, NodeView
from tilewright.kernel.canonical import canonicalize
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Buffer, Kernel
from tilewright.kernel.verify import verify
from tilewright.lower.context import Lowering
from tilewright.lower.families import LOWERINGS
from tilewright.runtime import bindings

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model with feeds and expected outputs."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]


# --- ONNX's cases ---------------------------------------------------------------------------------


@cache
def _all_cases() -> tuple[Any, ...]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns while ONNX computes its expectations
        return tuple(load_model_tests(kind="node"))


def node_cases(*op_types: str, domain: str = "", without: Collection[str] = ()) -> list[Any]:
    """ONNX's single-node cases of some operators, as pytest parameters.

    Args:
        op_types: operators of ``domain``.
        domain: ``""`` for ai.onnx.
        without: names of cases to leave out.
    """
    return [
        pytest.param(case, id=case.name)
        for case in _tensor_cases()
        if case.name not in without
        and len(case.model.graph.node) == 1
        and case.model.graph.node[0].op_type in op_types
        and case.model.graph.node[0].domain in (domain, domain or "ai.onnx")
    ]


def expanded_cases(*, without: Collection[str]) -> list[Any]:
    """ONNX's operators written out as graphs of simpler ones, where each has a lowering.

    Args:
        without: operators that the graphs must not use.
    """
    known = {op for domain, op in LOWERINGS if not domain} - set(without)
    return [
        pytest.param(case, id=case.name)
        for case in _tensor_cases()
        if len(case.model.graph.node) > 1
        and all(not node.domain and node.op_type in known for node in case.model.graph.node)
    ]


def case_named(name: str) -> Case:
    """One of ONNX's cases."""
    return next(case for case in _tensor_cases() if case.name == name)


@cache
def _tensor_cases() -> tuple[Case, ...]:
    found = []
    for raw in _all_cases():
        if raw.model is None or len(raw.data_sets) != 1:
            continue
        feeds, expected = raw.data_sets[0]
        graph = raw.model.graph
        if any(part is None or isinstance(part, list) for part in (*feeds, *expected)):
            continue
        inputs = [value.name for value in graph.input]
        outputs = [value.name for value in graph.output]
        found.append(
            Case(
                name=raw.name,
                model=raw.model,
                feeds=dict(zip(inputs, map(_array, feeds), strict=True)),
                expected=dict(zip(outputs, map(_array, expected), strict=True)),
            )
        )
    return tuple(found)


def _array(value: Any) -> Array:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def check_case(case: Case, *, symbolic: bool = False, constant: Collection[int] = ()) -> None:
    """Runs a case and compares every output: type, shape and values.

    Args:
        case: model, feeds and expectations.
        symbolic: declare every dim of every input as unknown until run time.
        constant: positions of inputs that become initializers.
    """
    model, feeds = case.model, dict(case.feeds)
    if symbolic or constant:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
    for position in sorted(constant, reverse=True):
        if position < len(model.graph.input):
            name = model.graph.input[position].name
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
            del model.graph.input[position]
    if symbolic:
        for value in model.graph.input:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"{value.name}_{axis}"
    results = run_model(model, feeds)
    for name, expected in case.expected.items():
        compare(results[name], expected, name)


def compare(given: Array, expected: Array, name: str = "output") -> None:
    """Compares with a tolerance relative to the largest finite value expected."""
    assert given.dtype == expected.dtype, name
    assert given.shape == expected.shape, name
    if from_numpy(expected.dtype).is_float:
        left, right = given.astype(np.float64), expected.astype(np.float64)
        roundoff = _roundoff(expected.dtype)
        largest = np.max(np.abs(right), initial=0.0, where=np.isfinite(right))
        np.testing.assert_allclose(
            left, right, rtol=4 * roundoff, atol=4 * roundoff * largest + 1e-30, err_msg=name
        )
    else:
        np.testing.assert_array_equal(given, expected, err_msg=name)


def _roundoff(dtype: np.dtype[Any]) -> float:
    names = {"float64": 2.0**-22, "float32": 2.0**-19, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    return names.get(dtype.name, 0.0)


# --- single operators -----------------------------------------------------------------------------


def operator_model(
    op_type: str,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    *,
    constant: Collection[str] = (),
    symbolic: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one ai.onnx operator in its newest form, and the feeds that it needs.

    Args:
        op_type: the operator.
        feeds: input name -> array, in the operator's order; None where an input is absent.
        outputs: names of the outputs, empty where one is not wanted.
        constant: inputs that are initializers.
        symbolic: leave the dims of the inputs undeclared.
        attributes: of the operator.
    """
    given = {name: np.asarray(array) for name, array in feeds.items() if array is not None}
    node = helper.make_node(
        op_type,
        [name if name in given else "" for name in feeds],
        list(outputs),
        name=op_type,
        **attributes,
    )
    inputs = [
        helper.make_tensor_value_info(
            name,
            from_numpy(array.dtype).code,
            [f"{name}_{axis}" for axis in range(array.ndim)] if symbolic else array.shape,
        )
        for name, array in given.items()
        if name not in constant
    ]
    graph = helper.make_graph(
        [node],
        op_type,
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(given[name], name) for name in constant],
    )
    newest = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    model = helper.make_model(graph, opset_imports=newest)
    return model, {name: given[name] for name in given if name not in constant}


def run_operator(
    op_type: str,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    **options: Any,
) -> list[Array]:
    """Runs one operator (see ``operator_model``); the wanted outputs in order."""
    model, given = operator_model(op_type, feeds, outputs, **options)
    results = run_model(model, given)
    return [results[name] for name in outputs if name]


def lower_operator(
    op_type: str,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    **options: Any,
) -> Lowering:
    """Lowers one operator (see ``operator_model``)."""
    model, _ = operator_model(op_type, feeds, outputs, **options)
    graph = read_graph(model)
    inference = infer(graph)
    return lower_node(graph.nodes[0], inference.nodes[graph.nodes[0].name], inference)


# --- execution ------------------------------------------------------------------------------------


def run_model(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Executes a model by lowering each node and interpreting the kernels."""
    return run_graph(read_graph(model), feeds)


def read_graph(model: onnx.ModelProto) -> GraphView:
    """A model in the newest forms."""
    loaded = load_model(model)
    normalize(loaded)
    return view(loaded)


def run_graph(graph: GraphView, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Executes a graph node by node.

    Raises:
        Unlowerable: a node has no lowering of its own form.
    """
    inference = infer(graph)
    arrays = {
        name: np.asarray(array) for name, array in (*graph.initializers.items(), *feeds.items())
    }
    sizes: dict[str, int] = {}
    for declared in graph.inputs:
        if declared.shape is not None and declared.name in arrays:
            _bind(declared.shape, arrays[declared.name].shape, sizes)
    for node in graph.nodes:
        info = inference.nodes[node.name]
        _set_symbols(info, arrays, sizes)
        run_lowering(lower_node(node, info, inference), arrays, sizes)
    return {output.name: arrays[output.name] for output in graph.outputs}


def lower_node(node: NodeView, info: NodeInfo, inference: Inference) -> Lowering:
    """Lowers one node; outputs that nobody named are not wanted."""
    inputs = [inference.tensors[name] if name is not None else None for name in node.inputs]
    lowering = Lowering(
        node=node,
        info=info,
        inputs=tuple(_buffer(name, known) for name, known in zip(node.inputs, inputs, strict=True)),
        contents=tuple(known.content if known is not None else None for known in inputs),
        outputs=tuple(
            _buffer(name, known) for name, known in zip(node.outputs, info.outputs, strict=True)
        ),
    )
    LOWERINGS[node.domain, node.op_type](lowering)
    return lowering


def run_lowering(lowering: Lowering, arrays: dict[str, Array], sizes: Mapping[str, int]) -> None:
    """Executes the items of a lowering in order; results go to ``arrays``."""
    arrays.update(lowering.constants)
    for item in lowering.items:
        if isinstance(item, Kernel):
            arrays.update(run_kernel(item, arrays, sizes))
        else:
            shape = tuple(dim.evaluate(sizes) for dim in item.target.shape)
            arrays[item.target.name] = arrays[item.source.name].reshape(shape)
    for buffer in lowering.outputs:
        assert buffer is None or buffer.name in arrays, f"{buffer} was not computed"


def run_kernel(
    kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Verifies and interprets a kernel, and checks that its canonical form means the same."""
    verify(kernel)
    feeds = {buffer.name: arrays[buffer.name] for buffer in kernel.inputs}
    results = interpret(kernel, feeds, sizes)
    canonical = canonicalize(kernel)
    verify(canonical.kernel)
    renamed = interpret(
        canonical.kernel,
        {canonical.buffers[name]: array for name, array in feeds.items()},
        {new: sizes[old] for old, new in canonical.symbols.items()},
    )
    for name, result in results.items():
        np.testing.assert_array_equal(
            renamed[canonical.buffers[name]].view(np.uint8) if result.ndim else result,
            result.view(np.uint8) if result.ndim else result,
            err_msg=f"{name} changes in canonical form",
        )
    return results


def _buffer(name: str | None, known: TensorInfo | None) -> Buffer | None:
    if name is None or known is None:
        return None
    assert known.shape is not None, f"{name} has an unknown rank"
    return Buffer(name, known.dtype, known.shape)


def _bind(shape: Sequence[Dim], given: Sequence[int], sizes: dict[str, int]) -> None:
    for dim, size in zip(shape, given, strict=True):
        symbol = dim.as_symbol()
        if symbol is not None:
            sizes[symbol] = size


def _set_symbols(info: NodeInfo, arrays: Mapping[str, Array], sizes: dict[str, int]) -> None:
    for binding in info.bindings:
        values = bindings.run(binding.function, *_arguments(binding.args, arrays, sizes))
        sizes.update(zip(binding.symbols, values, strict=True))


def _arguments(
    args: Sequence[Any], arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, LiteralArg):
            yield arg.value
        elif isinstance(arg, DimsArg):
            yield [dim.evaluate(sizes) for dim in arg.dims]
        else:
            yield arrays[arg.name]
