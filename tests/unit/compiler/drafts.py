"""Drafts of float16 engines for GPUs, before code is generated, and what they compute.

Input -> Output: a model -> its draft; a draft and inputs -> every value, by the interpreter.
"""

from __future__ import annotations

from typing import Any

import onnx

from tilewright.compiler.build_program import Builder, DraftProgram, DraftSegment
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import make_options
from tilewright.compiler.pipeline import Build, lower_model
from tilewright.graph.facade import Model
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Kernel
from tilewright.lower.context import View


def draft_of(model: onnx.ModelProto) -> tuple[Builder, DraftProgram, Build]:
    """A draft after fusion."""
    options = make_options(
        target="sm_90",
        cpu=None,
        precision="fp16",
        threads=1,
        dims=None,
        require=None,
    )
    build = Build(options=options, cache=ObjectCache(None))
    builder, draft = lower_model(Model.load(model, build.log), build)
    return builder, draft, build


def segment_of(draft: DraftProgram) -> DraftSegment:
    """The one segment of a draft."""
    (step,) = [step for step in draft.steps if isinstance(step, DraftSegment)]
    return step


def kernels_of(draft: DraftProgram) -> list[Kernel]:
    """The kernels of its segment."""
    return [item for item in segment_of(draft).items if isinstance(item, Kernel)]


def values_of(draft: DraftProgram, constants: Any, feeds: Any, sizes: Any = None) -> dict[str, Any]:
    """Every value, by the interpreter."""
    found, sizes = {**constants, **feeds}, sizes or {}
    for item in segment_of(draft).items:
        if isinstance(item, View):
            shape = [dim.evaluate(sizes) for dim in item.target.shape]
            found[item.target.name] = found[item.source.name].reshape(shape)
        else:
            found.update(interpret(item, {b.name: found[b.name] for b in item.inputs}, sizes))
    return found
