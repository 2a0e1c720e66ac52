"""Chooses between the candidates of an engine's kernels by the clock of the GPU that runs it.

Input -> Output: an engine that was compiled with candidates, inputs, a timing store -> the engine
with the fastest ones.
Method: every candidate is timed in turns with the formula's choice (tune.gpu_bench). What is
chosen for all kernels is then timed as a whole, and dropped in parts where that is no faster
(tune.whole).
Guarantees: what is chosen depends on the timings alone, so a store that has them all gives the same
engine, and nothing is timed; a candidate whose values differ is never chosen, and is told.
Not here: making candidates (codegen.cuda.variants), the store (tune.store).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright import __version__
from tilewright.core.errors import BadTarget, VerificationFailed
from tilewright.core.plural import plural
from tilewright.core.record import Decision
from tilewright.runtime.cuda.executor import CudaExecutor, Launched
from tilewright.runtime.engine import Engine
from tilewright.runtime.profile import all_calls
from tilewright.runtime.program import KernelCall, Program, Segment, map_segments
from tilewright.tune.gpu_bench import (
    TOLERANCE,
    CallBench,
    lanes_timing,
    runs_us,
    segments_of,
    whole_timing,
)
from tilewright.tune.store import Scope, Stage, Timing, TimingStore, sizes_text
from tilewright.tune.whole import faster_together

Progress = Callable[[int, int], None]
_LEAST_GAIN = 0.02  # of the formula's time; less may be chance
_MOST_LANES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one kernel.

    Attributes:
        calls: how many calls of the network run it.
        chosen: its tactic; ``formula`` is what the formulas chose.
        us, formula_us: of one call.
        wrong: candidates whose values differed.
    """

    name: str
    calls: int
    chosen: str
    formula: str
    us: float
    formula_us: float
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A tuning.

    Attributes:
        streams: how many the kernels run on.
        timed, known: candidates that were timed, and that the store knew.
        before_us, after_us: GPU time of all kernels of a run, in turns.
        whole: what became of choices that were no faster as a whole; empty where they were.
    """

    device: str
    rows: tuple[Row, ...]
    streams: int
    timed: int
    known: int
    before_us: float
    after_us: float
    whole: str = ""


def scope_of(arch: str, compiler: str) -> Scope:
    """What timings of a GPU depend on besides the kernel.

    Args:
        arch: ``sm_90``.
        compiler: version of NVIDIA's compiler.
    """
    made_by = f"tilewright {__version__}, NVRTC {compiler}"
    return Scope(target=arch, compiler=made_by, threads=1)


def fastest(formula: str, candidates: Sequence[str], timings: Sequence[Timing]) -> str:
    """The tactic with the least time relative to the formula's, over all sizes that were timed."""
    ratios = {formula: 1.0}
    for text in candidates:
        found = [t for t in timings if t.schedule == text]
        if found:
            ratios[text] = _mean_ratio(found)
    best = min(ratios, key=lambda text: (ratios[text], text))
    return best if ratios[best] <= 1 - _LEAST_GAIN else formula


def _mean_ratio(timings: Sequence[Timing]) -> float:
    return math.exp(statistics.fmean(math.log(t.ratio) for t in timings))


def tune_on_gpu(
    engine: Engine,
    feeds: Mapping[str, Any],
    store: TimingStore | None = None,
    progress: Progress | None = None,
) -> tuple[Engine, Report]:
    """The engine with the fastest candidates, and what was found.

    Args:
        feeds: inputs to time with.
        store: timings that are known and that are added; None keeps none.
        progress: called with kernels done, and all of them.

    Raises:
        BadTarget: the engine is for CPUs, or has no candidates.
        VerificationFailed: the tuned engine's results differ.
        UserError: the inputs do not fit the engine.
    """
    executor = engine.on_gpu()
    if not any(call.alternatives for call in all_calls(engine.program)):
        raise BadTarget(
            "the engine has no candidates to choose from",
            remedy="compile it with --candidates 6 (candidates=6)",
        )
    expected = engine.run(feeds)
    search = _Search(engine, executor, store)
    program = search.run(feeds, progress)
    tuned = _with(engine, program, search, 1)
    streams = search.streams(tuned, feeds)
    if streams > 1:
        tuned = _with(engine, program, search, streams)
    _compare(expected, tuned.run(feeds))
    before_us, after_us = runs_us((engine, tuned), feeds)
    report = Report(
        device=executor.device.name,
        streams=streams,
        rows=tuple(search.rows.values()),
        timed=search.timed,
        known=search.known,
        before_us=before_us,
        after_us=after_us,
        whole=search.whole,
    )
    return tuned, report


class _Search:
    """Times the candidates of every kernel.

    Attributes:
        rows: what became of each kernel, by its code's key and sizes.
        choices: the call to take, by the same.
        decisions: for the engine.
        whole: what became of choices that were no faster as a whole.
    """

    def __init__(self, engine: Engine, executor: CudaExecutor, store: TimingStore | None) -> None:
        self._engine, self._executor, self._store = engine, executor, store
        info = engine.info
        arch = f"sm_{executor.device.capability}"
        self._scope = scope_of(arch, str(info.get("nvrtc", "")))
        self._timings = {} if store is None else store.read(self._scope).timings
        self.rows: dict[str, Row] = {}
        self.choices: dict[str, str] = {}
        self.decisions: list[Decision] = []
        self.timed = self.known = 0
        self.whole = ""
        self._wrong: dict[str, list[str]] = {}
        self._dropped: dict[str, str] = {}
        self._kernels = _kernels(engine)
        self._network = _network(self._kernels, 1)

    def run(self, feeds: Mapping[str, Any], progress: Progress | None) -> Program:
        """The program with the fastest candidates."""
        engine, executor = self._engine, self._executor
        values, symbols = engine.checked(feeds)
        launched: list[Launched] = []
        executor.recorded(launched).run(engine.program, values, symbols)
        todo = [
            (one, number)
            for one in launched
            for number, call in enumerate(one.context.plan.segment.calls)
            if call.alternatives
        ]
        footprint = sum(a.nbytes for a in executor.constants.values())
        footprint += sum(one.context.plan.arena_bytes for one in launched)
        for done, (one, number) in enumerate(todo, start=1):
            self._call(one, number, footprint)
            if progress is not None:
                progress(done, len(todo))
        calls = [call for call in all_calls(engine.program) if call.alternatives]
        self._choose(calls)
        self._keep_faster(launched)
        for one in launched:
            executor.give_back(one)
        self._tell_all(calls)
        return map_segments(engine.program, self._segment)

    def _call(self, one: Launched, number: int, footprint: int) -> None:
        call = one.context.plan.segment.calls[number]
        bench: CallBench | None = None
        stage = Stage(call.kernel, 0)
        steps = one.context.plan.steps_of(call, number)
        sizes = sizes_text({f"d{k}": size for k, size in enumerate(steps[0].dims)} if steps else {})
        found = self._timings.setdefault(stage, [])
        fresh: list[Timing] = []
        for alternative in call.alternatives:
            if not steps or any(
                (t.sizes, t.schedule) == (sizes, alternative.tactic) for t in found
            ):
                self.known += bool(steps)
                continue
            bench = bench or CallBench(self._executor, one, number, footprint)
            timing = bench.timing(alternative, sizes)
            if timing is None:
                self._wrong.setdefault(call.kernel, []).append(alternative.tactic)
            else:
                fresh.append(timing)
        self.timed += len(fresh)
        found += fresh
        if bench is not None:
            bench.close()
        self._remember(stage, fresh, self._engine.parts.sources.get(call.kernel, ""))

    def streams(self, engine: Engine, feeds: Mapping[str, Any]) -> int:
        """On how many streams the kernels of a run take the least time."""
        keys = _kernels(engine)
        stage = _network(keys, 0)
        found = self._timings.setdefault(stage, [])
        names = [f"streams({count})" for count in range(2, _MOST_LANES + 1)]
        with segments_of(engine, feeds) as launched:
            sizes = _sizes(launched)
            known = {(t.sizes, t.schedule) for t in found}
            fresh = [
                timing
                for count, name in enumerate(names, start=2)
                if (sizes, name) not in known
                and (timing := lanes_timing(launched, count, name, sizes)) is not None
            ]
        found += fresh
        self._remember(stage, fresh, keys)
        chosen = fastest("streams(1)", names, found)
        took = [t.us for t in found if t.schedule == chosen]
        rejected = [(t.schedule, f"took {t.us:.2f} us") for t in found if t.schedule != chosen]
        self.decisions.append(
            Decision(
                stage="tuned",
                subject="all kernels",
                chosen=chosen,
                rejected=tuple(sorted(rejected)),
                measured_us=round(statistics.fmean(took), 3) if took else None,
            )
        )
        return 1 if chosen == "streams(1)" else names.index(chosen) + 2

    def _choose(self, calls: Sequence[KernelCall]) -> None:
        for call in calls:
            timings = self._timings.get(Stage(call.kernel, 0), [])
            others = [one.tactic for one in call.alternatives]
            self.choices[call.kernel] = fastest(call.tactic, others, timings)

    def _keep_faster(self, launched: Sequence[Launched]) -> None:
        """Drops choices with which whole runs are no faster."""
        gains: dict[str, float] = {}  # expected, of changed kernels
        for one in launched:
            for call in one.context.plan.segment.calls:
                if (chosen := self._best(call)) != call.tactic:
                    timings = self._timings[Stage(call.kernel, 0)]
                    us = statistics.fmean(
                        t.formula_us - t.us for t in timings if t.schedule == chosen
                    )
                    gains[call.kernel] = gains.get(call.kernel, 0.0) + one.calls * us
        changes = sorted(gains, key=lambda kernel: (-gains[kernel], kernel))
        if not changes:
            return
        kept = faster_together(
            changes,
            lambda some: self._ratio(launched, some),
            lambda some: self._ratio(launched, some, "afresh"),
        )
        if len(kept) == len(changes):
            return
        timing = self._whole(launched, changes, "afresh")
        count = plural(len(changes), "change")
        self.whole = (
            f"tuned choice was not faster as a whole ({timing.us:.1f} us instead of "
            f"{timing.formula_us:.1f}): kept {len(kept)} of {count}"
        )
        self.decisions.append(
            Decision(
                stage="tuned",
                subject="whole runs",
                chosen=f"{len(kept)} of {count}",
                rejected=((count, self.whole),),
                measured_us=self._whole(launched, kept, "afresh").us if kept else timing.formula_us,
            )
        )
        for kernel in set(changes) - set(kept):
            self._dropped[kernel] = self.choices.pop(kernel)

    def _ratio(
        self, launched: Sequence[Launched], changes: Sequence[str], when: str = "changed"
    ) -> float:
        """The part of the formula's time that a run takes with some changes, over all sizes."""
        name = self._whole(launched, changes, when).schedule
        return _mean_ratio([t for t in self._timings[self._network] if t.schedule == name])

    def _whole(
        self, launched: Sequence[Launched], changes: Sequence[str], when: str = "changed"
    ) -> Timing:
        """What a run takes with some changes; each set of them is timed once each ``when``."""
        texts = sorted(f"{kernel} {self.choices[kernel]}" for kernel in changes)
        name = f"{when}({hashlib.sha256(chr(10).join(texts).encode()).hexdigest()[:16]})"
        sizes = _sizes(launched)
        found = self._timings.setdefault(self._network, [])
        for timing in found:
            if (timing.sizes, timing.schedule) == (sizes, name):
                return timing

        def instead(call: KernelCall) -> KernelCall:
            return _taken(call, self._best(call) if call.kernel in changes else call.tactic)

        timing = whole_timing(launched, instead, name, sizes)
        found.append(timing)
        self._remember(self._network, [timing], self._kernels)
        return timing

    def _tell_all(self, calls: Sequence[KernelCall]) -> None:
        for call in calls:
            if call.kernel in self.rows:
                row = self.rows[call.kernel]
                self.rows[call.kernel] = replace(row, calls=row.calls + 1)
                continue
            timings = self._timings.get(Stage(call.kernel, 0), [])
            chosen = self._best(call)
            mean = statistics.fmean([t.formula_us for t in timings]) if timings else 0.0
            times = [t.us for t in timings if t.schedule == chosen]
            name = " + ".join(call.sources)
            self.rows[call.kernel] = Row(
                name=name,
                calls=1,
                chosen=chosen,
                formula=call.tactic,
                us=statistics.fmean(times) if times else mean,
                formula_us=mean,
                wrong=tuple(self._wrong.get(call.kernel, ())),
            )
            self._tell(name, call, chosen, timings)

    def _tell(self, name: str, call: KernelCall, chosen: str, timings: Sequence[Timing]) -> None:
        rejected = []
        for text in (call.tactic, *(one.tactic for one in call.alternatives)):
            if text == chosen:
                continue
            found = [t for t in timings if t.schedule == text]
            reason = "not timed"
            if text in self._wrong.get(call.kernel, ()):
                reason = "its values differ from those of the formula's choice"
            elif found:
                reason = f"took {statistics.fmean([t.us for t in found]):.2f} us"
                if text == self._dropped.get(call.kernel):
                    reason += ", but whole runs were no faster with it"
            elif text == call.tactic:
                reason = "the formula's choice"
            rejected.append((text, reason))
        us = [t.us for t in timings if t.schedule == chosen]
        self.decisions.append(
            Decision(
                stage="tuned",
                subject=name,
                chosen=chosen,
                rejected=tuple(rejected),
                measured_us=round(statistics.fmean(us), 3) if us else None,
            )
        )

    def _segment(self, segment: Segment) -> Segment:
        return replace(segment, calls=tuple(map(self._chosen, segment.calls)))

    def _chosen(self, call: KernelCall) -> KernelCall:
        return replace(_taken(call, self._best(call)), alternatives=())

    def _best(self, call: KernelCall) -> str:
        return self.choices.get(call.kernel, call.tactic)

    def _remember(self, stage: Stage, fresh: Sequence[Timing], text: str) -> None:
        if self._store is not None and fresh:
            self._store.write(self._scope, {stage: list(fresh)}, {stage.kernel: text})


def _taken(call: KernelCall, tactic: str) -> KernelCall:
    """The call, or the alternative, of a tactic."""
    return next((one for one in (call, *call.alternatives) if one.tactic == tactic), call)


def _kernels(engine: Engine) -> str:
    return " ".join(call.kernel for call in all_calls(engine.program))


def _network(kernels: str, number: int) -> Stage:
    """What timings of whole runs are stored under: 0 for streams, 1 for changes."""
    return Stage(hashlib.sha256(kernels.encode()).hexdigest(), number)


def _sizes(launched: Sequence[Launched]) -> str:
    return sizes_text({k: v for one in launched for k, v in one.context.plan.sizes.items()})


def _compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name, array in expected.items():
        a, b = np.asarray(found[name], np.float64), np.asarray(array, np.float64)
        largest = float(np.abs(b).max(initial=0.0))
        error = float(np.abs(a - b).max(initial=0.0)) / largest if largest else 0.0
        if not error <= TOLERANCE[2]:
            raise VerificationFailed(
                f"the tuned engine's {name} differs by {error:.2g} of its largest value",
                remedy="keep the engine as it was, and please report it",
            )


def _with(engine: Engine, program: Program, search: _Search, streams: int) -> Engine:
    """The engine with another program; code that it does not call is left out."""
    parts = engine.parts
    used = {call.kernel for call in all_calls(program)}
    summary = {**parts.info.get("summary", {}), "tuned_for": engine.on_gpu().device.name}
    kept = replace(
        parts,
        program=program,
        device_code={k: v for k, v in parts.device_code.items() if k.split(".")[0] in used},
        sources={k: v for k, v in parts.sources.items() if k in used},
        exports={k: v for k, v in parts.exports.items() if k in used},
        decisions=(*parts.decisions, *search.decisions),
        info={**parts.info, "summary": summary, "streams": streams},
    )
    return engine.of(kept)
