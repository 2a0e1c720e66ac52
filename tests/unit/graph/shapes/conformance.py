"""ONNX's own node cases, and a run of them that checks every inferred shape against real arrays.

Input -> Output: a case and what is told to inference -> the disagreements, as texts.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.core.dtypes import from_numpy
from tilewright.core.errors import UserError
from tilewright.core.shape import Dim
from tilewright.graph.info import DimsArg, NodeInfo, TensorArg, TensorInfo
from tilewright.graph.load import load_model, view
from tilewright.graph.normalize import normalize
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.shapes import Inference, infer
from tilewright.graph.view import GraphView
from tilewright.runtime.bindings import BINDINGS

MODES = ("static", "symbolic", "constant")


@dataclass(frozen=True)
class Case:
    """A case in newest form; ``values`` holds an array for every value of the outermost graph."""

    name: str
    graph: GraphView
    feeds: Mapping[str, Any]
    expected: Mapping[str, Any]
    values: Mapping[str, Any]


@dataclass
class Outcome:
    """What one run found."""

    problems: list[str] = field(default_factory=list)
    unknown_rank: list[str] = field(default_factory=list)
    num_checked: int = 0
    num_symbolic: int = 0


@lru_cache(maxsize=1)
def node_cases() -> dict[str, Any]:
    """All node cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def load_case(name: str) -> Case:
    """Loads and normalises a case, and evaluates it once."""
    case = node_cases()[name]
    model = load_model(case.model)
    normalize(model)
    graph = view(model)
    inputs, outputs = case.data_sets[0]
    values = [value for value in graph.inputs if value.name not in graph.initializers]
    feeds = {value.name: _plain(data) for value, data in zip(values, inputs, strict=True)}
    expected = {value.name: _plain(d) for value, d in zip(graph.outputs, outputs, strict=True)}
    names = {name for node in graph.nodes for name in node.outputs if name}
    found = evaluate_graph(graph, feeds, keep=names | {value.name for value in graph.outputs})
    return Case(name, graph, feeds, expected, {**graph.initializers, **feeds, **found})


def _plain(data: Any) -> Any:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else data


def told(case: Case, mode: str, sizes: dict[str, int]) -> dict[str, TensorInfo]:
    """What inference is told of the inputs; adds the sizes of the symbols that it invents."""
    known: dict[str, TensorInfo] = {}
    counter = itertools.count()
    for value in case.graph.inputs:
        data = case.feeds.get(value.name)
        if value.container != "tensor" or not hasattr(data, "shape"):
            continue
        array = np.asarray(data)
        if value.dtype is None:
            continue
        shape = tuple(Dim.of(size) for size in array.shape)
        small = array.dtype.kind in "iu" and array.size <= 64
        if mode == "symbolic" and not small:
            names = [f"s{next(counter)}" for _ in array.shape]
            sizes.update(zip(names, array.shape, strict=True))
            shape = tuple(Dim.symbol(name) for name in names)
        content = array if mode == "constant" and (small or array.size == 1) else None
        known[value.name] = TensorInfo(dtype=value.dtype, shape=shape, content=content)
    return known


def check_case(case: Case, mode: str) -> Outcome:
    """Infers in one mode and compares with the arrays."""
    outcome = Outcome()
    sizes: dict[str, int] = {}
    found = infer(case.graph, told(case, mode, sizes))
    for name, data in case.feeds.items():
        _learn_input(found.tensors[name], data, sizes)
    for node in case.graph.nodes:
        if node.name not in found.nodes:
            outcome.problems.append(f"{node.op_type}: not inferred")
            continue
        info = found.nodes[node.name]
        try:
            _bind(info, case.values, sizes)
        except UserError as error:
            outcome.problems.append(f"{node.op_type}: binding: {error!r}")
            return outcome
        for made in filter(None, node.outputs):
            _compare(found, made, case.values[made], sizes, outcome, node.op_type)
    for name, data in case.expected.items():
        _compare(found, name, data, sizes, outcome, "result")
    return outcome


def _learn_input(info: TensorInfo, data: Any, sizes: dict[str, int]) -> None:
    if info.container != "tensor" or info.shape is None:
        return
    for dim, size in zip(info.shape, np.shape(data), strict=True):
        symbol = dim.as_symbol()
        if symbol is not None:
            sizes.setdefault(symbol, size)


def _bind(info: NodeInfo, values: Mapping[str, Any], sizes: dict[str, int]) -> None:
    for binding in info.bindings:
        arguments = [
            values[part.name]
            if isinstance(part, TensorArg)
            else tuple(dim.evaluate(sizes) for dim in part.dims)
            if isinstance(part, DimsArg)
            else part.value
            for part in binding.args
        ]
        results = BINDINGS[binding.function](*arguments)
        sizes.update(zip(binding.symbols, results, strict=True))


def _compare(
    found: Inference, name: str, data: Any, sizes: dict[str, int], outcome: Outcome, op_type: str
) -> None:
    info = found.tensors[name]
    container = "sequence" if isinstance(data, list) else "tensor"
    if info.container != container and info.container != "optional":
        outcome.problems.append(f"{op_type}: {name} is a {container}, not a {info.container}")
        return
    if container == "sequence" or data is None:
        for item in data or ():
            _compare_array(info, np.asarray(item), sizes, outcome, f"{op_type}: item of {name}")
        return
    array = np.asarray(data)
    if info.shape is None:
        outcome.unknown_rank.append(f"{op_type}: {name}")
        if from_numpy(array.dtype) is not info.dtype:
            outcome.problems.append(f"{op_type}: {name} is {array.dtype}, not {info.dtype}")
        return
    for dim, size in zip(info.shape, array.shape, strict=False):
        symbol = dim.as_symbol()
        if symbol is not None and symbol in found.late:
            sizes[symbol] = size
    _compare_array(info, array, sizes, outcome, f"{op_type}: {name}")
    if info.content is not None and op_type != "result":
        _compare_content(info.content, array, sizes, outcome, f"{op_type}: {name}")


def _compare_array(
    info: TensorInfo, array: Any, sizes: Mapping[str, int], outcome: Outcome, where: str
) -> None:
    outcome.num_checked += 1
    if from_numpy(array.dtype) is not info.dtype:
        outcome.problems.append(f"{where} is {array.dtype}, not {info.dtype}")
    if info.shape is None:
        return
    outcome.num_symbolic += not all(dim.is_const for dim in info.shape)
    try:
        shape = tuple(dim.evaluate(sizes) for dim in info.shape)
    except KeyError as error:
        outcome.problems.append(f"{where}: symbol {error} has no value")
        return
    if shape != array.shape:
        outcome.problems.append(f"{where} is {array.shape}, not {shape} ({info.shape})")


def _compare_content(
    content: Any, array: Any, sizes: Mapping[str, int], outcome: Outcome, where: str
) -> None:
    if array.dtype == object or content.shape != array.shape:
        return
    plain = np.array(
        [part.evaluate(sizes) if isinstance(part, Dim) else part for part in content.reshape(-1)],
        array.dtype,
    ).reshape(array.shape)
    if not np.array_equal(plain, array, equal_nan=array.dtype.kind in "fc"):
        outcome.problems.append(f"{where}: contents {plain} are {array}")
