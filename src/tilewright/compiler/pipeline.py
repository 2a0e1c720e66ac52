"""Everything that happens to a model, in order.

Input -> Output: a model and options -> ``EngineParts`` with its decisions.
    import -> normal form -> passes -> shapes -> kernels -> fusion -> layouts -> schedules ->
    machine code
Guarantees: the same model, options and version give the same parts, byte for byte.
Not here: running and verifying the engine (compiler.build, compiler.verify).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy.typing as npt

from tilewright.codegen.cpu.dots import dot_kinds
from tilewright.codegen.cpu.driver import add_driver
from tilewright.codegen.cpu.emit import Module
from tilewright.codegen.cpu.objects import llvm_version
from tilewright.codegen.cpu.pool import pool_module
from tilewright.codegen.cpu.target import CpuTarget, named_target
from tilewright.codegen.cuda.target import is_cuda
from tilewright.compiler.bfloat16 import use_bfloat16
from tilewright.compiler.build_program import Builder, DraftProgram, fuse_program, layout_program
from tilewright.compiler.compile_kernels import KernelStore, compile_objects, finish
from tilewright.compiler.contracts import check_compiled, check_program
from tilewright.compiler.native_branches import native_branches
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import CompileOptions, Progress, Tuning
from tilewright.compiler.placement import place
from tilewright.compiler.tuning import Trials, tuned_pick
from tilewright.core.errors import BadOption
from tilewright.core.plural import listed
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.graph.view import GraphView
from tilewright.kernel.dot import PAIRS
from tilewright.lower.families import LOWERINGS
from tilewright.runtime.cpu.allocator import put_side_by_side
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.program import Program, Segment, all_steps, reads

CONTROL_FLOW = frozenset((("", "If"), ("", "Loop"), ("", "Scan")))


@dataclass(slots=True)
class Build:
    """One build: what is known so far.

    Attributes:
        times_s: seconds of each stage.
        view: the graph after the passes.
        interpreted: (node, operator, reason) of nodes without a kernel.
        tuning: how schedules are chosen; None: by formula, without a look at the clock.
        feeds: inputs to tune and to compare passes with; None draws some.
        reproducer: folder for the part of a model that a wrong pass changes.
        effort: rounds, timings and gain of the search.
    """

    options: CompileOptions
    cache: ObjectCache
    progress: Progress | None = None
    log: DecisionLog = field(default_factory=DecisionLog)
    times_s: dict[str, float] = field(default_factory=dict)
    view: GraphView | None = None
    interpreted: list[tuple[str, str, str]] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    tuning: Tuning | None = None
    feeds: Mapping[str, Any] | None = None
    reproducer: Path | None = None
    effort: Mapping[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage and reports it."""
        if self.progress is not None:
            self.progress(name, 0, 0)
        start = perf_counter()
        yield
        self.times_s[name] = self.times_s.get(name, 0.0) + perf_counter() - start


def compile_parts(model: Model, build: Build, *, verify_passes: bool = False) -> EngineParts:
    """Runs all stages on an imported model."""
    target = named_target("host" if build.options.cpu is None else build.options.cpu)
    builder, draft = lower_model(model, build, verify_passes=verify_passes)
    if build.options.precision == "bf16":
        with build.stage("precision"):
            lanes = target.lanes(32) if PAIRS in dot_kinds(target) else 0
            use_bfloat16(
                draft, builder.constants, build.log, build.options.disable, pair_lanes=lanes
            )
    store = KernelStore(target, build.log, build.options.disable)
    store.count(draft)
    with build.stage("layout"):
        disabled = build.options.disable
        layout_program(
            draft,
            builder.constants,
            target.lanes(32),
            build.log,
            disabled,
            least_block=target.least_block,
            dots=dot_kinds(target),
        )
    if build.tuning is not None:
        with build.stage("tune"):
            trials = Trials(draft, builder.constants, store, build.cache, support_texts(target))
            pick = tuned_pick(build.tuning, trials, build.options, build.feeds, build.progress)
            store.pick, build.effort = pick, pick.effort
    with build.stage("generate code"):
        program = finish(draft, store)
        program = native_branches(program, build.log)
    build.kernels = store.kernels
    placements = place(model.origins(), program, build.log.entries, builder.became)
    check_program(build.options, program, placements)
    with build.stage("compile kernels"):
        store.texts.update(support_texts(target))
        objects = compile_objects(store.texts, target, build.cache, build.progress)
    constants = read_constants(program, builder)
    builder.constants.clear()  # each goes when it is moved
    put_side_by_side(constants)
    return EngineParts(
        program=program,
        constants=constants,
        objects=objects,
        sources=dict(store.texts),
        exports=dict(store.exports),
        placements=placements,
        info=describe(model, build, _machine(target), builder.num_kernels, program),
    )


def lower_model(
    model: Model, build: Build, *, verify_passes: bool = False
) -> tuple[Builder, DraftProgram]:
    """The stages that need no target: passes, shapes, kernels, fusion."""
    with build.stage("graph passes"):
        run_graph_passes(
            model,
            build.log,
            verify=verify_passes,
            feeds=build.feeds if verify_passes else None,
            folder=build.reproducer if verify_passes else None,
            # Tensor cores take floats; kernels that widen weights are those of CPUs.
            small_weights=not is_cuda(build.options.target),
        )
        build.view = view = model.view()
    with build.stage("shapes"):
        inference = model.infer(minimum=_minimum(build.options, view), log=build.log)
    with build.stage("lower"):
        # VNNI takes unsigned data, tensor cores take either.
        builder = Builder(inference, build.log, signed_bytes=is_cuda(build.options.target))
        draft = builder.build(view)
    build.interpreted = builder.interpreted
    check_compiled(build.options.require, build.interpreted)
    with build.stage("fuse"):
        fuse_program(draft, (), build.log)
    return builder, draft


def read_constants(program: Program, builder: Builder) -> dict[str, npt.NDArray[Any]]:
    """The constants that a program reads."""
    read = reads(program)
    return {name: array for name, array in builder.constants.items() if name in read}


def run_graph_passes(
    model: Model,
    log: DecisionLog,
    *,
    verify: bool = False,
    feeds: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    small_weights: bool = True,
) -> None:
    """Brings an imported graph to the form that is lowered.

    Args:
        verify, feeds, folder, small_weights: as for ``Model.run_passes``.
    """
    model.expand_functions(needs_expansion, log)
    model.run_passes(log, verify=verify, feeds=feeds, folder=folder, small_weights=small_weights)


def needs_expansion(domain: str, op_type: str) -> bool:
    """True for operators that have neither kernel nor host step, only a function body."""
    key = (domain, op_type)
    return key not in LOWERINGS and key not in CONTROL_FLOW and not Model.has_reference(*key)


def support_texts(target: CpuTarget) -> dict[str, str]:
    """LLVM IR of what every engine has besides kernels: the driver and the thread pool."""
    module = Module(target)
    add_driver(module)
    return {"driver": module.text(), "pool": pool_module(target)}


def _minimum(options: CompileOptions, view: GraphView) -> dict[str, int]:
    """The smallest size of each declared symbol; a range of an unknown name is an error."""
    known = {name for value in view.inputs for dim in value.shape or () for name in dim.symbols}
    unknown = sorted(set(options.ranges) - known)
    if unknown:
        raise BadOption(
            f"unknown dims {listed(unknown)}",
            remedy=f"the model's symbolic dims are {listed(sorted(known))}",
        )
    return {name: low for name, (low, _) in options.ranges.items() if low is not None}


def _machine(target: CpuTarget) -> dict[str, Any]:
    return {
        "llvm": llvm_version(),
        "cpu": target.name,
        "triple": target.triple,
        "required_features": target.required_features,
        "vector_bytes": target.vector_bytes,
    }


def describe(
    model: Model, build: Build, machine: Mapping[str, Any], num_kernels: int, program: Program
) -> dict[str, Any]:
    """What an engine says of its build; ``machine`` is what it was built for and by."""
    from tilewright import __version__

    options = build.options
    return {
        "tilewright": __version__,
        "target": options.target,
        **machine,
        "precision": options.precision,
        "threads": options.threads,
        "disabled": options.disable,
        "integer_only": options.integer_only,
        "ranges": {name: tuple(bounds) for name, bounds in sorted(options.ranges.items())},
        "metadata": model.metadata,
        "model": Path(model.name).name,
        "summary": {
            "kernels_before_fusion": num_kernels,
            "kernels": sum(_calls(program)),
            "interpreted": tuple(build.interpreted),
        },
    }


def _calls(program: Program) -> Iterator[int]:
    for step in all_steps(program):
        if isinstance(step, Segment):
            yield len(step.calls)
