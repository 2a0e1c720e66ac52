"""What a model would cost, without building it.

Input -> Output: a model, sizes of its symbolic dims, a device -> ``Explanation`` without tactics
and times: bytes, operations and the least time of each kernel, the same on every known device,
memory as a formula.
Guarantees: kernels are those that a build would make before it chooses layouts and tactics; nothing
is written or run.
Not here: explaining an engine (runtime.explain).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.codegen.cpu.target import named_target
from tilewright.compiler.compile_kernels import KernelStore, finish
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import make_options
from tilewright.compiler.pipeline import Build, lower_model, read_constants
from tilewright.compiler.placement import place
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption
from tilewright.core.plural import listed
from tilewright.graph.facade import Model
from tilewright.kernel.canonical import canonicalize
from tilewright.kernel.counts import compute_dtype
from tilewright.kernel.ir import Kernel
from tilewright.kernel.text import print_kernel
from tilewright.lower.families import LOWERINGS
from tilewright.report.explanation import Explanation
from tilewright.runtime.explain.collect import constant_sizes, explain, footprint_bytes
from tilewright.runtime.explain.devices import device_estimates
from tilewright.runtime.explain.kernels import Subject
from tilewright.runtime.explain.of_engine import device_floors, settled_sizes
from tilewright.runtime.explain.what_if import check_precision
from tilewright.runtime.feeds import bind_shape
from tilewright.runtime.program import KernelCall, TensorSpec


class _Uncompiled(KernelStore):
    """Makes calls that say what a kernel does, without code."""

    def call(self, kernel: Kernel) -> KernelCall:
        """The call; equal kernels have equal keys."""
        canonical = canonicalize(kernel).kernel
        work = self.work_of(kernel)
        buffers = tuple(buffer.name for buffer in kernel.buffers)
        return KernelCall(
            kernel=hashlib.sha256(print_kernel(canonical).encode()).hexdigest()[:32],
            name=kernel.name,
            sources=kernel.sources,
            buffers=buffers,
            dims=(),
            stages=(),
            traffic=tuple(work.traffic[name] for name in buffers),
            flops=work.flops,
            dtype=compute_dtype(kernel).name,
        )


def estimate(
    model: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    board: str | None = None,
    threads: int | None = None,
    dims: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    what_if: str | None = None,
) -> Explanation:
    """Estimates a model.

    Args:
        model: as for ``compile``.
        sizes: of symbolic dims; those that are missing are assumed, and the result names them.
        board: a GPU of the tables; None is this machine, by its measured roofs.
        threads: of a run on this machine; None is the number of cores.
        dims: ranges of symbolic dims.
        example_inputs: of a torch module.
        shapes: of inputs by name, from which sizes are taken as well; ``sizes`` must agree.
        what_if: another precision (``int8``, ``bf16``, ``fp16``) whose worth is to be told.

    Raises:
        UserError: the model, a size or the board is no good.
    """
    options = make_options(
        target="cpu", cpu=None, precision="fp32", threads=threads, dims=dims, require=None
    )
    sized = check.sizes("sizes", sizes)
    shaped = check.shapes("shapes", shapes)
    build = Build(options=options, cache=ObjectCache(None))
    imported = Model.load(
        model,
        build.log,
        example_inputs=example_inputs,
        known=lambda domain, op_type: (domain, op_type) in LOWERINGS,
    )
    builder, draft = lower_model(imported, build)
    target = named_target("host")
    program = finish(draft, _Uncompiled(target, build.log))
    subject = Subject(
        title=Path(imported.name).name,
        program=program,
        constants=constant_sizes(read_constants(program, builder)),
        decisions=tuple(build.log.entries),
        placements=place(imported.origins(), program, build.log.entries, builder.became),
        info={
            "cpu": target.name,
            "precision": options.precision,
            "threads": options.threads,
            "ranges": dict(options.ranges),
            "summary": {"interpreted": build.interpreted},
        },
        is_built=False,
    )
    given = _sizes_of(program.inputs, shaped, sized)
    known, assumed = settled_sizes(subject, given, options.ranges)
    footprint = footprint_bytes(subject, known)
    floors = device_floors(board, target.name, options.threads, footprint)
    return explain(
        subject,
        sizes=known,
        assumed=assumed,
        floors=floors,
        devices=device_estimates(subject, known, footprint),
        precision=None if what_if is None else check_precision(what_if),
    )


def _sizes_of(
    inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the symbolic dims of inputs.

    Raises:
        BadOption: a shape is of no input.
        ShapeMismatch: a shape does not fit its input, or disagrees with a size.
    """
    found = dict(sizes)
    specs = {spec.name: spec for spec in inputs}
    if unknown := sorted(set(shapes) - set(specs)):
        raise BadOption(
            f"no input is called {listed(unknown)}",
            remedy=f"the inputs are {listed(sorted(specs))}",
        )
    for name, shape in shapes.items():
        try:
            array = np.broadcast_to(np.int8(0), tuple(shape))
        except ValueError as error:  # more axes or elements than NumPy can count
            raise BadOption(f"shapes[{name!r}]: {error}", remedy="give a smaller shape") from error
        bind_shape(specs[name], array, found, fed=True)
    return found
