"""One engine of a random model against the reference, at several sizes.

Input -> Output: a ``Sample`` -> the disagreements, as texts; ``smallest`` finds the first wrong
value.
Tolerance: as in ``compiler.verify``, plus what rounding in the model's own types already costs.
Not here: making models (strategies).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import tilewright as tw
from fence import fenced
from property.draft import Value
from property.strategies import Sample
from tilewright.compiler.compare import tolerance_of
from tilewright.core.errors import UserError
from tilewright.runtime.engine import Engine

Array = npt.NDArray[Any]
_ROUNDINGS = 6  # how much worse than the reference in the model's own types an engine may round
_NOTHING = 1e-30


def build(model: onnx.ModelProto, *, threads: int = 1) -> Engine:
    """Compiles without verifying; kernels come from the cache of the session."""
    return tw.compile(model, verify=False, threads=threads)


def check(sample: Sample, folder: Path | None = None, threads: int = 0) -> list[str]:
    """Runs one engine on all feeds, right before pages that cannot be read; compares at the end.

    Args:
        folder: save and load the engine there before it runs.
        threads: of the engine; 1 or 2 by default.
    """
    try:
        engine = build(sample.model, threads=threads or 1 + sample.seed % 2)
    except UserError as error:
        return [f"refused although the reference accepts it: {error}"]
    if folder is not None:
        engine.save(folder / "engine.tw")
        engine = tw.load(folder / "engine.tw")
    results: list[Mapping[str, Any]] = []
    problems: list[str] = []
    for run, feed in enumerate(sample.feeds):
        given = {name: fenced(array) for name, array in feed.items()}
        try:
            results.append(engine.run(given))
        except UserError as error:
            return [f"run {run} refused although the reference accepts it: {error}"]
        problems += [
            f"run {run} changed its input {name}"
            for name, array in feed.items()
            if array.tobytes() != given[name].tobytes()
        ]
    for run, result in enumerate(results):
        for value in sample.outputs:
            found = difference(value, run, np.asarray(result[value.name]))
            if found:
                problems.append(f"run {run}, {value.name}: {found}")
    return problems


def difference(value: Value, run: int, got: Array) -> str:
    """What is wrong with an output, or nothing."""
    narrow, wide = value.narrow[run], value.wide[run]
    if got.dtype != narrow.dtype:
        return f"type {got.dtype}, expected {narrow.dtype}"
    if got.shape != narrow.shape:
        return f"shape {list(got.shape)}, expected {list(narrow.shape)}"
    if not got.size:
        return ""
    if not value.dtype.is_float:
        wrong = (got != narrow) & (got != wide)
        return f"{int(wrong.sum())} of {wrong.size} values differ" if wrong.any() else ""
    return _float_difference(value, got.astype(np.float64), narrow.astype(np.float64), wide)


def _float_difference(value: Value, got: Array, narrow: Array, wide: Array) -> str:
    same = (got == wide) | (got == narrow) | (np.isnan(got) & (np.isnan(wide) | np.isnan(narrow)))
    special = ~(np.isfinite(got) & np.isfinite(narrow) & np.isfinite(wide))
    if not same[special].all():
        return f"NaN or infinity in other places: {_example(got, narrow, special & ~same)}"
    usual = ~special
    if not usual.any():
        return ""
    got, narrow, wide = (np.where(usual, array, 0.0) for array in (got, narrow, wide))
    scale = float(np.abs(wide).max())
    rounding = float(np.abs(wide - narrow).max())
    error = float(np.abs(got - wide).max())
    # Arithmetic that is exact in both precisions has one result, whatever the order.
    allowed = tolerance_of(value.dtype) * max(scale, 0.1) + _ROUNDINGS * rounding
    allowed = allowed if value.noisy else 0.0
    if error <= allowed + _NOTHING:
        return ""
    where = usual & (np.abs(got - wide) == error)
    return f"error {error:.3g}, allowed {allowed:.3g}: {_example(got, narrow, where)}"


def _example(got: Array, narrow: Array, where: Array) -> str:
    place = tuple(int(index[0]) for index in np.nonzero(where))
    return f"at {list(place)} {got[place]!r}, expected {narrow[place]!r}"


def report(sample: Sample, problems: Sequence[str]) -> str:
    """The failure with its reproducer."""
    return "\n".join([*problems[:4], sample.text, f"smallest wrong part: {smallest(sample)}"])


def smallest(sample: Sample) -> str:
    """The first value that is wrong when it is computed alone, with the nodes that it needs."""
    for node in sample.model.graph.node:
        for name in node.output:
            part = cut(sample.model, name)
            found = _alone(sample, part, name)
            if found:
                lines = [
                    f"{list(n.output)} = {n.op_type}({list(n.input)})" for n in part.graph.node
                ]
                return "\n    ".join([f"{name}: {found}", *lines])
    return "only as a whole"


def _alone(sample: Sample, part: onnx.ModelProto, name: str) -> str:
    needed = {value.name for value in part.graph.input}
    try:
        engine = build(part)
        for run, feed in enumerate(sample.feeds):
            given = {key: array for key, array in feed.items() if key in needed}
            found = difference(sample.values[name], run, np.asarray(engine.run(given)[name]))
            if found:
                return f"run {run}: {found}"
    except UserError as error:
        return str(error)
    return ""


def cut(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model of one value alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = onnx.ModelProto()
        part.CopyFrom(model)
    keep: set[str] = {output}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if keep & set(node.output):
            nodes.insert(0, node)
            keep |= set(reads(node))
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(nodes)
    part.graph.output.append(onnx.ValueInfoProto(name=output))
    kept_inputs = [value for value in model.graph.input if value.name in keep]
    del part.graph.input[:]
    part.graph.input.extend(kept_inputs)
    return part


def reads(node: onnx.NodeProto) -> list[str]:
    """Every name that a node or its sub-graphs read."""
    names = list(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names += reads(inner)
        names += [value.name for value in attribute.g.output]
    return names
