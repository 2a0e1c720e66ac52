"""Joins two segments that follow each other.

Input -> Output: a segment, views of its results, a second segment, the names that are read later
-> the steps that replace them.
Guarantees: the calls in the same order; what only they read becomes internal.
Not here: which segments are joined (compiler.native_branches).
"""

from __future__ import annotations

from tilewright.lower.reindex import Refusal
from tilewright.runtime.program import Reshape, Segment, Step


def merge(
    first: Segment, views: list[Reshape], second: Segment, after: set[str]
) -> list[Step] | Refusal:
    """One segment that does the work of both.

    Args:
        first, second: the segments.
        views: reshapes between them, in order.
        after: names of values that are read later.

    Returns:
        Reshapes of older values, the segment, reshapes that are read later.
    """
    shared = _names(first) & _names(second)
    if shared:
        return Refusal(f"two segments have buffers of the same name: {sorted(shared)[0]}")
    made = _names(first)
    early = [view for view in views if view.source not in made]
    late = [view for view in views if view.source in made]
    aliases = {view.target.name: view.source for view in late}
    inputs = {spec.name: spec for spec in (*first.inputs, *second.inputs)}
    for name in (*made, *aliases):
        inputs.pop(name, None)
    kept = [view for view in late if view.target.name in after]
    read = after | {view.source for view in kept}
    results = {spec.name: spec for spec in (*first.outputs, *second.outputs)}
    outputs = tuple(spec for name, spec in sorted(results.items()) if name in read)
    hidden = tuple(spec for name, spec in sorted(results.items()) if name not in read)
    merged = Segment(
        calls=(*first.calls, *second.calls),
        inputs=tuple(spec for _, spec in sorted(inputs.items())),
        outputs=outputs,
        internal=(*first.internal, *second.internal, *hidden),
        aliases={**first.aliases, **aliases, **second.aliases},
        checks=tuple(dict.fromkeys((*first.checks, *second.checks))),
    )
    return [*early, merged, *kept]


def _names(segment: Segment) -> set[str]:
    """Buffers that a segment makes."""
    return {spec.name for spec in (*segment.outputs, *segment.internal)}
