"""Drafts to finished programs: kernels become object code, each distinct one once.

Input -> Output: a fused ``DraftProgram`` and a CPU target -> ``Program``, object code by key,
decisions.
Guarantees: equal kernels share one object; the result does not depend on what the cache held;
progress is reported by kernel.
Not here: schedules (codegen.cpu.tactics), the cache (compiler.object_cache).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from tilewright.codegen.cpu.generate import GeneratedKernel, GeneratedStage, generate
from tilewright.codegen.cpu.joined import join_lines
from tilewright.codegen.cpu.objects import module_key
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.waves import Wave, find_wave
from tilewright.compiler.build_program import (
    DraftControl,
    DraftProgram,
    DraftSegment,
    finished,
)
from tilewright.compiler.object_cache import ObjectCache
from tilewright.core.record import Decision, DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.canonical import canonicalize
from tilewright.kernel.counts import Counts, compute_dtype, count
from tilewright.kernel.ir import Buffer, Kernel
from tilewright.kernel.text import print_kernel
from tilewright.lower.context import View
from tilewright.runtime.program import (
    Blocked,
    Check,
    KernelCall,
    Program,
    Reshape,
    Segment,
    StageCall,
    TensorSpec,
)
from tilewright.tune.choice import Choice

_WIDENED = ("float16", "bfloat16")
Progress = Callable[[str, int, int], None]
# A canonical kernel and its text -> the choice for each stage, None for the formula's.
Pick = Callable[[str, Kernel], Sequence[Choice | None]]


def formula(text: str, kernel: Kernel) -> Sequence[Choice | None]:
    """Picks what needs no timing."""
    del text
    return [None] * len(kernel.stages)


_Found = tuple[str, GeneratedKernel, tuple[Choice | None, ...]]


@dataclass(slots=True)
class KernelStore:
    """Generated kernels by canonical text, and the modules that have to be compiled.

    Attributes:
        texts: LLVM IR by object key.
        exports: function names by object key.
        stages: numbers of the stages that each of them runs, by object key.
        kernels: readable kernel by object key.
        canonical: kernels by their text.
        renamed: symbols of the canonical kernel -> those of the program, by a call's buffers.
        disabled: names of tactics not to choose.
        pick: chooses schedules.
        generated: code by text and schedules; stores may share it.
        rings: of private buffers that are not kept whole, by their names.
        work: counts of kernels by their first output, as they were before layouts were chosen.
    """

    target: CpuTarget
    log: DecisionLog
    disabled: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stages: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    work: dict[str, Counts] = field(default_factory=dict)
    pick: Pick = formula
    canonical: dict[str, Kernel] = field(default_factory=dict)
    renamed: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    generated: dict[tuple[str, ...], GeneratedKernel] = field(default_factory=dict)
    rings: dict[str, Buffer] = field(default_factory=dict)
    _found: dict[str, _Found] = field(default_factory=dict)

    def count(self, program: DraftProgram) -> None:
        """Counts the work of all kernels; done before layouts, as padding is no work."""
        for segment in program.segments():
            for item in segment.items:
                if isinstance(item, Kernel):
                    self.work[item.outputs[0].name] = count(item)

    def work_of(self, kernel: Kernel) -> Counts:
        """Counts of a kernel as it was before layouts, which only add padding to it.

        Packed constants are counted as they are packed; a part of an algorithm with fewer
        operations (Winograd) by itself; kernels that were joined together.
        """
        laid_out = count(kernel)
        private = [buffer.name for buffer in kernel.temporaries]
        parts = [
            self.work[name] for name in (*private, kernel.outputs[0].name) if name in self.work
        ]
        flops = sum((part.flops for part in parts), Dim.of(0))
        if not parts or any(factor < 0 for _, factor in (laid_out.flops - flops).terms):
            return laid_out
        traffic = dict(laid_out.traffic)
        for part in parts:
            traffic.update(part.traffic)
        traffic.update(dict.fromkeys(private, Dim.of(0)))
        return replace(laid_out, traffic=traffic, flops=flops)

    def call(self, kernel: Kernel) -> KernelCall:
        """The call of a kernel; its code is generated when it is new."""
        in_turns = find_wave(kernel) is not None  # by rows, which joined lines have not
        canonical = canonicalize(kernel if in_turns else join_lines(kernel, self.target))
        text = print_kernel(canonical.kernel)
        if text not in self._found:
            self._found[text] = self._find(text, canonical.kernel)
        key, made, choices = self._found[text]
        old_buffers = {new: old for old, new in canonical.buffers.items()}
        old_dims = {new: Dim.symbol(old) for old, new in canonical.symbols.items()}
        work = self.work_of(kernel)
        buffers = tuple(old_buffers[buffer] for buffer in made.layout.buffers)
        traffic = tuple(work.traffic[buffer] for buffer in buffers)
        for ring in made.rings:
            self.rings[old_buffers[ring.name]] = replace(
                ring, name=f"{old_buffers[ring.name]}/ring"
            )
        buffers = tuple(self.rings[b].name if b in self.rings else b for b in buffers)
        name = "+".join(kernel.sources)
        self._log_precision(kernel, name)
        for stage in made.stages:
            self.log.entries.append(_decision(name, stage, choices[stage.number]))
        if made.refused:
            reason = (("in turns", made.refused),)
            self.log.add("bands", name, "stages one after another", reason)
        if made.wave is not None:
            self.log.add("bands", name, _in_turns(made.wave))
        self.renamed[buffers] = {new: old for old, new in canonical.symbols.items()}
        return KernelCall(
            kernel=key,
            name=kernel.name,
            sources=kernel.sources,
            buffers=buffers,
            dims=tuple(dim.substitute(old_dims) for dim in made.layout.dims),
            stages=tuple(
                StageCall(
                    symbol=part.symbol,
                    iterations=part.iterations.substitute(old_dims),
                    cost=part.cost.substitute(old_dims),
                )
                for part in made.calls
            ),
            steps=None if kernel.steps is None else kernel.steps.extent,
            traffic=traffic,
            flops=work.flops,
            dtype=compute_dtype(kernel).name,
            tactic=tactic_text([stage.schedule.tactic for stage in made.stages]),
        )

    def _find(self, text: str, kernel: Kernel) -> _Found:
        """The code of a kernel that has not been called before."""
        choices = tuple(self.pick(text, kernel))
        schedules = [None if choice is None else choice.schedule for choice in choices]
        known = (text, *("" if one is None else one.text for one in schedules))
        made = self.generated.get(known)
        if made is None:
            made = generate(kernel, self.target, schedules, self.disabled)
            self.generated[known] = made
        key = module_key(made.text, self.target)[:32]
        self.texts[key] = made.text
        self.exports[key] = tuple(part.symbol for part in made.calls)
        self.stages[key] = tuple(part.stages for part in made.calls)
        self.kernels[key] = text
        self.canonical[text] = kernel
        return key, made, choices

    def _log_precision(self, kernel: Kernel, name: str) -> None:
        """Narrow floats are widened to compute: a change of precision that has to be on record."""
        stored = dict.fromkeys(buffer.dtype.name for buffer in kernel.buffers)
        narrow = [other for other in stored if other in _WIDENED]
        if narrow:
            self.log.add("precision", name, f"{', '.join(narrow)} in memory, float32 in registers")


def _decision(name: str, stage: GeneratedStage, choice: Choice | None) -> Decision:
    """Why a stage has its schedule: tactics that do not fit, then what was timed."""
    return Decision(
        stage="tactic",
        subject=name,
        chosen=stage.schedule.text,
        rejected=stage.refused if choice is None else (*stage.refused, *choice.rejected),
        predicted_us=None if choice is None else choice.predicted_us,
        measured_us=None if choice is None else choice.measured_us,
    )


def _in_turns(wave: Wave) -> str:
    rows = ", ".join(str(ring.rows) for ring in wave.rings)
    return (
        f"stages {wave.first} to {wave.stages[-1]} in turns, {wave.per_band} of "
        f"{wave.counts[-1]} rows at a time; what they hand on in rings of {rows} rows"
    )


def tactic_text(names: Sequence[str]) -> str:
    """Tactics of the stages in order, repeated ones counted."""
    runs = [(name, len(list(group))) for name, group in groupby(names)]
    return " + ".join(name if count == 1 else f"{count} {name}" for name, count in runs)


class Store(Protocol):
    """What makes the calls of kernels.

    Attributes:
        rings: of private buffers that are not kept whole, by their names.
    """

    rings: dict[str, Buffer]

    def call(self, kernel: Kernel) -> KernelCall:
        """The call of a kernel; its code is generated when it is new."""


def finish(program: DraftProgram, store: Store) -> Program:
    """The program with every kernel replaced by its call."""
    steps: list[Any] = []
    for step in program.steps:
        if isinstance(step, DraftSegment):
            steps.extend(_segment(step, store))
        elif isinstance(step, DraftControl):
            inner = {name: finish(draft, store) for name, draft in step.programs.items()}
            steps.append(finished(step.fields, step.kind, inner))
        else:
            steps.append(step)
    return Program(inputs=program.inputs, outputs=program.outputs, steps=tuple(steps))


def _segment(draft: DraftSegment, store: Store) -> list[Any]:
    """The segment (if it has kernels), then views that later steps read under their own shape."""
    views = {item.target.name: item for item in draft.items if isinstance(item, View)}

    def root(name: str) -> str:
        while name in views:
            name = views[name].source.name
        return name

    kernels = [item for item in draft.items if isinstance(item, Kernel)]
    buffers: dict[str, Buffer] = {}
    for kernel in kernels:
        for buffer in kernel.buffers:
            buffers.setdefault(buffer.name, buffer)
    for view in views.values():
        buffers.setdefault(view.source.name, view.source)
        buffers.setdefault(view.target.name, view.target)
    written = {buffer.name for kernel in kernels for buffer in kernel.outputs}
    private = {buffer.name for kernel in kernels for buffer in kernel.temporaries}
    read = {root(buffer.name) for kernel in kernels for buffer in kernel.inputs}
    outputs = sorted({root(name) for name in draft.keep} & written)
    steps: list[Any] = []
    if kernels:
        calls = tuple(store.call(kernel) for kernel in kernels)
        for name in private & store.rings.keys():
            ring = store.rings[name]
            private = private - {name} | {ring.name}
            buffers[ring.name] = ring
        steps.append(
            Segment(
                calls=calls,
                inputs=_specs(sorted(read - written - private), buffers),
                outputs=_specs(outputs, buffers),
                internal=_specs(sorted((written | private) - set(outputs)), buffers, draft.stored),
                aliases={name: view.source.name for name, view in sorted(views.items())},
                checks=tuple(Check(test=extent) for extent in draft.extents.values()),
            )
        )
    for name in draft.keep:
        if name in views:
            target = views[name].target
            spec = TensorSpec(name=name, dtype=target.dtype, shape=target.shape)
            steps.append(Reshape(source=root(name), target=spec))
    return steps


def _specs(
    names: list[str], buffers: Mapping[str, Buffer], stored: Mapping[str, Blocked] | None = None
) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=name,
            dtype=buffers[name].dtype,
            shape=buffers[name].shape,
            stored=(stored or {}).get(name),
        )
        for name in names
    )


def compile_objects(
    modules: Mapping[str, str], target: CpuTarget, cache: ObjectCache, progress: Progress | None
) -> dict[str, bytes]:
    """Object code of modules by name, from the cache where it is there.

    The cache knows modules by their text and target, whatever they are called.
    """
    keys = {name: module_key(text, target)[:32] for name, text in modules.items()}
    texts = {keys[name]: text for name, text in modules.items()}
    made = cache.compile_all(texts, target, progress)
    return {name: made[key] for name, key in keys.items()}
