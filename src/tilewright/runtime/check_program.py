"""Whether a program that was read from a file refers only to what is there.

Input -> Output: a ``Program``, constants, exported functions -> nothing, or ``CorruptEngine``.
Guarantees: every value, size, kernel and function that a step names exists when the step runs, with
the element type that the step expects.
Not here: the file and its hashes (engine_file); what machine code does with its arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.core.dtypes import DType, from_numpy
from tilewright.core.errors import CorruptEngine
from tilewright.core.shape import Dim
from tilewright.runtime.bindings import BINDINGS
from tilewright.runtime.program import (
    Bind,
    Branch,
    DimsArg,
    Interpret,
    Launch,
    Program,
    Refuse,
    Repeat,
    Reshape,
    Segment,
    Sweep,
    TensorArg,
    TensorSpec,
)
from tilewright.runtime.segment_layout import segment_symbols


def check_program(
    program: Program, constants: Mapping[str, Any], exports: Mapping[str, Collection[str]]
) -> None:
    """Checks a whole program (see the module's docstring).

    Args:
        constants: arrays by name.
        exports: names of functions by kernel.

    Raises:
        CorruptEngine: it refers to something that does not exist.
    """
    types = {name: from_numpy(array.dtype) for name, array in constants.items()}
    _Scope(types, set(), exports).program(program)


@dataclass(slots=True)
class _Scope:
    """What exists so far: element types of values by name, sizes."""

    values: dict[str, DType]
    symbols: set[str]
    exports: Mapping[str, Collection[str]]

    def program(self, program: Program) -> None:
        for spec in program.inputs:
            self.add(spec)
        for step in program.steps:
            match step:
                case Segment():
                    self.segment(step)
                case Bind():
                    self.bind(step)
                case Interpret():
                    self.need(step.inputs)
                    self.add_all(step.outputs)
                case Reshape():
                    self.need([step.source])
                    self.need_sizes(step.target.shape or ())
                    self.add(step.target)
                case Branch():
                    self.need([step.condition])
                    self.inner(step.then, step.otherwise)
                    self.add_all(step.outputs)
                case Repeat():
                    self.need([step.trips, step.condition, *step.carried])
                    self.inner(step.body)
                    self.add_all(step.outputs)
                case Sweep():
                    self.need([*step.carried, *step.scanned])
                    self.inner(step.body)
                    self.add_all(step.outputs)
                case Refuse():
                    return  # nothing behind it is ever reached
                case _:
                    raise _corrupt(f"no step {type(step).__name__}")
        self.need(spec.name for spec in program.outputs)

    def inner(self, *programs: Program) -> None:
        for program in programs:
            _Scope(dict(self.values), set(self.symbols), self.exports).program(program)

    def segment(self, step: Segment) -> None:
        for spec in step.inputs:
            self.need([spec.name])
            if self.values[spec.name] is not spec.dtype:
                raise _corrupt(f"value {spec.name!r} is not {spec.dtype.name}")
        missing = set(segment_symbols(step)) - self.symbols
        if missing:
            raise _corrupt(f"unknown sizes {sorted(missing)}")
        buffers = {spec.name for spec in (*step.inputs, *step.outputs, *step.internal)}
        for call in step.all_calls:
            for stage in call.stages:
                if stage.symbol not in self.exports.get(call.kernel, ()):
                    raise _corrupt(f"kernel {call.kernel} has no function {stage.symbol!r}")
                if isinstance(stage, Launch) and any(
                    not 0 <= matrix.buffer < len(call.buffers) for matrix in stage.matrices
                ):
                    raise _corrupt(f"kernel {call.kernel} has a matrix without a buffer")
                if isinstance(stage, Launch) and not stage.is_possible:
                    raise _corrupt(f"kernel {call.kernel} is launched with an impossible block")
            for name in (*call.buffers, *(guard.condition for guard in call.guards)):
                if _root(step, name) not in buffers:
                    raise _corrupt(f"a kernel uses the buffer {name!r}, which does not exist")
        self.add_all(step.outputs)

    def bind(self, step: Bind) -> None:
        if step.function not in BINDINGS:
            raise _corrupt(f"no function {step.function!r}")
        for arg in step.args:
            if isinstance(arg, TensorArg):
                self.need([arg.name])
            elif isinstance(arg, DimsArg):
                self.need_sizes(arg.dims)
        self.symbols.update(step.symbols)

    def need(self, names: Iterable[str | None]) -> None:
        for name in names:
            if name is not None and name not in self.values:
                raise _corrupt(f"nothing gives the value {name!r}")

    def need_sizes(self, dims: Iterable[Dim]) -> None:
        for dim in dims:
            if missing := set(dim.symbols) - self.symbols:
                raise _corrupt(f"unknown sizes {sorted(missing)}")

    def add_all(self, specs: Iterable[TensorSpec | None]) -> None:
        for spec in specs:
            if spec is not None:
                self.add(spec)

    def add(self, spec: TensorSpec) -> None:
        """A value exists from now on, and with it the sizes that its shape names."""
        if spec.container not in ("tensor", "sequence", "optional"):
            raise _corrupt(f"value {spec.name!r} is a {spec.container!r}")
        self.values[spec.name] = spec.dtype
        self.symbols.update(name for d in spec.shape or () if (name := d.as_symbol()) is not None)


def _root(step: Segment, name: str) -> str:
    for _ in range(len(step.aliases) + 1):
        if name not in step.aliases:
            return name
        name = step.aliases[name]
    raise _corrupt(f"the buffer {name!r} stands for itself")


def _corrupt(message: str) -> CorruptEngine:
    return CorruptEngine(message, remedy="build the engine again")
