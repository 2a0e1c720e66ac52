"""How a nest runs: lanes, unrolling and parallel granularity.

Input -> Output: plain records that tactics (codegen.cpu.tactics) fill and generators read.
Guarantees: a schedule never changes what is computed, only the order of evaluation of reductions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One nest's schedule.

    Attributes:
        tactic: name of the tactic that made it.
        lanes: elements of one vector; 1 means scalar code.
        vector: the parallel axis that vectors run along, or None.
        unroll: axis -> number of copies computed together (vectors, for the vector axis); the
            order of the axes is that of their loops.
        outer: unrolled axes whose blocks are the slowest digits of an iteration number.
        chunk: steps of the vector axis (in unrolled groups) within one parallel iteration; 0 means
        all.
        reduce_lanes: lanes for reductions that no vector axis runs through; 1 means scalar.
        depth: steps of a reduction's innermost loop in one round, where they divide its length.
        slant: a row along which windows of a sum overlap: its copies take the steps of a round by
            the place that they load; None for one step after another.
    """

    tactic: str
    lanes: int = 1
    vector: str | None = None
    unroll: Mapping[str, int] = field(default_factory=dict)
    outer: tuple[str, ...] = ()
    chunk: int = 0
    reduce_lanes: int = 1
    depth: int = 1
    slant: str | None = None

    def copies(self, axis: str) -> int:
        """How many copies of an axis are computed together."""
        return self.unroll.get(axis, 1)

    @property
    def text(self) -> str:
        """One line for reports and cache keys."""
        unroll = ",".join(f"{axis}x{count}" for axis, count in self.unroll.items())
        depth = f", depth={self.depth}" if self.depth > 1 else ""
        slant = f", slant={self.slant}" if self.slant else ""
        return (
            f"{self.tactic}(lanes={self.lanes}, vector={self.vector}, unroll=[{unroll}], "
            f"outer=[{','.join(self.outer)}], chunk={self.chunk}, "
            f"reduce_lanes={self.reduce_lanes}{depth}{slant})"
        )
