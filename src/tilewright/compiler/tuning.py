"""Connects the tuner with a build: networks with trial schedules, run in turns with the formula's.

Input -> Output: a draft that can be assembled with any schedules, a target, a timing store ->
``Pick``, the schedules of each kernel.
Guarantees: without a store and a budget nothing is looked up or timed; what is picked depends on
the timings alone, so that the same store gives the same engine.
Not here: the search (tune.rounds), the file (tune.store), the choice (tune.choice).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.generate import GeneratedKernel
from tilewright.codegen.cpu.objects import llvm_version
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.compiler.build_program import DraftProgram
from tilewright.compiler.compile_kernels import (
    KernelStore,
    Pick,
    compile_objects,
    finish,
    formula,
)
from tilewright.compiler.native_branches import native_branches
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import CompileOptions, Progress, Tuning
from tilewright.compiler.samples import sample_feeds
from tilewright.core.errors import BadOption, OutOfRange, ShapeMismatch
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import Kernel
from tilewright.kernel.nest import Nest, prepare
from tilewright.kernel.schedule import Schedule
from tilewright.runtime.engine import Engine
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.feeds import Range
from tilewright.runtime.stage_clock import StageClock
from tilewright.tune.candidates import candidates
from tilewright.tune.choice import Choice, choose_schedule
from tilewright.tune.rounds import Search, Turn
from tilewright.tune.store import Scope, Stage, Timing, TimingStore, sizes_text

_TURNS_S = 1.0  # of runs in one round
_LEAST_TURNS, _MOST_TURNS = 10, 60


def scope_of(target: CpuTarget, threads: int) -> Scope:
    """What timings depend on besides the kernel."""
    from tilewright import __version__

    features = hashlib.sha256(target.features.encode()).hexdigest()[:8]
    return Scope(
        target=f"{target.name}, {8 * target.vector_bytes}-bit vectors, features {features}",
        compiler=f"tilewright {__version__}, LLVM {llvm_version()}",
        threads=threads,
    )


def kernel_hash(text: str) -> str:
    """The name of a kernel in a store."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class TunedPick:
    """Schedules by the timings of a store.

    Attributes:
        effort: rounds and timings of this build's search, and the microseconds of a run that it
            gained; no part of the engine.
    """

    target: CpuTarget
    disabled: tuple[str, ...]
    log: DecisionLog
    timings: dict[Stage, list[Timing]] = field(default_factory=dict)
    effort: dict[str, float] = field(default_factory=dict)

    def __call__(self, text: str, kernel: Kernel) -> Sequence[Choice | None]:
        name = kernel_hash(text)
        found: list[Choice | None] = []
        for number, stage in enumerate(kernel.stages):
            key = Stage(name, number)
            choice = self.choice(key, prepare(kernel, stage)) if key in self.timings else None
            if choice is not None and choice.unknown:
                rows = plural(choice.unknown, "row")
                reason = "they are of schedules that this kernel cannot have"
                self.log.add("timing_store", f"kernel {name[:12]}", "used", ((rows, reason),))
            found.append(choice)
        return found

    def choice(self, stage: Stage, nest: Nest) -> Choice:
        """The choice for a stage with timings."""
        return choose_schedule(nest, self.target, self.timings[stage], self.disabled)

    def add(self, timings: Mapping[Stage, list[Timing]]) -> None:
        """Takes timings; one of the same schedule and sizes is replaced."""
        for stage, found in timings.items():
            fresh = {(t.sizes, t.schedule) for t in found}
            kept = [t for t in self.timings.get(stage, []) if (t.sizes, t.schedule) not in fresh]
            self.timings[stage] = sorted([*kept, *found], key=lambda t: (t.sizes, t.schedule))


@dataclass(slots=True)
class Trials:
    """Builds a network with any schedules.

    Attributes:
        store: of the build; only what is known of the draft is taken from it.
        cache: of object code, for the formula's schedules; those of trials are not kept.
        support: modules that every engine has.
    """

    draft: DraftProgram
    constants: Mapping[str, npt.NDArray[Any]]
    store: KernelStore
    cache: ObjectCache
    support: Mapping[str, str]
    _generated: dict[tuple[str, ...], GeneratedKernel] = field(default_factory=dict)
    _objects: dict[str, bytes] = field(default_factory=dict)

    def assemble(self, pick: Pick, options: CompileOptions) -> tuple[KernelStore, Engine]:
        """The engine, and what was made for it."""
        target = self.store.target
        store = KernelStore(
            target,
            DecisionLog(),
            self.store.disabled,
            work=self.store.work,
            pick=pick,
            generated=self._generated,
        )
        program = native_branches(finish(self.draft, store), DecisionLog())
        store.texts.update(self.support)
        cache = self.cache if pick is formula else ObjectCache(None)
        missing = {name: text for name, text in store.texts.items() if name not in self._objects}
        self._objects.update(compile_objects(missing, target, cache, None))
        parts = EngineParts(
            program=program,
            constants=dict(self.constants),
            objects={name: self._objects[name] for name in store.texts},
            exports=store.exports,
            info={
                "cpu": target.name,
                "triple": target.triple,
                "required_features": target.required_features,
                "threads": options.threads,
                "ranges": options.ranges,
            },
        )
        return store, Engine(parts)


def tuned_pick(
    tuning: Tuning,
    trials: Trials,
    options: CompileOptions,
    feeds: Mapping[str, Any] | None,
    progress: Progress | None,
) -> TunedPick:
    """The schedules of a build, after a search if one is wanted.

    Args:
        feeds: inputs to time with; None draws some.

    Raises:
        BadOption: a search is wanted, but this machine cannot run the code.
        CacheError: the store is no good.
    """
    begun_s = perf_counter()
    target, log = trials.store.target, trials.store.log
    scope = scope_of(target, options.threads)
    pick = TunedPick(target, options.disable, log)
    store = None if tuning.store is None else TimingStore(tuning.store, write=tuning.search)
    if store is not None:
        found = store.read(scope)
        pick.timings = found.timings
        if found.ignored:
            rows, reason = plural(found.ignored, "row"), "they hold no times or sizes"
            log.add("timing_store", store.path.name, "used", ((rows, reason),))
    if not tuning.search:
        return pick

    def keep(timings: Mapping[Stage, list[Timing]]) -> None:
        pick.add(timings)
        if store is not None and timings:
            store.write(scope, timings, bench.texts)

    def report(spent_s: float, total_s: float) -> None:
        if progress is not None:
            progress("tune", int(spent_s), max(1, int(total_s)))

    bench = _Bench(pick, trials, options, feeds)
    known = {stage: {timing.schedule for timing in found} for stage, found in pick.timings.items()}
    search = Search(
        bench=bench,
        known=known,
        keep=keep,
        report=report,
        budget_s=tuning.budget_s,
        begun_s=begun_s,
    )
    search.run()
    pick.effort = {
        "rounds": search.num_rounds,
        "timed": search.num_timed,
        "disturbed": search.num_disturbed,
        "gained_us": bench.gained_us(),
        "formula_us": bench.formula_us,
    }
    return pick


class _Bench:
    """The network with trial schedules, in turns with the formula's.

    Attributes:
        texts: of kernels by hash.
        formula_us: least time that all stages with the formula's schedules took in a run.
    """

    def __init__(
        self,
        pick: TunedPick,
        trials: Trials,
        options: CompileOptions,
        feeds: Mapping[str, Any] | None,
    ) -> None:
        self._pick, self._trials, self._options = pick, trials, options
        self.texts: dict[str, str] = {}
        self.formula_us = 0.0
        self._nests: dict[Stage, Nest] = {}
        self._sizes: dict[Stage, dict[str, int]] = {}
        store, engine = trials.assemble(formula, options)
        if not engine.runs_here:
            raise BadOption(
                f"code for {pick.target.name} cannot be timed on this machine",
                remedy="tune on a machine of that kind, and pass its timing store",
            )
        for text, kernel in store.canonical.items():
            self.texts[kernel_hash(text)] = text
            for number, stage in enumerate(kernel.stages):
                self._nests[Stage(kernel_hash(text), number)] = prepare(kernel, stage)
        self._feeds, self._known_sizes = _fitting_feeds(engine, options.ranges, feeds)
        self._formula = engine.stage_clock(self._feeds)
        self._groups = self._stages(store, self._formula)
        self._formula.run()

    def _stages(self, store: KernelStore, clock: StageClock) -> dict[tuple[Stage, str], list[int]]:
        """Places in a run's times of each stage and sizes; none where sizes are not known."""
        groups: dict[tuple[Stage, str], list[int]] = {}
        for call, offset in zip(clock.calls, clock.offsets, strict=False):
            text = store.kernels[call.kernel]
            renamed = store.renamed.get(call.buffers)  # none where a branch was moved
            if renamed is None or not set(renamed.values()) <= self._known_sizes.keys():
                continue
            sizes = {new: self._known_sizes[old] for new, old in renamed.items()}
            for place, stages in enumerate(store.stages[call.kernel], int(offset)):
                if len(stages) == 1:  # stages that run in turns have no times of their own
                    stage = Stage(kernel_hash(text), stages[0])
                    self._sizes.setdefault(stage, sizes)
                    groups.setdefault((stage, sizes_text(sizes)), []).append(place)
        return groups

    def candidates(self, stage: Stage) -> tuple[Schedule, ...]:
        """What a stage may try."""
        pick = self._pick
        return candidates(self._nests[stage], pick.target, pick.disabled, self._sizes[stage])

    def winners(self) -> Mapping[Stage, Schedule]:
        """The best by what is known, where that is not the formula's."""
        found: dict[Stage, Schedule] = {}
        for stage, nest in self._nests.items():
            if stage in self._pick.timings:
                choice = self._pick.choice(stage, nest)
                if any(t.schedule == choice.schedule.text for t in self._pick.timings[stage]):
                    found[stage] = choice.schedule
        return found

    def gained_us(self) -> float:
        """What the winners save in a run, by the turns in which they and the formula's ran."""
        winners, gained = self.winners(), 0.0
        for (stage, sizes), places in self._groups.items():
            if stage in winners:
                key = (sizes, winners[stage].text)
                found = [t for t in self._pick.timings[stage] if (t.sizes, t.schedule) == key]
                gained += len(places) * sum(t.formula_us - t.us for t in found)
        return gained

    def time(self, trial: Mapping[Stage, Schedule]) -> Mapping[Stage, list[Turn]]:
        """Runs both engines in turns; of each stage the least time counts."""
        clock = self._formula
        if trial:
            _, engine = self._trials.assemble(_trial_pick(trial), self._options)
            clock = engine.stage_clock(self._feeds)
            clock.run()
        ours, formula, runs = _take_turns(clock, self._formula)
        formula_us = float(formula.sum()) / 1e3
        self.formula_us = min(self.formula_us or formula_us, formula_us)
        turns: dict[Stage, list[Turn]] = {}
        for (stage, sizes), places in self._groups.items():
            turns.setdefault(stage, []).append(
                Turn(
                    sizes=sizes,
                    us=float(ours[places].sum()) / 1e3 / len(places),
                    formula_us=float(formula[places].sum()) / 1e3 / len(places),
                    samples=runs,
                )
            )
        return turns


def _trial_pick(trial: Mapping[Stage, Schedule]) -> Pick:
    def pick(text: str, kernel: Kernel) -> Sequence[Choice | None]:
        name = kernel_hash(text)
        found = [trial.get(Stage(name, number)) for number in range(len(kernel.stages))]
        return [None if schedule is None else Choice(schedule=schedule) for schedule in found]

    return pick


def _take_turns(
    ours: StageClock, formula: StageClock
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """The least time of each stage of both, and how many runs each had."""
    formula.run()
    wanted = int(_TURNS_S * 1e9 / max(1, 2 * formula.run_ns))
    runs = min(_MOST_TURNS, max(_LEAST_TURNS, wanted))
    least = [clock.run() for clock in (ours, formula)]
    for number in range(runs - 1):
        for which in (0, 1) if number % 2 else (1, 0):
            np.minimum(least[which], (ours, formula)[which].run(), out=least[which])
    return np.maximum(least[0], 1), np.maximum(least[1], 1), runs


def _fitting_feeds(
    engine: Engine, ranges: Mapping[str, Range], feeds: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], dict[str, int]]:
    """Inputs that the network accepts, and the sizes of its symbols."""
    drawn = sample_feeds(engine.inputs, ranges) if feeds is None else iter([feeds])
    refused: Exception | None = None
    for given in drawn:
        try:
            return given, engine.sizes(given)
        except (ShapeMismatch, OutOfRange) as error:
            if feeds is not None:
                raise
            refused = error
    raise BadOption(
        f"no random inputs fit the model (the last were refused: {refused})",
        remedy="give inputs to tune with (verify_feeds=, or --npz)",
    )
