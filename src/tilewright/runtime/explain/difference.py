"""Compares two explained engines.

Input -> Output: explanations before and after -> ``Difference``.
Method: kernels that share source nodes form a group; a group is the same if it is one kernel of the
same code on each side.
Guarantees: groups are sorted by how much their time changed; where nothing was timed, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.core.record import Decision
from tilewright.report.difference import ChangedKernels, Difference, FirstDecision
from tilewright.report.explanation import Explanation, KernelReport

_ROUNDS = 3


def explain_in_turns(
    before: Callable[[], Explanation],
    after: Callable[[], Explanation],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Explanation, Explanation]:
    """Explains two engines several times in turns, as their times are to be compared.

    Args:
        before, after: explain an engine.
        progress: called with explanations so far, and all of them; ``before`` has the even numbers.

    Returns:
        Of each the explanation with the fastest run: other programs only make things slower.
    """
    sides: tuple[list[Explanation], list[Explanation]] = ([], [])
    for done in range(2 * _ROUNDS):
        if progress is not None:
            progress(done, 2 * _ROUNDS)
        sides[done % 2].append((before, after)[done % 2]())
        if done == 1 and any(side[0].end_to_end_us is None for side in sides):
            break  # nothing was timed
    old, new = (min(side, key=lambda e: e.end_to_end_us or 0.0) for side in sides)
    return old, new


def difference(
    before: Explanation, after: Explanation, names: tuple[str, str] | None = None
) -> Difference:
    """What changed from one engine to another.

    Args:
        names: what to call them; by default their models' names.
    """
    groups = _groups(before.kernels, after.kernels)
    changed = [_changed(old, new) for old, new in groups if not _is_same(old, new)]
    first, second = names or (before.title, after.title)
    return Difference(
        before=first,
        after=second,
        before_us=before.end_to_end_us,
        after_us=after.end_to_end_us,
        facts=tuple(_facts(before.facts, after.facts)),
        kernels=tuple(sorted(changed, key=lambda item: -abs(item.cost_us or 0.0))),
        num_same=len(groups) - len(changed),
        decision=_first_decision(before.decisions, after.decisions),
        before_sizes=before.input_sizes,
        after_sizes=after.input_sizes,
        assumed=tuple(dict.fromkeys((*before.assumed, *after.assumed))),
        disturbance=before.disturbance or after.disturbance,
        targets=_other_targets(before.facts, after.facts),
        models=_other_models(before, after),
    )


def _other_targets(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Threads and processors of two engines, where they differ."""
    differing = [fact for fact in _facts(before, after) if fact[0] in ("target", "cpu", "threads")]
    return ", ".join(f"{name} {old} and {new}" for name, old, new in differing)


def _other_models(before: Explanation, after: Explanation) -> str:
    """How two models differ; empty for the same nodes."""
    old, new = ({(p.node, p.op_type) for p in e.placements} for e in (before, after))
    if old == new:
        return ""
    return (
        f"different models, {before.title} with {len(old)} nodes and {after.title} with "
        f"{len(new)}: {len(old & new)} have the same name and operator, and only those "
        "can be compared"
    )


_Group = tuple[list[KernelReport], list[KernelReport]]


def _groups(before: Sequence[KernelReport], after: Sequence[KernelReport]) -> list[_Group]:
    """Connected components of kernels that share nodes, in the order of the engines."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for kernel in (*before, *after):
        for node in kernel.nodes[1:]:
            parent[root(node)] = root(kernel.nodes[0])
    groups: dict[str, _Group] = {}
    for side, kernels in enumerate((before, after)):
        for kernel in kernels:
            key = root(kernel.nodes[0]) if kernel.nodes else f"#{side}.{kernel.index}"
            groups.setdefault(key, ([], []))[side].append(kernel)
    return list(groups.values())


def _is_same(before: Sequence[KernelReport], after: Sequence[KernelReport]) -> bool:
    """Equal code on equal nodes, kernel by kernel."""
    return [(k.code, k.nodes) for k in before] == [(k.code, k.nodes) for k in after]


def _changed(before: Sequence[KernelReport], after: Sequence[KernelReport]) -> ChangedKernels:
    old, new = _time(before), _time(after)
    nodes = dict.fromkeys(node for kernel in (*before, *after) for node in kernel.nodes)
    return ChangedKernels(
        nodes=tuple(nodes),
        before=tuple(before),
        after=tuple(after),
        what=_what(before, after),
        cost_us=None if old is None or new is None else new - old,
    )


def _time(kernels: Sequence[KernelReport]) -> float | None:
    times = [kernel.best_us for kernel in kernels]
    return None if None in times else sum(time for time in times if time is not None)


def _what(before: Sequence[KernelReport], after: Sequence[KernelReport]) -> str:
    if not before or not after:
        return f"{len(before)} kernels became {len(after)}: its nodes are computed elsewhere"
    parts: list[str] = []
    if len(before) != len(after):
        parts.append(f"{len(before)} kernels became {len(after)}")
    for label, name in (("tactic", "tactic"), ("type", "dtype"), ("layout", "layout")):
        old = ", ".join(dict.fromkeys(str(getattr(kernel, name)) for kernel in before))
        new = ", ".join(dict.fromkeys(str(getattr(kernel, name)) for kernel in after))
        if old != new:
            parts.append(f"{label} {old} -> {new}")
    if not parts and [k.schedule for k in before] != [k.schedule for k in after]:
        parts.append(f"schedule {before[0].schedule} -> {after[0].schedule}")
    return "; ".join(parts) or "other code"


def _facts(before: Mapping[str, object], after: Mapping[str, object]) -> list[tuple[str, str, str]]:
    return [
        (name, _fact(before.get(name)), _fact(after.get(name)))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]


def _fact(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _first_decision(before: Sequence[Decision], after: Sequence[Decision]) -> FirstDecision | None:
    """The first that chose otherwise; where all chose the same, the first with other reasons."""
    for view in (lambda d: (d.stage, d.subject, d.chosen), lambda d: d):
        for number in range(max(len(before), len(after))):
            old = before[number] if number < len(before) else None
            new = after[number] if number < len(after) else None
            if old is None or new is None or view(old) != view(new):
                return FirstDecision(number=number, before=old, after=new)
    return None
