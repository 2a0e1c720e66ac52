"""A graph to steps: kernels gathered in segments, host steps between them.

Input -> Output: a ``GraphView`` in normal form with its ``Inference`` -> ``DraftProgram`` (steps
with kernels, not yet compiled) and the constants that they read.
Guarantees: each step reads only what earlier steps, inputs or constants give; a node without a
kernel becomes an ``Interpret`` step with a decision that says why.
Not here: fusion (lower.fuse), machine code (compiler.compile_kernels).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import InternalError, InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.graph.info import TensorInfo
from tilewright.graph.shapes.infer import Inference
from tilewright.graph.view import GraphView, NodeView
from tilewright.kernel.dot import BYTES, DotKind
from tilewright.kernel.ir import Kernel
from tilewright.lower.context import Item, View
from tilewright.lower.fuse import fuse
from tilewright.lower.layout import choose_layouts
from tilewright.lower.lower_node import lower_node
from tilewright.lower.reindex import Refusal
from tilewright.runtime.program import (
    Bind,
    Blocked,
    Branch,
    Extent,
    Interpret,
    Program,
    Refuse,
    Repeat,
    Reshape,
    Sweep,
    TensorArg,
    TensorSpec,
)

_CONTROL = ("If", "Loop", "Scan")


@dataclass(slots=True)
class DraftSegment:
    """Kernels and views that run without the host in between.

    Attributes:
        items: in order.
        keep: names of what is read outside, known before fusion.
        stored: how values are stored, where not row by row.
        made: names of everything that was added.
        extents: of the values that the items compute, by their size.
    """

    items: list[Item] = field(default_factory=list)
    keep: tuple[str, ...] = ()
    stored: dict[str, Blocked] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    extents: dict[Dim, Extent] = field(default_factory=dict)

    def add(self, items: Iterable[Item]) -> None:
        """Appends items."""
        for item in items:
            self.items.append(item)
            self.made.update(_targets(item))

    def check(self, node: str, spec: TensorSpec) -> None:
        """Has a run check the symbolic sizes of a value that a node computes."""
        for dim in spec.shape or ():
            if not dim.is_const:
                self.extents.setdefault(dim, Extent(node=node, value=spec.name, dim=dim))

    def written(self) -> set[str]:
        """Names of everything that the items produce."""
        names: set[str] = set()
        for item in self.items:
            names.update(_targets(item))
        return names

    def read(self) -> set[str]:
        """Names of everything that the items load."""
        names: set[str] = set()
        for item in self.items:
            names.update(_sources(item))
        return names


@dataclass(slots=True)
class DraftProgram:
    """A program whose segments still hold kernels; sub-programs are drafts too."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: list[Any]

    def segments(self) -> Iterator[DraftSegment]:
        """Every segment in order, those of sub-programs too."""
        for step in self.steps:
            if isinstance(step, DraftSegment):
                yield step
            elif isinstance(step, DraftControl):
                for inner in step.programs.values():
                    yield from inner.segments()


@dataclass(slots=True)
class DraftControl:
    """A control-flow step: the finished record's fields, and drafts of its sub-programs by
    field.
    """

    kind: type
    fields: dict[str, Any]
    programs: dict[str, DraftProgram]
    reads: tuple[str, ...]


@dataclass(slots=True)
class Builder:
    """Builds the draft of a graph and its sub-graphs.

    Attributes:
        inference: infos of all values and nodes.
        constants: filled with every array that steps read.
        interpreted: (node, operator, reason) of each node without a kernel.
        became: ``kernel``, ``view``, ``known`` or ``host`` by node; none where it is never reached.
        num_kernels: kernels before fusion.
        inputs: of the graph that was built first, the model's.
        signed_bytes: as for ``Lowering``.
    """

    inference: Inference
    log: DecisionLog
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    interpreted: list[tuple[str, str, str]] = field(default_factory=list)
    became: dict[str, str] = field(default_factory=dict)
    num_kernels: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    signed_bytes: bool = False

    def build(self, view: GraphView) -> DraftProgram:
        """Builds one graph; its initializers become constants."""
        self.constants.update(view.initializers)
        inputs = tuple(
            self._spec(value.name) for value in view.inputs if value.name not in view.initializers
        )
        self.inputs = self.inputs or inputs
        steps: list[Any] = self._refusal(view)
        segment = DraftSegment()
        for node in () if steps else view.nodes:
            segment = self._node(node, steps, segment)
        if segment.items:
            steps.append(segment)
        outputs = tuple(self._spec(value.name) for value in view.outputs)
        return DraftProgram(inputs, outputs, steps)

    def _refusal(self, view: GraphView) -> list[Any]:
        """A branch with a node that cannot run with any sizes is nothing but its error."""
        for node in view.nodes:
            reason = self.inference.deferred.get(node.name)
            if reason is not None:
                self.log.add("lower", node.name, f"an error if it is ever reached: {reason}")
                return [Refuse(node=node.name, message=reason + self._origins(reason))]
        return []

    def _origins(self, reason: str) -> str:
        """Which inputs the sizes in a message are of."""
        axes = [
            f"{dim} is axis {axis} of input {spec.name!r}"
            for spec in self.inputs
            for axis, dim in enumerate(spec.shape or ())
            if dim.symbols and re.search(rf"(?<!\w){re.escape(str(dim))}(?!\w)", reason)
        ]
        return f", where {', '.join(axes)}" if axes else ""

    # --- nodes -----------------------------------------------------------------------------------

    def _node(self, node: NodeView, steps: list[Any], segment: DraftSegment) -> DraftSegment:
        if node.domain == "" and node.op_type in _CONTROL:
            self.became[node.name] = "host"
            return self._host(steps, segment, self._control(node))
        info = self.inference.nodes[node.name]
        if all(self._is_known(name) for name in node.outputs if name):
            for name in node.outputs:
                if name:
                    self.constants[name] = _content(self.inference.tensors[name])
            self.became[node.name] = "known"
            return segment
        for binding in info.bindings:
            step = Bind(
                function=binding.function,
                args=binding.args,
                symbols=binding.symbols,
                node=node.name,
            )
            segment = self._host(steps, segment, step)
        tensors = self.inference.tensors
        lowered = lower_node(node, info, tensors, signed_bytes=self.signed_bytes)
        if isinstance(lowered, Refusal):
            self.became[node.name] = "host"
            return self._host(steps, segment, self._interpret(node, lowered.reason))
        is_view = all(isinstance(item, View) for item in lowered.items)
        self.became[node.name] = "view" if is_view else "kernel"
        self.constants.update(lowered.constants)
        segment.add(lowered.items)
        for name in filter(None, node.outputs):
            segment.check(node.name, self._spec(name))
        self.num_kernels += sum(isinstance(item, Kernel) for item in lowered.items)
        return segment

    def _is_known(self, name: str) -> bool:
        info = self.inference.tensors.get(name)
        return info is not None and info.content is not None and info.content.dtype != object

    def _host(self, steps: list[Any], segment: DraftSegment, step: Any) -> DraftSegment:
        """Adds a host step; what it reads must have been computed before."""
        if not segment.made.isdisjoint(step_reads(step)):
            steps.append(segment)
            segment = DraftSegment()
        steps.append(step)
        return segment

    def _interpret(self, node: NodeView, reason: str) -> Interpret:
        label = f"{node.domain + '.' if node.domain else ''}{node.op_type}"
        self.interpreted.append((node.name, label, reason))
        self.log.add("lower", node.name, "interpreted by NumPy", (("compile", reason),))
        for name, value in node.attributes.items():
            if isinstance(value, GraphView):
                raise InvalidModel(
                    f"{label} with the sub-graph {name} has neither a kernel nor a host step",
                    node=node.name,
                    remedy="write the operator with If, Loop or Scan",
                )
        return Interpret(
            node=node.name,
            domain=node.domain,
            op_type=node.op_type,
            opset=node.opset,
            attributes=dict(node.attributes),
            inputs=node.inputs,
            outputs=tuple(self._spec(name) if name else None for name in node.outputs),
        )

    def _spec(self, name: str) -> TensorSpec:
        info = self.inference.tensors[name]
        return TensorSpec(name=name, dtype=info.dtype, shape=info.shape, container=info.container)

    # --- control flow ----------------------------------------------------------------------------

    def _control(self, node: NodeView) -> DraftControl:
        outputs = tuple(self._spec(name) if name else None for name in node.outputs)
        common = {"node": node.name, "outputs": outputs}
        match node.op_type:
            case "If":
                return self._if(node, common)
            case "Loop":
                body = self.build(node.attributes["body"])
                trips, condition = (*node.inputs, None, None)[:2]
                carried = tuple(_required(node, name) for name in node.inputs[2:])
                fields = {**common, "trips": trips, "condition": condition, "carried": carried}
                reads = tuple(name for name in (trips, condition, *carried) if name)
                return DraftControl(Repeat, fields, {"body": body}, reads)
        return self._scan(node, common)

    def _if(self, node: NodeView, common: dict[str, Any]) -> DraftControl:
        condition = _required(node, node.inputs[0])
        known = self.inference.tensors[condition].content
        chosen = None if known is None or known.dtype == object else bool(known.reshape(-1)[0])
        empty = DraftProgram((), (), [])
        then = empty if chosen is False else self.build(node.attributes["then_branch"])
        other = empty if chosen is True else self.build(node.attributes["else_branch"])
        fields = {**common, "condition": condition}
        return DraftControl(Branch, fields, {"then": then, "otherwise": other}, (condition,))

    def _scan(self, node: NodeView, common: dict[str, Any]) -> DraftControl:
        body_view: GraphView = node.attributes["body"]
        scans = int(node.attributes["num_scan_inputs"])
        names = tuple(_required(node, name) for name in node.inputs)
        carried, scanned = names[: len(names) - scans], names[len(names) - scans :]
        made = len(body_view.outputs) - len(carried)
        axes = tuple(int(a) for a in node.attribute("scan_input_axes", [0] * scans))
        fields = {
            **common,
            "carried": carried,
            "scanned": scanned,
            "input_axes": axes,
            "input_reversed": _flags(node, "scan_input_directions", scans),
            "output_axes": tuple(int(a) for a in node.attribute("scan_output_axes", [0] * made)),
            "output_reversed": _flags(node, "scan_output_directions", made),
        }
        return DraftControl(Sweep, fields, {"body": self.build(body_view)}, names)


def _flags(node: NodeView, name: str, count: int) -> tuple[bool, ...]:
    return tuple(bool(flag) for flag in node.attribute(name, [0] * count))


def _required(node: NodeView, name: str | None) -> str:
    if name is None:
        raise InvalidModel(
            "a required input is absent", node=node.name, remedy="give the node all its inputs"
        )
    return name


def _content(info: TensorInfo) -> npt.NDArray[Any]:
    if info.content is None:
        raise InternalError("a known value has no content")
    return np.asarray(info.content)


def _targets(item: Item) -> list[str]:
    return [item.target.name] if isinstance(item, View) else [b.name for b in item.outputs]


def _sources(item: Item) -> list[str]:
    return [item.source.name] if isinstance(item, View) else [b.name for b in item.inputs]


def step_reads(step: Any) -> set[str]:
    """Names of the values that a step reads, those of its sub-programs included."""
    match step:
        case DraftSegment():
            return step.read()
        case Refuse():
            return set()
        case Bind():
            return {arg.name for arg in step.args if isinstance(arg, TensorArg)}
        case Interpret():
            return {name for name in step.inputs if name}
        case Reshape():
            return {step.source}
        case DraftControl():
            inner = [program_reads(program) for program in step.programs.values()]
            return set(step.reads).union(*inner)
    raise InternalError(f"no step {type(step).__name__}")


def program_reads(program: DraftProgram) -> set[str]:
    """Everything that a draft's steps and outputs read."""
    names = {spec.name for spec in program.outputs}
    return names.union(*(step_reads(step) for step in program.steps))


# --- fusion over a draft --------------------------------------------------------------------------


def fuse_program(program: DraftProgram, outer: Iterable[str], log: DecisionLog) -> None:
    """Fuses every segment in place; ``outer`` are values read after the program."""
    needed = set(outer) | {spec.name for spec in program.outputs}
    for step in reversed(program.steps):
        if isinstance(step, DraftSegment):
            step.keep = tuple(sorted(step.written() & needed))
            step.items = fuse(step.items, step.keep, log)
        elif isinstance(step, DraftControl):
            for inner in step.programs.values():
                fuse_program(inner, needed, log)
        needed |= step_reads(step)
    program.steps = [
        step for step in program.steps if not isinstance(step, DraftSegment) or step.items
    ]


def layout_program(
    program: DraftProgram,
    constants: dict[str, npt.NDArray[Any]],
    block: int,
    log: DecisionLog,
    disabled: Collection[str] = (),
    *,
    least_block: int | None = None,
    dots: Collection[DotKind] = (BYTES,),
) -> None:
    """Chooses layouts in every segment, in place; packed arrays join the constants."""
    for step in program.steps:
        if isinstance(step, DraftSegment):
            step.items, packed, step.stored = choose_layouts(
                step.items,
                step.keep,
                constants,
                block,
                log,
                disabled,
                least_block=least_block,
                dots=dots,
            )
            constants.update(packed)
        elif isinstance(step, DraftControl):
            for inner in step.programs.values():
                layout_program(
                    inner, constants, block, log, disabled, least_block=least_block, dots=dots
                )


def finished(fields: Mapping[str, Any], kind: type, programs: Mapping[str, Program]) -> Any:
    """The control-flow record of a draft whose sub-programs are finished."""
    return kind(**fields, **programs)
