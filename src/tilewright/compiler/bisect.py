"""The first wrong value of an engine, and what computes it.

Input -> Output: an engine, its model's graph and inputs -> ``Fault``, or None where all is right.
Method: the engine's values are observed; each is compared with the reference, evaluated from the
nearest values before it as the engine itself has them, so that a fault shows where it arises and
not where it ends up. Nothing is compiled again, so fused kernels are judged as they are.
Not here: small models that reproduce a fault (compiler.reproducer).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.compiler.compare import OutputError, compare_nearest, compare_output
from tilewright.compiler.nudge import nudged_values, sensitivity
from tilewright.compiler.observe import observe
from tilewright.compiler.pipeline import needs_expansion
from tilewright.core.dtypes import STRING, DType, from_numpy
from tilewright.core.errors import UserError
from tilewright.graph.facade import Model
from tilewright.graph.reference import evaluate_graph, names_read
from tilewright.graph.view import GraphView, NodeView, ValueView
from tilewright.runtime.engine import Engine
from tilewright.runtime.program import KernelCall, Program, Segment

_NEAR_WORST = 0.1  # a value this near to the worst one may be the origin of the fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The nodes between a value and the nearest values that the engine wrote before it."""

    value: str
    inputs: tuple[str, ...]
    nodes: tuple[NodeView, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Name and operator of each node."""
        return tuple(f"{node.name} ({node.op_type})" for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Where an engine first differs from its model.

    Attributes:
        cause: ``kernel``, ``host step``, ``graph pass``, ``memory plan``, ``rounding`` or
            ``unknown``.
        found: the value and its error against the reference on the engine's own inputs to it.
        region: the nodes that compute it from those inputs.
        kernel: the kernel that wrote it, None for a host step.
        detail: what else is known, such as the pass.
        values: what the engine wrote, for a reproducer.
    """

    cause: str
    found: OutputError
    region: Region
    kernel: KernelCall | None
    detail: str = ""
    values: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def lines(self) -> tuple[str, ...]:
        """What to tell a person."""
        found, region = self.found, self.region
        error = f"error {found.error:.2e}" + (f", {found.detail}" if found.detail else "")
        lines = [
            f"first wrong value: {found.name!r} ({error})",
            f"  computed by {', '.join(region.labels)}",
            f"  from {', '.join(map(repr, region.inputs)) or 'constants'}",
        ]
        if self.kernel is not None:
            nodes = "+".join(self.kernel.sources)
            lines.append(f"  in kernel {self.kernel.kernel} of {nodes}")
        lines.append(f"  cause: {self.cause}" + (f": {self.detail}" if self.detail else ""))
        return tuple(lines)


def find_fault(
    engine: Engine, model: Model, feeds: Mapping[str, Any], *, least: float = 0.0
) -> Fault | None:
    """Finds where an engine first differs from its model.

    Args:
        engine: compiled from the model.
        model: the same model; names that its imported graph shares with the engine denote equal
            values.
        feeds: inputs on which the engine's outputs are wrong.
        least: how far any float value may be from what its inputs give.

    Returns:
        The origin of the largest error that no input justifies; None where nothing can be compared.

    Raises:
        UserError: the engine or the reference refuses the inputs.
    """
    values = observe(engine, feeds)
    unjudged: list[str] = []
    found = list(_errors(model.original, values, unjudged, least))
    if not found:
        return None
    wrong = [pair for pair in found if not pair[1].passed]
    if wrong:
        worst = max(_size(error) for _, error in wrong)
        region, error = next(pair for pair in wrong if _size(pair[1]) >= _NEAR_WORST * worst)
        cause, detail = _cause(model, region, values)
    else:
        region, error = max(found, key=lambda pair: _size(pair[1]))
        cause, detail = _cause_without_origin(engine, feeds, values, unjudged)
    kernel = writer(engine.program, region.value)
    if cause == "kernel" and kernel is None:
        cause = "host step"
    return Fault(
        cause=cause, found=error, region=region, kernel=kernel, detail=detail, values=values
    )


def _cause(model: Model, region: Region, values: Mapping[str, Any]) -> tuple[str, str]:
    """The graph passes, if the graph that was compiled gives what the engine gave."""
    compiled = model.view()
    mine = next((r for r in regions(compiled, values.keys()) if r.value == region.value), None)
    if mine is None:
        return "kernel", ""
    try:
        after = _evaluate(compiled, mine, values, wide=True)
    except UserError:
        return "kernel", ""
    got = values[region.value]
    if not compare_output(region.value, _dtype(got), got, after, after).passed:
        return "kernel", ""
    feeds = {value.name: values[value.name] for value in model.original.inputs}
    guilty = model.find_wrong_pass(feeds, needs_expansion)
    return "graph pass", guilty or f"the compiled graph has {', '.join(mine.labels)}"


def _cause_without_origin(
    engine: Engine, feeds: Mapping[str, Any], values: Mapping[str, Any], unjudged: Collection[str]
) -> tuple[str, str]:
    """No value is wrong by itself: memory was shared wrongly, or rounding added up."""
    for name, got in engine.run(feeds).items():
        if isinstance(got, np.ndarray) and not _same(got, values[name]):
            return "memory plan", "with memory of its own for each value, the outputs differ"
    if unjudged:
        return "unknown", f"not judged by themselves: {', '.join(unjudged)}"
    return "rounding", "each value is right by itself; this one has the largest error"


def _same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _size(error: OutputError) -> float:
    return min(error.error, 1.0)


def _errors(
    graph: GraphView, values: Mapping[str, Any], unjudged: list[str], least: float
) -> Iterator[tuple[Region, OutputError]]:
    """The error of each value on the engine's own inputs to it; adds to what has none."""
    for region in regions(graph, values.keys()):
        got = values[region.value]
        if not isinstance(got, np.ndarray):
            unjudged.append(region.value)
            continue
        try:
            yield region, _error(graph, region, values, least)
        except UserError:
            unjudged.append(region.value)  # the reference refuses what an earlier fault made


def _error(
    graph: GraphView, region: Region, values: Mapping[str, Any], least: float
) -> OutputError:
    """Against float64; then also against the stated types, and allowing for what rounding does."""
    name, got = region.value, values[region.value]

    def compared(wants: Sequence[Any]) -> OutputError:
        found = compare_nearest(name, _dtype(got), got, wants)
        allowed = max(found.tolerance, least) if found.tolerance else 0.0
        return replace(found, tolerance=allowed)

    wants = [_evaluate(graph, region, values, wide=True)]
    error = compared(wants)
    if not error.passed:
        wants.append(_evaluate(graph, region, values, wide=False))
        error = compared(wants)
    if error.passed:
        return error
    part, feeds = part_of(graph, region), {read: values[read] for read in region.inputs}
    moved = list(nudged_values(part, feeds, name))
    if moved:
        return compared([*wants, *moved])
    allowed = max(error.tolerance, sensitivity(part, feeds, name) if error.tolerance else 0.0)
    return replace(error, tolerance=allowed)


def _evaluate(graph: GraphView, region: Region, values: Mapping[str, Any], *, wide: bool) -> Any:
    feeds = {name: values[name] for name in region.inputs}
    return evaluate_graph(part_of(graph, region), feeds, wide=wide)[region.value]


def _dtype(array: Any) -> DType:
    return STRING if array.dtype == object else from_numpy(array.dtype)


def regions(graph: GraphView, known: Collection[str]) -> Iterator[Region]:
    """The region of each known value that a node of the graph makes, in the graph's order."""
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        for name in node.outputs:
            if name and name in known:
                inputs: dict[str, None] = {}
                inside = {node.name: node}
                waiting = [node]
                while waiting:
                    for read in sorted(names_read(waiting.pop())):
                        maker = makers.get(read)
                        if read in known:
                            inputs[read] = None
                        elif maker is not None and maker.name not in inside:
                            inside[maker.name] = maker
                            waiting.append(maker)
                nodes = tuple(sorted(inside.values(), key=lambda item: order[item.name]))
                yield Region(value=name, inputs=tuple(inputs), nodes=nodes)


def part_of(graph: GraphView, region: Region) -> GraphView:
    """A region as a graph of its own."""
    return replace(
        graph,
        inputs=tuple(ValueView(name=name, dtype=None, shape=None) for name in region.inputs),
        outputs=(ValueView(name=region.value, dtype=None, shape=None),),
        nodes=region.nodes,
    )


def writer(program: Program, value: str) -> KernelCall | None:
    """The kernel call that writes a value."""
    for step in program.steps:
        if isinstance(step, Segment):
            inputs = {spec.name for spec in step.inputs}
            for call in step.calls:
                if value in call.buffers and value not in inputs:
                    return call  # the first call that names it writes it
    return None
