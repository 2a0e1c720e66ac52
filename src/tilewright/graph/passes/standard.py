"""The order of the graph passes, and how each is checked.

Input -> Output: a model in the newest form -> the same function in fewer and larger operators.
Guarantees: the graph verifier runs after every pass that changed something; with ``verify_passes``
the values of outputs before and after are compared too, and the guilty pass is named.
Not here: precision, layout and anything that knows a target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir

from tilewright.core.record import DecisionLog
from tilewright.graph.passes.base import Pass, PassContext
from tilewright.graph.passes.cancel_casts import cancel_casts
from tilewright.graph.passes.cancel_transposes import cancel_transposes
from tilewright.graph.passes.compare import Comparison
from tilewright.graph.passes.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tilewright.graph.passes.eliminate_dead_nodes import eliminate_dead_nodes
from tilewright.graph.passes.eliminate_identities import eliminate_identities
from tilewright.graph.passes.fold_batch_normalization import fold_batch_normalization
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fold_pads import fold_pads
from tilewright.graph.passes.fold_scale import fold_scale
from tilewright.graph.passes.fuse_horizontal import fuse_horizontal, fuse_quantized
from tilewright.graph.passes.hoist_gathers import hoist_gathers
from tilewright.graph.passes.inline_branches import inline_branches
from tilewright.graph.passes.integer_moves import integer_moves
from tilewright.graph.passes.integer_products import integer_products
from tilewright.graph.passes.keep_weights_small import keep_weights_small, widen_weights
from tilewright.graph.passes.make_integer_only import make_integer_only
from tilewright.graph.passes.recognise_attention import recognise_attention
from tilewright.graph.passes.recognise_gelu import recognise_gelu
from tilewright.graph.passes.recognise_hard_activations import recognise_hard_activations
from tilewright.graph.passes.recognise_normalization import recognise_normalization
from tilewright.graph.passes.recognise_softmax import recognise_softmax
from tilewright.graph.passes.recognise_swish import recognise_swish
from tilewright.graph.passes.simplify_reshapes import simplify_reshapes
from tilewright.graph.passes.sink_into_branches import sink_into_branches
from tilewright.graph.verify import verify as verify_graph

STANDARD: tuple[Pass, ...] = (
    # Before constants are folded, which would make floats of quantised weights.
    integer_moves,
    integer_products,
    keep_weights_small,
    # Less to look at first: constants, repetition, nodes that do nothing.
    eliminate_dead_nodes,
    fold_constants,
    inline_branches,
    sink_into_branches,
    fold_constants,
    inline_branches,
    eliminate_identities,
    eliminate_common_subexpressions,
    hoist_gathers,
    cancel_casts,
    simplify_reshapes,
    cancel_transposes,
    # Larger operators from arithmetic, inner ones before those that contain them.
    recognise_softmax,
    recognise_normalization,
    recognise_gelu,
    recognise_hard_activations,
    recognise_swish,
    recognise_attention,
    # Constants into weights.
    fold_pads,
    fold_batch_normalization,
    fold_scale,
    fuse_horizontal,
    # What the rewrites left.
    fold_constants,
    eliminate_identities,
    cancel_transposes,
    eliminate_common_subexpressions,
    eliminate_dead_nodes,
)

# For targets that multiply floats faster than they widen weights, and few wide matrices faster
# than many narrow ones, of integers too.
WITH_FLOAT_WEIGHTS: tuple[Pass, ...] = (
    fuse_quantized,
    *(widen_weights if step is keep_weights_small else step for step in STANDARD),
)

# Before anything else where the caller wants it: functions are recognised, then made of integers.
INTEGER_ONLY: tuple[Pass, ...] = (
    eliminate_dead_nodes,
    fold_constants,
    eliminate_identities,
    recognise_softmax,
    recognise_normalization,
    recognise_gelu,
    make_integer_only,
    eliminate_dead_nodes,
)


class Verify(Protocol):
    """Checks a model after a pass, and raises if it is not well formed."""

    def __call__(self, model: ir.Model, *, after: str) -> None: ...


def run_passes(
    model: ir.Model,
    log: DecisionLog | None = None,
    *,
    passes: Sequence[Pass] = STANDARD,
    verify: Verify | None = verify_graph,
    verify_passes: bool = False,
    feeds: dict[str, Any] | None = None,
    reproducer_folder: str | Path | None = None,
    assume_finite: bool = False,
    on_pass: Callable[[str, int], None] | None = None,
) -> PassContext:
    """Runs passes over a model, in place.

    Args:
        model: in the newest form (graph.normalize).
        log: takes the decisions.
        passes: in this order.
        verify: runs after each pass that changed something; None leaves it out.
        verify_passes: also compare the values of the outputs before and after each pass that
            changed something, in float64 on ``feeds`` (by default: random ones of a fixed seed).
        reproducer_folder: where a failing comparison writes the smallest part that differs.
        assume_finite: see ``PassContext``.
        on_pass: is told each pass's name and how many edits it made.

    Raises:
        InvalidModel: a pass broke the graph (with its name), or shapes contradict each other.
        VerificationFailed: a pass changed a value; names the pass and the smallest failing part.
    """
    ctx = PassContext(
        model=model,
        log=log if log is not None else DecisionLog(),
        assume_finite=assume_finite,
    )
    folder = Path(reproducer_folder) if reproducer_folder is not None else None
    comparison = Comparison(feeds=feeds, folder=folder) if verify_passes else None
    for step in passes:
        before = model.clone() if comparison is not None else None
        edits = ctx.changes
        ctx.stage = step.name
        step.run(ctx)
        if verify is not None and ctx.changes != edits:
            verify(model, after=step.name)
        if comparison is not None and before is not None and ctx.changes != edits:
            refused = comparison.check(before, model, step.name)
            if refused is not None:
                ctx.refuse("comparison", refused)
        if on_pass is not None:
            on_pass(step.name, ctx.changes - edits)
    return ctx
