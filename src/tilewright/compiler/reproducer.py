"""A small model that shows a fault of an engine.

Input -> Output: a model, its engine's ``Fault``, a folder -> ``model.onnx``, ``inputs.npz``.
Method: parts of the wrong value's region, smallest first, are compiled by themselves on the inputs
that the engine had; the first that is wrong too is kept.
Guarantees: ``tilewright verify model.onnx --npz inputs.npz`` fails, unless the result says that no
part was wrong by itself.
Not here: finding the fault (compiler.bisect).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.bisect import Fault, Region, part_of
from tilewright.core.dtypes import STRING, from_numpy
from tilewright.core.errors import UserError
from tilewright.core.npz import save_npz
from tilewright.core.plural import plural
from tilewright.core.shape import Dim
from tilewright.core.whole_file import whole_files
from tilewright.graph.facade import Model
from tilewright.graph.info import TensorInfo
from tilewright.graph.reference import evaluate_graph, names_read
from tilewright.graph.shapes import infer
from tilewright.graph.view import NodeView

MAX_NODES = 5
MODEL_FILE, INPUTS_FILE = "model.onnx", "inputs.npz"
Fails = Callable[[Path, Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproducer:
    """What was written.

    Attributes:
        reproduces: whether the small model is wrong by itself.
    """

    model: Path
    inputs: Path
    nodes: tuple[str, ...]
    reproduces: bool

    def __str__(self) -> str:
        count = f"{plural(len(self.nodes), 'node')}: {', '.join(self.nodes)}"
        note = "" if self.reproduces else "\n  but by itself this part is right"
        return f"{self.model} and {self.inputs.name}, {count}{note}"


def write_reproducer(model: Model, fault: Fault, folder: Path, fails: Fails) -> Reproducer:
    """Writes the smallest part around a fault that is wrong by itself.

    Args:
        model: the model that the engine was compiled from.
        fault: of that engine.
        folder: made if need be.
        fails: whether a model file is wrong on inputs.

    Raises:
        CacheError: the folder cannot be written.
    """
    values = _all_values(model, fault)
    infos = _infos(model, values)
    with tempfile.TemporaryDirectory(prefix="tilewright-reproducer-") as scratch:
        path = Path(scratch) / "model.onnx"
        for region in _parts(fault.region, values):
            feeds = {name: values[name] for name in region.inputs}
            model.extract(region.inputs, [region.value], path, infos)
            try:
                wrong = fails(path, feeds)
            except UserError:
                continue  # this part cannot be compiled by itself
            if wrong:
                return _write(model, region, folder, values, infos, reproduces=True)
    return _write(model, fault.region, folder, values, infos, reproduces=False)


def _write(
    model: Model,
    region: Region,
    folder: Path,
    values: Mapping[str, Any],
    infos: Mapping[str, TensorInfo],
    *,
    reproduces: bool,
) -> Reproducer:
    with whole_files(folder) as unfinished:
        model.extract(region.inputs, [region.value], unfinished / MODEL_FILE, infos)
        arrays = {name: np.asarray(values[name]) for name in region.inputs}
        save_npz(unfinished / INPUTS_FILE, arrays)
    return Reproducer(
        model=folder / MODEL_FILE,
        inputs=folder / INPUTS_FILE,
        nodes=region.labels,
        reproduces=reproduces,
    )


def _parts(region: Region, values: Mapping[str, Any]) -> Iterator[Region]:
    """Connected parts of a region, smallest first; the whole region last."""
    seen: set[tuple[str, ...]] = set()
    for size in range(1, min(MAX_NODES, len(region.nodes) - 1) + 1):
        for sink in region.nodes:
            part = _part(region, sink, size, values)
            names = tuple(node.name for node in part.nodes)
            if len(names) == size and names not in seen:
                seen.add(names)
                yield part
    yield region


def _part(region: Region, sink: NodeView, size: int, values: Mapping[str, Any]) -> Region:
    """A node and up to ``size - 1`` of those nearest before it."""
    makers = {name: node for node in region.nodes for name in node.outputs if name}
    chosen = {sink.name: sink}
    waiting = [sink]
    while waiting and len(chosen) < size:
        for name in sorted(names_read(waiting.pop(0))):
            node = makers.get(name)
            if node is not None and node.name not in chosen and len(chosen) < size:
                chosen[node.name] = node
                waiting.append(node)
    nodes = tuple(node for node in region.nodes if node.name in chosen)
    made = {name for node in nodes for name in node.outputs if name}
    read = {name: None for node in nodes for name in sorted(names_read(node)) if name not in made}
    value = next(name for name in sink.outputs if name)
    if region.value in sink.outputs:
        value = region.value
    return Region(value=value, inputs=tuple(name for name in read if name in values), nodes=nodes)


def _all_values(model: Model, fault: Fault) -> dict[str, Any]:
    """The inputs of the region as the engine had them, and the reference's values inside it."""
    region, graph = fault.region, model.original
    feeds = {name: fault.values[name] for name in region.inputs}
    inner = [name for node in region.nodes for name in node.outputs if name]
    try:
        made = evaluate_graph(part_of(graph, region), feeds, keep=inner)
    except UserError:
        made = {}  # the reference refuses these inputs; the region as a whole may still show it
    return {**made, **feeds}


def _infos(model: Model, values: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Types and ranks of values; sizes stay symbolic where they are in the model."""
    known = infer(model.original).tensors
    symbols: dict[str, str] = {}
    infos: dict[str, TensorInfo] = {}
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            continue
        info = known.get(name)
        shape = info.shape if info is not None else None
        dims: list[Dim] = []
        for axis, size in enumerate(value.shape):
            dim = shape[axis] if shape is not None and len(shape) == value.ndim else None
            if dim is None or dim.is_const:
                dims.append(Dim.of(size))
            else:
                # A formula of sizes that this part does not see becomes a size of its own.
                dims.append(Dim.symbol(symbols.setdefault(str(dim), f"d{len(symbols)}")))
        dtype = STRING if value.dtype == object else from_numpy(value.dtype)
        infos[name] = TensorInfo(dtype=dtype, shape=tuple(dims))
    return infos
