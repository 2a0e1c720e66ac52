"""What happens to a model that is compiled for NVIDIA GPUs, after the stages of every target.

Input -> Output: a model and options -> ``EngineParts`` with cubins, PTX and their sources.
    .. -> fusion -> precision -> layout -> CUDA C++ -> machine code for each architecture
Requires: no GPU, and nothing but the extra ``[cuda]``.
Guarantees: the same model, options, version and compiler give the same parts, byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.codegen.cuda.deep import is_deep
from tilewright.codegen.cuda.nvrtc import compile_all, compiler_version
from tilewright.codegen.cuda.split_columns import split_columns
from tilewright.codegen.cuda.split_depth import split_depth
from tilewright.codegen.cuda.target import CudaTarget, cuda_target
from tilewright.compiler.build_program import DraftProgram
from tilewright.compiler.channels_last import channels_last_program
from tilewright.compiler.compile_kernels import finish
from tilewright.compiler.contracts import check_program
from tilewright.compiler.cuda_kernels import CudaStore
from tilewright.compiler.depth_last import depth_last_program
from tilewright.compiler.fold_columns import fold_columns_program
from tilewright.compiler.join_attention import join_attention_program
from tilewright.compiler.join_sums import join_sums_program
from tilewright.compiler.join_vectors import join_vectors_program
from tilewright.compiler.keep_float8 import keep_float8_program
from tilewright.compiler.lanes_last import lanes_last_program
from tilewright.compiler.narrow import narrow_program
from tilewright.compiler.pad_channels import pad_channels_program
from tilewright.compiler.pipeline import Build, describe, lower_model, read_constants
from tilewright.compiler.placement import place
from tilewright.compiler.pure_softmax import pure_softmax_program
from tilewright.compiler.store_quantized import store_quantized_program
from tilewright.core.dtypes import BFLOAT16, FLOAT16
from tilewright.core.errors import BadOption
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.kernel.ir import Kernel
from tilewright.runtime.engine_file import EngineParts
from tilewright.tune.on_gpu import scope_of
from tilewright.tune.store import Stage, Timing, TimingStore

_NARROW = {"fp16": FLOAT16, "bf16": BFLOAT16}  # what a precision keeps values in


def compile_cuda_parts(model: Model, build: Build, *, verify_passes: bool = False) -> EngineParts:
    """Runs all stages on an imported model."""
    target = cuda_target(build.options.target)
    version = compiler_version()
    builder, draft = lower_model(model, build, verify_passes=verify_passes)
    narrow = _NARROW.get(build.options.precision)
    disabled = build.options.disable
    if narrow is not None:
        with build.stage("precision"):
            if target.clusters:  # sums on tensor cores need not be those of float32
                keep_float8_program(draft, builder.constants, build.log)
            narrow_program(draft, builder.constants, build.log, narrow)
    with build.stage("layout"):  # of narrow values: those of quantised models too
        channels_last_program(draft, builder.constants, build.log)
        fold_columns_program(draft, builder.constants, build.log)
        pad_channels_program(draft, builder.constants, build.log)
        depth_last_program(draft, builder.constants, build.log)
        lanes_last_program(draft, builder.constants, build.log, disabled, target.clusters)
    if narrow is not None and "attention" not in disabled:
        with build.stage("attention"):
            pure_softmax_program(draft, build.log)
            join_attention_program(draft, builder.constants, build.log)
    if narrow is not None and "gemv" not in disabled:
        join_vectors_program(draft, build.log)
    if target.clusters and not {"tensor_core", "tma"} & set(disabled):
        join_sums_program(draft, builder.constants, build.log)
    store_quantized_program(draft, builder.constants, build.log)
    if "split_depth" not in disabled:
        _split_sums(draft, build.log, target.clusters, disabled)
    store = CudaStore(
        build.log,
        build.options.disable,
        constants=builder.constants,
        clusters=target.clusters,
        candidates=build.options.candidates,
        timings=_timings(build, target, version),
    )
    with build.stage("generate code"):
        program = finish(draft, store)
    build.kernels = store.kernels
    placements = place(model.origins(), program, build.log.entries, builder.became)
    check_program(build.options, program, placements)
    with build.stage("compile kernels"):
        code, compiled = compile_all(store.texts, target, build.progress)
        store.log_usage(compiled)
    machine = {"cpu": target.name, "nvrtc": version, "archs": target.archs}
    return EngineParts(
        program=program,
        constants=read_constants(program, builder),
        objects={},
        device_code=code,
        sources=dict(store.texts),
        exports=dict(store.exports),
        placements=placements,
        info=describe(model, build, machine, builder.num_kernels, program),
    )


def _timings(build: Build, target: CudaTarget, version: str) -> Mapping[Stage, list[Timing]]:
    """What a store knows of the target."""
    if build.tuning is None or build.tuning.store is None:
        return {}
    if len(target.archs) > 1:
        raise BadOption(
            f"a timing_store with the target {target.name}: timings are of one architecture",
            remedy=f"compile for one of them, for example target={target.archs[-1]}",
        )
    store = TimingStore(build.tuning.store, write=False)
    found = store.read(scope_of(target.name, version))
    if found.ignored:
        rows, reason = plural(found.ignored, "row"), "they hold no times or sizes"
        build.log.add("timing_store", store.path.name, "used", ((rows, reason),))
    return found.timings


def _split_sums(
    program: DraftProgram, log: DecisionLog, clusters: bool, disabled: Collection[str]
) -> None:
    """Splits long sums of few outputs, and reductions of few columns, in every segment, those of
    sub-programs too.

    Where blocks have clusters, the kernels that can use them split their sums by themselves.
    """
    for segment in program.segments():
        segment.items = [
            _in_parts(item, log, disabled)
            if isinstance(item, Kernel) and not (clusters and is_deep(item))
            else item
            for item in segment.items
        ]


def _in_parts(kernel: Kernel, log: DecisionLog, disabled: Collection[str]) -> Kernel:
    made, parts = split_depth(kernel)
    what = "sum"
    if parts == 1:
        made, parts = split_columns(kernel, disabled)
        what = "reduction"
    if parts > 1:
        log.add("split_depth", "+".join(kernel.sources), f"the {what} in {parts} parts")
    return made
