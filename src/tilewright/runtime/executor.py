"""Runs a program: native segments, and between them what needs the host.

Input -> Output: a ``Program``, constants, loaded kernels; arrays by name -> values of the
outputs.
Guarantees: safe from several threads at once (all state of a run is its own; plans lease
contexts); symbols that a step sets are checked against the shapes that were promised.
Not here: validation of the caller's arrays (runtime.feeds), control flow (runtime.control).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tilewright.core.dim_program import DimProgram
from tilewright.core.dtypes import STRING
from tilewright.core.errors import OutOfMemory, OutOfRange, ShapeMismatch
from tilewright.core.forks import renew_in_child
from tilewright.runtime import control
from tilewright.runtime.bindings import BINDINGS
from tilewright.runtime.checks import arguments, shape_of
from tilewright.runtime.cpu.allocator import address_of, empty_at, prepare_results, refused
from tilewright.runtime.cpu.arena_pool import ArenaPool
from tilewright.runtime.feeds import bind_shape
from tilewright.runtime.program import (
    Bind,
    Branch,
    DimsArg,
    Interpret,
    Program,
    Refuse,
    Repeat,
    Reshape,
    Segment,
    Step,
    Sweep,
    TensorArg,
    TensorSpec,
)
from tilewright.runtime.segment import Context, SegmentPlan
from tilewright.runtime.segment_layout import SegmentLayout, segment_symbols

MAX_PLANS = 16
MAX_SIZES = 4096  # of steps that compute sizes from sizes
Array = npt.NDArray[Any]


@dataclass(slots=True)
class Run:
    """The state of one run: values and sizes found so far."""

    values: dict[str, Any]
    symbols: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, tuple[Array, int]] = field(default_factory=dict)


class Watch(Protocol):
    """What a profiler puts between an executor and its work."""

    def host_step(self, step: Step, work: Callable[[], None]) -> None:
        """Does the work of a step other than a segment."""

    def launch(self, segment: Segment, context: Context) -> None:
        """Runs a segment's kernels."""


class Executor:
    """Executes the steps of an engine's program.

    Args:
        constants: arrays by name (weights, folded values).
        native: loaded kernels and the thread pool.
        largest: sizes that dims are declared not to exceed.
    """

    def __init__(
        self,
        constants: Mapping[str, Array],
        native: Any,
        largest: Mapping[str, int] | None = None,
    ) -> None:
        # Plans keep the addresses of constants, so they are row-major from the start.
        self.constants = {
            name: array if array.flags.c_contiguous else array.copy(order="C")
            for name, array in constants.items()
        }
        self.native = native
        self._largest = largest or {}
        self._watch: Watch | None = None
        self._plans: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        # Of each step that has run; the step is kept, so that its id stays its own.
        self._symbols: dict[int, tuple[Step, tuple[str, ...]]] = {}
        self._layouts: dict[int, SegmentLayout] = {}
        self._dims: dict[int, DimProgram] = {}
        self._sizes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._arenas = ArenaPool()
        self._lock = Lock()
        renew_in_child(self, "_lock")

    def watched(self, watch: Watch) -> Executor:
        """An executor that a profiler watches; plans and memory are shared with this one.

        It is of the same class: Python runs methods slower once objects of two classes use them.
        """
        other = Executor(self.constants, self.native, self._largest)
        other._watch = watch
        other._plans, other._symbols, other._lock = self._plans, self._symbols, self._lock
        other._sizes, other._arenas = self._sizes, self._arenas
        other._layouts, other._dims = self._layouts, self._dims
        return other

    def value(self, run: Run, name: str) -> Any:
        """A value that exists by now: computed, fed or constant."""
        found = run.values.get(name)
        return self.constants[name] if found is None and name in self.constants else found

    def adopt(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Feeds, with the arrays of other devices as this executor uses them."""
        return feeds

    def run(
        self, program: Program, values: dict[str, Any], symbols: dict[str, int]
    ) -> tuple[list[Any], dict[str, int]]:
        """Runs a whole program: values of its outputs, and all sizes.

        Raises:
            UserError: see ``execute``.
        """
        run = Run(values, symbols)
        self.execute(program, run)
        return self.outputs(program, run), run.symbols

    def execute(self, program: Program, run: Run) -> None:
        """Runs all steps; results are in ``run.values``.

        Raises:
            OutOfMemory: a value or the arena does not fit into this machine.
            OutOfRange: an index in the data lies outside of its tensor.
            ShapeMismatch: a data-dependent shape contradicts another.
        """
        for step in program.steps:
            if isinstance(step, Segment):
                self._segment(step, run)
                continue
            try:
                if self._watch is None:
                    self._host_step(step, run)
                else:
                    self._watch.host_step(step, partial(self._host_step, step, run))
            except (ShapeMismatch, OutOfRange, OutOfMemory) as error:
                error.node = error.node or getattr(step, "node", None)
                raise
            except MemoryError as error:
                no_room = refused(error, "a value")
                no_room.node = getattr(step, "node", None)
                raise no_room from error

    def _host_step(self, step: Step, run: Run) -> None:
        match step:
            case Bind():
                self._bind(step, run)
            case Interpret():
                self._interpret(step, run)
            case Reshape():
                self._reshape(step, run)
            case Refuse():
                raise ShapeMismatch(step.message, node=step.node, remedy="feed other sizes")
            case Branch():
                control.branch(self, step, run)
            case Repeat():
                control.repeat(self, step, run)
            case Sweep():
                control.sweep(self, step, run)

    def outputs(self, program: Program, run: Run) -> list[Any]:
        """Values of a program's outputs, in order."""
        return [self.value(run, spec.name) for spec in program.outputs]

    # --- segments --------------------------------------------------------------------------------

    def make_plan(self, segment: Segment, sizes: Mapping[str, int]) -> Any:
        """A plan for new sizes."""
        layout = self._layouts.get(id(segment))
        if layout is None:
            layout = SegmentLayout(segment, self.native.address, self.constants)
            self._layouts[id(segment)] = layout
            names = layout.dims.names
            if names and set(names) <= self._largest.keys():
                self._arenas.prepare(layout.arena_bytes(self._largest))
                prepare_results(layout.output_bytes(self._largest))
        return SegmentPlan(layout, dict(sizes), self._arenas)

    def plan(self, segment: Segment, symbols: Mapping[str, int]) -> Any:
        """The plan for the current sizes, from a bounded cache."""
        names = self._names(segment)
        key = (id(segment), *(symbols[name] for name in names))
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                return found
        made = self.make_plan(segment, symbols)
        with self._lock:
            found = self._plans.setdefault(key, made)
            while len(self._plans) > max(MAX_PLANS, 4 * len(self._symbols)):
                self._plans.popitem(last=False)
        return found

    def _names(self, step: Segment | Bind) -> tuple[str, ...]:
        """The sizes that a step depends on."""
        known = self._symbols.get(id(step))
        if known is None:
            names = segment_symbols(step) if isinstance(step, Segment) else self._add_bind(step)
            known = self._symbols[id(step)] = (step, names)
        return known[1]

    def _add_bind(self, step: Bind) -> tuple[str, ...]:
        self._dims[id(step)] = dims = DimProgram()
        for arg in step.args:
            for dim in arg.dims if isinstance(arg, DimsArg) else ():
                dims.slot(dim)
        return dims.names

    def _segment(self, segment: Segment, run: Run) -> None:
        plan = self.plan(segment, run.symbols)
        arrays = [self._input(run, spec) for spec in plan.inputs]  # lives until the kernels end
        addresses = [
            _address(run, spec.name, array) for spec, array in zip(plan.inputs, arrays, strict=True)
        ]
        for spec, shape in zip(segment.outputs, plan.output_shapes, strict=True):
            made, address = empty_at(shape, spec.dtype.numpy, f"the value {spec.name}")
            run.values[spec.name] = made
            run.addresses[spec.name] = made, address
            addresses.append(address)
        context = plan.lease()
        try:
            plan.bind(context, addresses)
            context.status[0] = 0
            if self._watch is None:
                self.native.run(context)
            else:
                self._watch.launch(segment, context)
            failed = int(context.status[0])
        finally:
            plan.release(context)
        if failed:
            raise plan.error(failed)

    def _input(self, run: Run, spec: TensorSpec) -> Array:
        array = self.value(run, spec.name)
        if not isinstance(array, np.ndarray):
            array = np.asarray(array, dtype=spec.dtype.numpy)
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    # --- host steps ------------------------------------------------------------------------------

    def _bind(self, step: Bind, run: Run) -> None:
        """Sets sizes; those that follow from other sizes alone are computed once."""
        names = self._names(step)
        if any(isinstance(arg, TensorArg) for arg in step.args):
            found = self._bound(step, run)
        else:
            key = (id(step), *[run.symbols[name] for name in names])
            known = self._sizes.get(key)
            found = self._kept(key, self._bound(step, run)) if known is None else known
        run.symbols.update(zip(step.symbols, found, strict=True))

    def _kept(self, key: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._sizes) >= MAX_SIZES:
            self._sizes.clear()
        self._sizes[key] = sizes
        return sizes

    def _bound(self, step: Bind, run: Run) -> tuple[int, ...]:
        dims = self._dims[id(step)]
        sizes = dims.evaluate(run.symbols)
        args = arguments(step, lambda dim: sizes[dims.slot(dim)], partial(self.value, run))
        found = BINDINGS[step.function](*args)
        if len(found) != len(step.symbols):
            raise ShapeMismatch(
                f"expected {len(step.symbols)} sizes, the data gives {len(found)}",
                remedy="feed as many sizes as the model declares",
            )
        return tuple(map(int, found))

    def _interpret(self, step: Interpret, run: Run) -> None:
        from tilewright.runtime.reference import OperatorError, evaluate

        inputs = [None if name is None else self.value(run, name) for name in step.inputs]
        try:
            results = evaluate(
                step.domain,
                step.op_type,
                inputs,
                step.attributes,
                opset=step.opset,
                num_outputs=len(step.outputs),
            )
        except OperatorError as error:
            raise OutOfRange(str(error), remedy="check the feeds and the model's shapes") from error
        for spec, result in zip(step.outputs, results, strict=False):
            if spec is not None:
                self.settle(spec, result, run)

    def settle(self, spec: TensorSpec, value: Any, run: Run) -> None:
        """Stores a step's result and sets the sizes that only it knows.

        Raises:
            ShapeMismatch: it has not the shape that was promised.
        """
        if spec.container == "tensor" and value is not None:
            value = np.asarray(value)
            if spec.dtype is not STRING and value.dtype != spec.dtype.numpy:
                value = value.astype(spec.dtype.numpy)
            bind_shape(spec, value, run.symbols)
        run.values[spec.name] = value

    def _reshape(self, step: Reshape, run: Run) -> None:
        shape = shape_of(step.target, run.symbols)
        run.values[step.target.name] = np.asarray(self.value(run, step.source)).reshape(shape)


def _address(run: Run, name: str, array: Array) -> int:
    """Where an array lies; NumPy is slow to tell, so what a segment made is remembered."""
    known = run.addresses.get(name)
    return known[1] if known is not None and known[0] is array else address_of(array)
