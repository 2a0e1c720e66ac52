"""What quantisation did and what it costs, as records and as lines of text.

Input -> Output: counts, decisions, effects of nodes -> lines in the order in which a person reads.
Not here: measuring (compress.sensitivity), printing (cli).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.core.plural import plural
from tilewright.core.record import Decision
from tilewright.report.units import us_text

_SHOWN = 10  # nodes
BROKEN_DB = 10.0  # beyond what a node's bits should cost: a scale, a range or data are wrong
FASTER = 0.99  # of the time: what is less than that is faster, beyond doubts of the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEffect:
    """What quantising one node does.

    Attributes:
        node, op_type: of the model.
        sqnr_db: of the outputs with this node alone quantised.
        noise: relative noise of the outputs then.
        excess_db: how much more that is, or the noise of its steps alone is, than with nearest
            integers and ranges of the data scored on, in the same types.
        drop: of the metric then; None without one.
        gain: of the metric when this node alone stays in float; without a metric, of dB.
        causes: relative noise of each part of its error alone; empty where it was not explained.
    """

    node: str
    op_type: str
    sqnr_db: float
    noise: float
    excess_db: float
    drop: float | None
    gain: float
    causes: Mapping[str, float]

    @property
    def broken(self) -> bool:
        """Whether it loses far more than its bits should cost."""
        return self.excess_db >= BROKEN_DB

    @property
    def main_cause(self) -> str | None:
        """The part with the most noise."""
        return max(self.causes, key=lambda name: self.causes[name]) if self.causes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Of all nodes, broken ones first, then the worst.

    Attributes:
        samples: that were scored.
        float_metric, metric: of the float and of the quantised model; None without a metric.
        sqnr_db: of the quantised model.
        nodes: broken ones by noise, then the others by noise.
    """

    samples: int
    float_metric: float | None
    metric: float | None
    sqnr_db: float
    nodes: tuple[NodeEffect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One choice of precisions.

    Attributes:
        num_int8: nodes on integers.
        float_nodes: the others, in the order in which they left.
        sqnr_db, metric: of its outputs; the metric is None without one.
        predicted_us: the sum of its nodes' measured times.
        size_bytes: of the weights.
        within: whether it keeps the budget.
    """

    num_int8: int
    float_nodes: tuple[str, ...]
    sqnr_db: float
    metric: float | None
    predicted_us: float
    size_bytes: int
    within: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A choice next to the chosen one.

    Attributes:
        nodes: that differ.
        to: ``float`` or ``int8``.
        ratio: of the time of whole runs to that of the chosen one.
        within: whether it keeps the budget; None where it is slower and was not scored.
    """

    nodes: tuple[str, ...]
    to: str
    ratio: float
    within: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Accuracy, latency and size of choices between int8 and float.

    Attributes:
        budget: in words.
        points: from all on integers to all in float.
        chosen: index of the fastest that was measured within the budget.
        optimal: indices of those that no other beats in accuracy, latency and size.
        measured_us: whole runs of the float model, of all int8, and of the chosen one.
        samples: rows of the inputs that were timed.
        moves: every choice next to the chosen one, measured, the fastest first; empty where that
            was not asked for.
        steps: how often such a choice was faster and was taken.
    """

    budget: str
    points: tuple[FrontPoint, ...]
    chosen: int
    optimal: tuple[int, ...]
    measured_us: Mapping[str, float]
    samples: int
    moves: tuple[Move, ...] = ()
    steps: int = 0

    @property
    def is_slower(self) -> bool:
        """Whether the chosen one takes longer than the float model."""
        return self.measured_us["chosen"] > self.measured_us["float"]

    @property
    def verdict(self) -> str | None:
        """What the moves prove; None without them."""
        if not self.moves:
            return None
        alone = plural(sum(len(move.nodes) == 1 for move in self.moves), "node")
        runs = plural(sum(len(move.nodes) > 1 for move in self.moves), "run")
        told = f"{alone} moved alone and {runs} of nodes moved to float, each built and timed"
        kept = [move for move in self.moves if move.within is not False]
        if out := len(self.moves) - len(kept):
            told += f"; {out} of them faster and outside of the budget"
        if not kept:
            return told
        first = kept[0]
        more = f" and {len(first.nodes) - 1} more" if len(first.nodes) > 1 else ""
        told += f"; the fastest takes {first.ratio:.3f} times as long ({first.nodes[0]}{more}"
        told += f" to {first.to})"
        return f"{told}: no optimum yet" if first.ratio < FASTER else told


def quantization_lines(
    output: str,
    summary: Mapping[str, Any],
    decisions: Sequence[Decision],
    found: Sensitivity | None,
    front: Front | None = None,
) -> Iterator[str]:
    """The report of ``tilewright quantize``."""
    size = summary["size_bytes"] / 1e6
    yield f"{'file':<12} {output}, {size:.2f} MB"
    kind = summary["weights"].split()[0]
    yield (
        f"{kind:<12} {plural(summary['layers'], 'layer')} (weights {summary['weights']}, "
        f"activations {summary['activations']}), {plural(summary['carriers'], 'node')} between"
    )
    yield f"{'calibration':<12} {summary['calibration']}, {plural(summary['samples'], 'sample')}"
    for one in decisions:
        if one.stage == "remedies" and one.chosen.startswith("applied"):
            yield f"{'remedy':<12} {one.subject}: {one.chosen}"
    kept = summary["kept_in_float"]
    if kept:
        more = ", ..." if len(kept) > 3 else ""
        yield f"{'in float':<12} {plural(len(kept), 'node')}: {', '.join(kept[:3])}{more}"
    if front is not None:
        yield from _front_lines(front)
    if found is not None:
        yield from _sensitivity_lines(found)


def _front_lines(front: Front) -> Iterator[str]:
    chosen = front.points[front.chosen]
    in_float = len(chosen.float_nodes)
    yield f"{'budget':<12} {front.budget}"
    yield f"{'chosen':<12} {plural(chosen.num_int8, 'node')} on integers, {in_float} in float"
    times = ", ".join(f"{name} {us_text(us)}" for name, us in front.measured_us.items())
    yield f"{'measured':<12} {times} ({plural(front.samples, 'sample')})"
    if front.is_slower:
        yield f"{'slower':<12} than the float model here: keep that one, unless size decides"
    if front.verdict is not None:
        yield f"{'moves':<12} {front.verdict}"


def _sensitivity_lines(found: Sensitivity) -> Iterator[str]:
    scores = f"{found.sqnr_db:.1f} dB signal to noise"
    if found.float_metric is not None and found.metric is not None:
        scores += f", metric {found.metric:.4f} (float {found.float_metric:.4f})"
    yield f"{'score':<12} {scores}, {plural(found.samples, 'sample')}"
    for one in found.nodes[:_SHOWN]:
        if one.broken:
            yield f"{'broken?':<12} {broken_line(one)}"
    yield ""
    yield "alone, dB  beyond bits      drop   gain if float  main cause   node"
    for one in found.nodes[:_SHOWN]:
        drop = "-" if one.drop is None else f"{one.drop:+.4f}"
        unit = " dB" if one.drop is None else ""
        cause = one.main_cause or "-"
        alone = f"{one.sqnr_db:9.1f} {one.excess_db:+9.1f} dB"
        yield f"{alone} {drop:>9} {one.gain:+12.4f}{unit:<3}  {cause:<12} {one.node}"
    if len(found.nodes) > _SHOWN:
        yield f"{len(found.nodes) - _SHOWN} more"


def broken_line(one: NodeEffect) -> str:
    """What is said of a node that loses more than its bits should."""
    cause = f", by {one.main_cause}" if one.main_cause else ""
    return (
        f"{one.node}: {one.excess_db:.0f} dB more noise than its bits should give{cause}; look at "
        "its scales, or at the data that they are of"
    )
