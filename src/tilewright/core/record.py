"""What was decided and what was measured: the only source of every explanation.

Input -> Output: stages append ``Decision``s; reports render them.
Not here: rendering (report), timing (tune, runtime).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One choice of one stage.

    Attributes:
        stage: the pass or stage that chose (``fold_constants``, ``fuse_vertical``, ``tactic`` ...).
        subject: the node, kernel or value concerned.
        chosen: what was done.
        rejected: the options not taken, each with its reason.
        predicted_us, measured_us: microseconds, where known.
    """

    stage: str
    subject: str
    chosen: str
    rejected: tuple[tuple[str, str], ...] = ()
    predicted_us: float | None = None
    measured_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a node of the imported model went.

    Attributes:
        node, op_type: as imported.
        place: ``kernel``, ``host`` (a step between kernels), ``view`` (memory under another
            shape), ``folded`` (into constants) or ``removed``.
        by: the pass or stage that put it there.
        computed_by: names under which kernels and host steps list it.
        detail: what that stage said.
    """

    node: str
    op_type: str
    place: str
    by: str
    computed_by: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measured quantity with its unit and the number of samples behind it."""

    subject: str
    quantity: str
    value: float
    unit: str
    samples: int = 1


@dataclass(slots=True)
class DecisionLog:
    """The decisions of one build, in order."""

    entries: list[Decision] = field(default_factory=list)

    def add(
        self,
        stage: str,
        subject: str,
        chosen: str,
        rejected: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Appends a decision that has neither prediction nor measurement."""
        self.entries.append(
            Decision(stage=stage, subject=subject, chosen=chosen, rejected=rejected)
        )
