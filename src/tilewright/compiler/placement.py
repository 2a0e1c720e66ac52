"""Says of every node of an imported model which kernel or step computes it, or what removed it.

Input -> Output: the lineage of the nodes, the finished program, the decisions -> ``Placement``s.
Guarantees: each source node once, in the model's order.
Not here: following names through the graph passes (graph.lineage).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.core.record import Decision, Placement
from tilewright.graph.lineage import Origin
from tilewright.runtime.program import Program, Segment, all_steps


def place(
    origins: Iterable[Origin],
    program: Program,
    decisions: Iterable[Decision],
    became: Mapping[str, str],
) -> tuple[Placement, ...]:
    """Places every source node.

    Args:
        origins: what the graph passes made of each node.
        program: with its kernels.
        decisions: of the build, for what a pass said of a node.
        became: what each node of the last graph was lowered to (``Builder.became``).
    """
    finder = _Finder(program, decisions, became)
    return tuple(finder.place(origin) for origin in origins)


class _Finder:
    def __init__(
        self,
        program: Program,
        decisions: Iterable[Decision],
        became: Mapping[str, str],
    ) -> None:
        self._became = became
        self._in_kernels: set[str] = set()
        self._in_host: set[str] = set()
        self._in_jumps: set[str] = set()
        for step in all_steps(program):
            if isinstance(step, Segment):
                self._in_kernels.update(name for call in step.calls for name in call.sources)
                guards = (guard.node for call in step.calls for guard in call.guards)
                self._in_jumps.update(guards)
            elif isinstance(node := getattr(step, "node", None), str):
                self._in_host.add(node)
        self._said = {
            (decision.stage, decision.subject): decision.chosen
            for decision in decisions
            if decision.chosen != "kept"
        }

    def place(self, origin: Origin) -> Placement:
        node, stage = origin.node, origin.gone_in
        detail = self._said.get((stage, f"{node.name} ({node.op_type})"), "")
        names = origin.computed_by if node.op_type != "Constant" else ()
        found, by = "removed", stage
        if not names:
            is_constant = origin.is_constant or node.op_type == "Constant"
            if is_constant or stage.startswith("fold_"):
                found = "folded"
            detail = detail or ("a constant" if is_constant else "")
        elif detail.startswith("folded into"):
            found = "folded"
        else:
            found, by, reason = self._where(names)
            detail = detail or reason
        return Placement(
            node=node.name,
            op_type=node.op_type,
            place=found,
            by=by,
            computed_by=names,
            detail=detail,
        )

    def _where(self, names: tuple[str, ...]) -> tuple[str, str, str]:
        """The place, the stage that chose it, and a reason where one is needed."""
        if any(name in self._in_kernels for name in names):
            return "kernel", "lower", ""
        if any(name in self._in_jumps for name in names):
            return "kernel", "native_branches", "a jump around the kernels of each side"
        if any(name in self._in_host for name in names):
            return "host", "lower", ""
        kinds = {self._became.get(name, "") for name in names}
        if kinds == {"known"}:
            return "folded", "shapes", "its result is known from shapes and constants"
        if kinds == {""}:
            return "removed", "lower", "its branch is never taken"
        if "view" in kinds:
            return "view", "lower", "the same memory under another shape"
        return "removed", "fuse", "nobody reads its result"
