"""Runs both sides of an ``If`` inside of the segment around it.

Input -> Output: a finished ``Program`` -> one with fewer ``Branch`` steps.
    Segment, Branch(c, Segment, Segment), Segment  ->  Segment(calls, [c] calls, [not c] calls, ...)
Requires: both sides are nothing but kernels that write the branch's results, whose sizes are known
before; otherwise the branch stays, and a decision says why.
Guarantees: only the calls of the chosen side run.
Not here: joining neighbouring segments (compiler.merge_segments), the jumps
(runtime.segment_layout).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.merge_segments import merge
from tilewright.core.dtypes import BOOL
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.lower.reindex import Refusal
from tilewright.runtime.checks import is_check
from tilewright.runtime.program import (
    Bind,
    Branch,
    Check,
    Guard,
    KernelCall,
    Program,
    Refuse,
    Repeat,
    Reshape,
    Segment,
    Step,
    Sweep,
    TensorSpec,
    step_reads,
)
from tilewright.runtime.segment_layout import segment_symbols

_STAGE = "native_branches"


def native_branches(program: Program, log: DecisionLog) -> Program:
    """Inlines every branch that can be, innermost first."""
    return _Inliner(log, {}, set()).program(program)


class _Inliner:
    """What exists so far: specs of values by name, names of sizes."""

    def __init__(self, log: DecisionLog, specs: dict[str, TensorSpec], symbols: set[str]) -> None:
        self._log = log
        self._specs = specs
        self._symbols = symbols

    def program(self, program: Program) -> Program:
        for spec in program.inputs:
            self._add(spec)
        steps: list[Step] = []
        for number, step in enumerate(program.steps):
            step = self._inner(step)
            after = {spec.name for spec in program.outputs}
            after = after.union(*map(step_reads, program.steps[number + 1 :]))
            steps = self._append(steps, step, after)
            self._add_results(step)
        return replace(program, steps=tuple(steps))

    def _append(self, steps: list[Step], step: Step, after: set[str]) -> list[Step]:
        """The steps with one more, in the segment before it where that is possible."""
        if isinstance(step, Branch):
            made = self._inlined(step)
            joined = made if isinstance(made, Refusal) else self._joined(steps, made, after)
            if isinstance(joined, Refusal):
                self._log.add(_STAGE, step.node, "kept", (("inline", joined.reason),))
                return [*steps, step]
            self._log.add(_STAGE, step.node, "both sides run in the segment around it")
            return joined
        if isinstance(step, Segment) and _ends_guarded(steps):
            joined = self._joined(steps, step, after)
            return [*steps, step] if isinstance(joined, Refusal) else joined
        return [*steps, step]

    def _joined(self, steps: list[Step], segment: Segment, after: set[str]) -> list[Step] | Refusal:
        """Joins a segment with the one before it, across reshapes."""
        at = len(steps)
        while at and isinstance(steps[at - 1], Reshape):
            at -= 1
        before = steps[at - 1] if at else None
        if not isinstance(before, Segment):
            return [*steps, segment]
        views = [step for step in steps[at:] if isinstance(step, Reshape)]
        merged = merge(before, views, segment, after)
        return merged if isinstance(merged, Refusal) else [*steps[: at - 1], *merged]

    def _inner(self, step: Step) -> Step:
        def inside(program: Program) -> Program:
            return _Inliner(self._log, dict(self._specs), set(self._symbols)).program(program)

        match step:
            case Branch():
                return replace(step, then=inside(step.then), otherwise=inside(step.otherwise))
            case Repeat() | Sweep():
                return replace(step, body=inside(step.body))
        return step

    # --- one branch ------------------------------------------------------------------------------

    def _inlined(self, step: Branch) -> Segment | Refusal:
        condition = self._specs.get(step.condition)
        if condition is None:
            return Refusal("the condition is a constant")
        if condition.dtype is not BOOL or not _is_single(condition):
            return Refusal("the condition is no single boolean whatever the sizes are")
        sides = [
            self._side(step, program, value)
            for program, value in ((step.then, True), (step.otherwise, False))
        ]
        for side in sides:
            if isinstance(side, Refusal):
                return side
        first, second = (side for side in sides if isinstance(side, Segment))
        outputs = tuple(spec for spec in step.outputs if spec is not None)
        inputs = {spec.name: spec for spec in (condition, *first.inputs, *second.inputs)}
        return Segment(
            calls=(*first.calls, *second.calls),
            inputs=tuple(inputs[name] for name in sorted(inputs)),
            outputs=outputs,
            internal=(*first.internal, *second.internal),
            aliases={**first.aliases, **second.aliases},
            checks=(*first.checks, *second.checks),
        )

    def _side(self, step: Branch, program: Program, value: bool) -> Segment | Refusal:
        """One side as a guarded segment that writes the branch's results."""
        guard = Guard(node=step.node, condition=step.condition, value=value)
        whole = _only_kernels(program)
        if isinstance(whole, Refusal):
            return whole
        segment, views = whole
        if not set(segment_symbols(segment)) <= self._symbols:
            return Refusal("a side has sizes that are only known inside of it")
        if any(isinstance(check.test, Refuse) and not check.guards for check in segment.checks):
            return _guarded(segment, guard)  # it has no results
        written = {spec.name for spec in segment.outputs}
        names: dict[str, str] = {}
        for inside, outside in zip(program.outputs, step.outputs, strict=False):
            if outside is None:
                continue
            source = views[inside.name].source if inside.name in views else inside.name
            if source not in written or source in names:
                return Refusal(f"a side only passes {outside.name} on")
            if inside.shape != outside.shape or inside.dtype is not outside.dtype:
                return Refusal(f"the size of {outside.name} depends on the side")
            names[source] = outside.name
        return _guarded(_renamed(segment, names), guard)

    # --- what exists -----------------------------------------------------------------------------

    def _add_results(self, step: Step) -> None:
        match step:
            case Segment():
                specs: tuple[TensorSpec | None, ...] = step.outputs
            case Reshape():
                specs = (step.target,)
            case Bind():
                self._symbols.update(step.symbols)
                return
            case _:
                specs = getattr(step, "outputs", ())
        for spec in specs:
            if spec is not None:
                self._add(spec)

    def _add(self, spec: TensorSpec) -> None:
        self._specs[spec.name] = spec
        self._symbols.update(name for d in spec.shape or () if (name := d.as_symbol()) is not None)


def _only_kernels(program: Program) -> tuple[Segment, dict[str, Reshape]] | Refusal:
    """The segment that a program is, with its checks of sizes, and the views of its results."""
    segment = Segment(calls=(), inputs=(), outputs=(), internal=())
    checks: list[Check] = []
    views: dict[str, Reshape] = {}
    for step in program.steps:
        match step:
            case Segment() if not segment.calls:
                segment = step
            case Reshape():
                views[step.target.name] = step
            case Refuse():
                checks.append(Check(test=step))
            case Bind() if is_check(step):
                checks.append(Check(test=step))
            case _:
                return Refusal(f"a side is not one run of kernels: {_text(step)}")
    return replace(segment, checks=(*checks, *segment.checks)), views


def _text(step: Step) -> str:
    node = getattr(step, "node", "")
    return f"{type(step).__name__} {node}".rstrip()


def _is_single(spec: TensorSpec) -> bool:
    return spec.shape is not None and all(dim == Dim.of(1) for dim in spec.shape)


def _ends_guarded(steps: list[Step]) -> bool:
    """Whether the last segment has inlined branches."""
    for step in reversed(steps):
        if not isinstance(step, Reshape):
            return isinstance(step, Segment) and any(call.guards for call in step.calls)
    return False


def _renamed(segment: Segment, names: dict[str, str]) -> Segment:
    """The segment with other names for buffers; renamed results are no longer its outputs."""

    def name(old: str) -> str:
        return names.get(old, old)

    return replace(
        segment,
        calls=tuple(
            replace(
                call,
                buffers=tuple(map(name, call.buffers)),
                guards=tuple(
                    replace(guard, condition=name(guard.condition)) for guard in call.guards
                ),
            )
            for call in segment.calls
        ),
        outputs=(),
        internal=(
            *segment.internal,
            *(spec for spec in segment.outputs if spec.name not in names),
        ),
        aliases={target: name(source) for target, source in segment.aliases.items()},
    )


def _guarded(segment: Segment, guard: Guard) -> Segment:
    def call(old: KernelCall) -> KernelCall:
        return replace(old, guards=(guard, *old.guards))

    def check(old: Check) -> Check:
        return replace(old, guards=(guard, *old.guards))

    return replace(
        segment,
        calls=tuple(map(call, segment.calls)),
        checks=tuple(map(check, segment.checks)),
    )
