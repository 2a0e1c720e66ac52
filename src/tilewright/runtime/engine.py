"""An engine: a compiled model that runs.

Input -> Output: arrays by input name -> arrays by output name.
Guarantees: ``run`` may be called from several threads at once; results are new arrays that share
no memory with inputs, other results or later runs; nothing is built while it runs.
Not here: compiling (compiler), the file format (runtime.engine_file).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from tilewright.core import check_option as check
from tilewright.core.errors import BadOption, BadTarget, CorruptEngine, OutOfMemory
from tilewright.core.forks import renew_in_child
from tilewright.core.plural import plural
from tilewright.core.record import Decision, Placement
from tilewright.report.explanation import Explanation
from tilewright.report.profile import Profile
from tilewright.runtime import engine_file
from tilewright.runtime.backends import open_executor
from tilewright.runtime.cpu.allocator import refused
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.executor import Executor
from tilewright.runtime.feeds import Range, by_name
from tilewright.runtime.known_feeds import KnownFeeds
from tilewright.runtime.ownership import copied, handed_over
from tilewright.runtime.program import Program, Segment, TensorSpec
from tilewright.runtime.segment_layout import segment_symbols
from tilewright.runtime.steady import SteadyRuns, only_segment

if TYPE_CHECKING:
    from tilewright.runtime.cuda.arrays import DeviceArray
    from tilewright.runtime.cuda.executor import CudaExecutor
    from tilewright.runtime.stage_clock import StageClock


class Engine:
    """A compiled model; get one from ``tilewright.compile`` or ``tilewright.load``.

    Args:
        parts: program, constants and code.
        threads: threads of one run; None takes what it was compiled for.
        device: number of the GPU that runs an engine for GPUs; None for the first.

    Raises:
        BadOption: ``parts`` is something else, ``threads`` is not in 1 .. 1024, or a device is
            chosen for an engine for CPUs.

    An engine for another processor can be looked at and saved, not run.
    """

    def __init__(
        self, parts: EngineParts, *, threads: int | None = None, device: int | None = None
    ) -> None:
        if not isinstance(parts, EngineParts):
            raise BadOption(
                f"parts is {check.shown(parts)}",
                remedy="use tilewright.load(path) or tilewright.compile(model)",
            )
        self._parts = parts
        self._file = parts.file
        self._handed_over = handed_over(parts.program)
        info = parts.info
        self.threads = check.thread_count(info.get("threads") if threads is None else threads)
        self._device = None if device is None else check.whole("device", device, 0)
        self._executor, self._absent = open_executor(parts, self.threads, self._device)
        self._ranges: dict[str, Range] = {
            name: (low, high) for name, (low, high) in info.get("ranges", {}).items()
        }
        self._feeds = KnownFeeds(parts.program.inputs, self._ranges)
        self._steady: SteadyRuns | None = None
        segment = only_segment(parts.program)
        if segment is not None and self._executor is not None and not self._is_for_gpu:
            self._steady = SteadyRuns(self._executor, parts.program, segment)
        self._submitter: ThreadPoolExecutor | None = None
        self._submitter_process = 0
        self._lock = Lock()
        renew_in_child(self, "_lock")

    # --- what it is ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        info, count = self._parts.info, self.threads
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        threads = plural(count, "thread")
        what = f"Engine of {info.get('model')} for {info.get('cpu')}, {threads}"
        return f"<{what}: {inputs} -> {outputs}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled or copied.

        Raises:
            BadOption: always.
        """
        raise BadOption(
            "an engine is machine code in this process, and cannot be pickled or copied",
            remedy="save it with engine.save(path), and tilewright.load(path) where it is needed",
        )

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and (symbolic) shape of each input."""
        return self._parts.program.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and (symbolic) shape of each output."""
        return self._parts.program.outputs

    @property
    def decisions(self) -> list[Decision]:
        """Every choice of the build, in order."""
        return list(self._parts.decisions)

    @property
    def placements(self) -> list[Placement]:
        """Where each node of the imported model went, in the model's order."""
        return list(self._parts.placements)

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata properties."""
        return dict(self._parts.info.get("metadata", {}))

    @property
    def summary(self) -> dict[str, Any]:
        """Sizes, kernels and errors of the build; its times too, before it is saved."""
        return deepcopy({**self._parts.info.get("summary", {}), **self._parts.times})

    @property
    def info(self) -> dict[str, Any]:
        """Target, options and versions of the build."""
        shown = {k: v for k, v in self._parts.info.items() if k not in ("metadata", "summary")}
        return deepcopy(shown)

    @property
    def runs_here(self) -> bool:
        """False for an engine that was compiled for another processor."""
        return self._executor is not None

    @property
    def _is_for_gpu(self) -> bool:
        return bool(self._parts.info.get("archs"))

    @property
    def ranges(self) -> dict[str, Range]:
        """The declared range of each restricted dim."""
        return dict(self._ranges)

    @property
    def program(self) -> Program:
        """What the engine executes."""
        return self._parts.program

    def with_program(self, program: Program) -> Engine:
        """An engine that runs another program on the same constants and code.

        For tools that look inside; the program may only call kernels that the engine has.

        Raises:
            BadOption: it is no program.
        """
        if not isinstance(program, Program):
            raise BadOption(f"program is {check.shown(program)}", remedy="change engine.program")
        return self.of(replace(self._parts, program=program))

    def of(self, parts: EngineParts) -> Engine:
        """An engine of other parts, run as this one is."""
        return Engine(parts, threads=self.threads, device=self._device)

    @property
    def parts(self) -> EngineParts:
        """Program, constants and code, for tools that look inside."""
        return self._parts

    def checked(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Inputs as they are run, and the sizes that they state.

        Raises:
            ShapeMismatch: a feed does not fit ``inputs``.
        """
        return self._feeds.check(by_name(feeds, {}, self.inputs))

    def arena_bytes(self, symbols: Mapping[str, int]) -> int | None:
        """Bytes of the arenas of a run's segments; None where sizes are only known while it
        runs.

        Raises:
            BadOption: a size is no whole number of at least 0.
        """
        symbols = check.sizes("symbols", symbols)
        executor, total = self._runnable(), 0
        for step in self.program.steps:
            if isinstance(step, Segment):
                if not set(segment_symbols(step)) <= symbols.keys():
                    return None
                total += executor.plan(step, symbols).arena_bytes
        return total

    # --- running ---------------------------------------------------------------------------------

    def run(self, feeds: Mapping[str, Any] | None = None, /, **inputs: Any) -> dict[str, Any]:
        """Computes the outputs.

        Args:
            feeds: arrays by input name (anything with ``__array__`` or ``__dlpack__``; an engine
                for GPUs takes arrays on its GPU too, without copies).
            **inputs: the same, as keywords.

        Raises:
            ShapeMismatch: a feed does not fit ``inputs``.
            OutOfRange: an index in the data lies outside of its tensor.
            OutOfMemory: the memory plan, an input or a value does not fit into this machine.
            BadTarget: the engine is for another processor.
            CorruptEngine: the file that it was loaded from was written over.
        """
        one_way = inputs if feeds is None else None if inputs else feeds
        if self._steady is not None and type(one_way) is dict:
            if self._file is not None:
                self._file.check()  # else pages that are gone end the process
            found = self._steady(one_way)
            if found is not None:
                if self._file is not None:
                    self._file.check()
                return found
        results, sizes = self._run(self._runnable(), by_name(feeds, inputs, self.inputs))
        if self._steady is not None:
            self._steady.learn(sizes)
        return results

    __call__ = run

    def _run(
        self, executor: Executor, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """The outputs, and the sizes of symbolic dims."""
        program = self._parts.program
        values, symbols = self._feeds.check(executor.adopt(given))
        if self._file is not None:
            self._file.check()
        found, symbols = executor.run(program, values, symbols)
        results: dict[str, Any] = {}
        try:
            for spec, value, ours in zip(program.outputs, found, self._handed_over, strict=True):
                results[spec.name] = value if ours else copied(value)
        except MemoryError as error:
            raise refused(error, "a copy of an output") from error
        if self._file is not None:
            self._file.check()
        return results, symbols

    # --- on a GPU --------------------------------------------------------------------------------

    def run_on_device(
        self, feeds: Mapping[str, Any], /, *, stream: int | None = None
    ) -> dict[str, DeviceArray]:
        """``run`` whose results stay on the GPU.

        Args:
            feeds: arrays by input name: on the GPU of the engine (anything with ``__dlpack__`` or
                ``__cuda_array_interface__``), which are used in place, or on the host.
            stream: handle of a CUDA stream (torch: ``torch.cuda.current_stream().cuda_stream``).
                Everything is enqueued there, behind what makes the inputs, and the results are
                ready for what is enqueued there afterwards; inputs must stay until then. By
                default the results are complete when this returns.

        Raises:
            BadTarget: the engine is for CPUs.
            UserError: see ``run``.
        """
        executor = self.on_gpu()
        if stream is not None and type(stream) is not int:
            stream = check.whole("stream", stream, 0)
        if type(feeds) is not dict:
            feeds = by_name(feeds, {}, self.inputs)
        given = executor.adopt(feeds, stream)
        values, symbols = self._feeds.check(given)
        program = self._parts.program
        found = executor.run_on_device(program, values, symbols, stream, self._handed_over)
        return {spec.name: array for spec, array in zip(program.outputs, found, strict=True)}

    def to_device(self, feeds: Mapping[str, Any], /) -> dict[str, DeviceArray]:
        """Copies of inputs on the GPU, to be used many times.

        Raises:
            BadTarget: the engine is for CPUs.
            UserError: see ``run``.
        """
        executor = self.on_gpu()
        values, _ = self._feeds.check(by_name(feeds, {}, self.inputs))
        return {name: executor.to_device(array, name) for name, array in values.items()}

    def stream(self, batches: Iterable[Mapping[str, Any]], /) -> Iterator[dict[str, Any]]:
        """``run`` of many inputs, in order; on a GPU copies and kernels overlap.

        Args:
            batches: inputs by name, of the host. A batch must not be changed before its results
                are there; those that ``pinned`` made are copied without a detour. They are taken
                a few ahead of the results.

        Raises:
            BadOption: ``batches`` is nothing that can be walked over.
            UserError: see ``run``, when its batch is reached.
        """
        if not isinstance(batches, Iterable):
            raise BadOption(f"batches is {check.shown(batches)}", remedy="give a list of feeds")
        from tilewright.runtime.cuda.pipeline import can_stream, stream_batches

        program = self._parts.program
        if not (self._is_for_gpu and self.runs_here and can_stream(program)):
            yield from (self.run(feeds) for feeds in batches)
            return
        checked = (self._feeds.check(by_name(feeds, {}, self.inputs)) for feeds in batches)
        for found in stream_batches(self.on_gpu(), program, checked):
            yield {spec.name: array for spec, array in zip(program.outputs, found, strict=True)}

    def pinned(self, feeds: Mapping[str, Any], /) -> dict[str, Any]:
        """Copies of inputs in memory of the host that the GPU copies from at full speed.

        Raises:
            BadTarget: the engine is for CPUs.
            UserError: see ``run``.
        """
        from tilewright.runtime.cuda.memory import pinned_copy

        self.on_gpu().device.use()
        values, _ = self._feeds.check(by_name(feeds, {}, self.inputs))
        return {name: pinned_copy(array) for name, array in values.items()}

    def on_gpu(self) -> CudaExecutor:
        """What runs the engine on its GPU, for tools that look inside.

        Raises:
            BadTarget: the engine is for CPUs, or does not run here.
        """
        executor = self._runnable()
        if not self._is_for_gpu:
            raise BadTarget(
                "the engine is for CPUs: its results are on the host",
                remedy='use run; for GPUs compile with target="cuda" (--target cuda)',
            )
        return cast("CudaExecutor", executor)

    def _runnable(self) -> Executor:
        if self._executor is None:
            raise BadTarget(
                f"the engine was compiled for {self._parts.info.get('cpu')}; {self._absent}",
                remedy="compile for this machine, or run the engine on the one it was made for",
            )
        return self._executor

    def submit(
        self, feeds: Mapping[str, Any] | None = None, /, **inputs: Any
    ) -> Future[dict[str, Any]]:
        """``run`` on a thread of the engine; the future gives its result.

        Arrays that are given must not be changed before that.

        Raises:
            OutOfMemory: the system starts no more threads.
        """
        with self._lock:
            if self._submitter is None or self._submitter_process != os.getpid():
                # The threads of a pool do not exist in a forked child.
                self._submitter_process = os.getpid()
                self._submitter = ThreadPoolExecutor(
                    max_workers=max(1, self.threads), thread_name_prefix="tilewright-submit"
                )
            try:
                return self._submitter.submit(self.run, feeds, **inputs)
            except RuntimeError as error:  # the pool holds what it cannot start
                self._submitter = None
                raise OutOfMemory(
                    f"no thread for submit: {error}",
                    remedy="use run, end other threads, or raise the limit on threads (ulimit -u)",
                ) from error

    def profile(
        self, feeds: Mapping[str, Any] | None = None, /, *, runs: int | None = None, **inputs: Any
    ) -> Profile:
        """Measures where the time of a run goes.

        Args:
            feeds, **inputs: as for ``run``.
            runs: how many runs are timed with profiling, and as many without; by default 50,
                or as many as fit into ten seconds, but five.

        Raises:
            BadOption: ``runs`` is no positive number.
            UserError: see ``run``.
        """
        runs = None if runs is None else check.whole("runs", runs, 1)
        given = by_name(feeds, inputs, self.inputs)
        sizes: dict[str, int] = {}
        if self._is_for_gpu:
            from tilewright.runtime.cuda.profile import profile_runs as profile_on_gpu

            profile: Callable[..., Profile] = profile_on_gpu
        else:
            from tilewright.runtime.profile import profile_runs as profile
        return profile(
            self._runnable(),
            self.program,
            lambda executor: sizes.update(self._run(executor, given)[1]),
            runs=runs,
            threads=self.threads,
            symbols=lambda: sizes,
        )

    def stage_clock(self, feeds: Mapping[str, Any]) -> StageClock:
        """Times each stage of the kernels inside whole runs, for tools that compare engines.

        Raises:
            UserError: see ``run``.
        """
        from tilewright.runtime.stage_clock import StageClock

        given = by_name(feeds, {}, self.inputs)
        return StageClock(
            self._runnable(), self.program, lambda executor: self._run(executor, given)
        )

    def sizes(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of all symbolic dims of a run.

        Raises:
            UserError: see ``run``.
        """
        return self._run(self._runnable(), by_name(feeds, {}, self.inputs))[1]

    def explain(
        self,
        feeds: Mapping[str, Any] | None = None,
        /,
        *,
        runs: int | None = None,
        sizes: Mapping[str, int] | None = None,
        board: str | None = None,
        what_if: str | None = None,
        **inputs: Any,
    ) -> Explanation:
        """Why the engine is as fast as it is: times, roofs, decisions, what to do next.

        Args:
            feeds, **inputs: inputs to time it with; without any, random ones of ``sizes``.
            runs: as for ``profile``; 0 for none.
            sizes: of symbolic dims, where there are no feeds.
            board: a GPU of the tables whose roofs are taken instead; nothing is timed then.
            what_if: another precision (``int8``, ``bf16``, ``fp16``) whose worth is to be told.

        Raises:
            BadOption: a size is of no dim, ``runs`` is no number, ``what_if`` no precision.
            BadTarget: the board is unknown.
            UserError: see ``run``.
        """
        from tilewright.runtime.explain.of_engine import explain_engine
        from tilewright.runtime.explain.what_if import check_precision

        runs = None if runs is None else check.whole("runs", runs, 0)
        return explain_engine(
            self._parts,
            feeds=by_name(feeds, inputs, self.inputs),
            sizes=check.sizes("sizes", sizes),
            ranges=self._ranges,
            threads=self.threads,
            board=board,
            runs_here=self.runs_here,
            gpu=self.on_gpu().device.name if self._is_for_gpu and self.runs_here else None,
            measure=(lambda given: self.profile(given, runs=runs)) if runs != 0 else None,
            precision=None if what_if is None else check_precision(what_if),
        )

    # --- files -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the engine to a ``.tw`` file, whole or not at all.

        A link stays and its file is replaced; a file that exists keeps its permissions.

        Raises:
            CacheError: it cannot be written, or the path is a folder, a device or a pipe.
            BadOption: ``path`` is no path.
            CorruptEngine: the file that it was loaded from was written over.
        """
        engine_file.save(self._parts, path)


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    inspect: bool = False,
    device: int | None = None,
) -> Engine:
    """Loads an engine file.

    Args:
        path: a ``.tw`` file.
        threads: threads of one run; None takes what it was compiled for.
        device: number of the GPU that runs an engine for GPUs; None for the first.
        inspect: accept an engine for another processor, which can be looked at but not run.

    Raises:
        CorruptEngine: the file is damaged, truncated, foreign or hostile.
        UserError: there is no such file.
        BadTarget: it was compiled for another processor.
        BadOption: an option is of a wrong type or out of range.
    """
    threads = None if threads is None else check.thread_count(threads)
    only_looked_at = check.flag("inspect", inspect)
    parts = engine_file.load_parts(path)
    try:
        engine = Engine(parts, threads=threads, device=device)
        if not only_looked_at:
            engine._runnable()
    except (CorruptEngine, BadTarget) as error:
        error.file = error.file or str(path)
        raise
    return engine
