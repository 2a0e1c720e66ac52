"""What a comparison found: times, ratios, and how quiet the machine was.

Samples of each contender and round, canaries of each round -> ``Comparison``s -> ``BenchReport``.
A ratio says how many times as long a peer takes as Tilewright: above 1, Tilewright is faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA = "tilewright.bench/1"
BEST = "best peer"
SLOWEST_CANARY = 1.10  # times the best one's time; slower rounds are thrown away

MOST_TRIPS = 2.0  # times the shortest round trip of a cache line
MOST_SPREAD = 1.3  # of a contender's median over its minimum, on a machine that is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One contender's times for one run of the model, in microseconds, over ``num_runs`` runs.

    ``error`` is the greatest difference from the first peer, relative to its greatest value.
    """

    contender: str
    version: str
    precision: str
    settings: str
    setup_s: float
    num_runs: int
    min_us: float
    median_us: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: every contender's batch between two canaries.

    Attributes:
        canary_flops: multiply-adds of float32 a second (each counts 2) that the processors reached
            in the slower of the round's canaries.
        samples_us: of each contender, in microseconds.
        round_trip_ns: of a cache line between two of the processors, in the slower of the
            canaries; None with one thread.
    """

    canary_flops: float
    samples_us: Mapping[str, Sequence[float]]
    round_trip_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """How much of its peak the machine gave.

    Attributes:
        best_flops: the highest of the rounds, in float32 operations a second.
        share: of each round, relative to the best.
        num_kept, num_discarded: rounds that count, and that were too slow to count.
        num_asked: rounds that should have counted.
        roof_flops: what this machine reached when its roofs were measured; None: they never were.
        round_trip_ns: of each round, between two processors; empty with one thread.
    """

    best_flops: float
    share: Sequence[float]
    num_kept: int
    num_discarded: int
    num_asked: int
    roof_flops: float | None = None
    round_trip_ns: Sequence[float] = ()

    @property
    def is_torn(self) -> bool:
        """Whether processors were near each other in some rounds and far in others: times with
        several threads are of two machines then.
        """
        trips = self.round_trip_ns
        return bool(trips) and max(trips) > MOST_TRIPS * min(trips)

    @property
    def is_slow(self) -> bool:
        """Whether even the best round was far from the roof: something slowed down all of them."""
        return self.roof_flops is not None and SLOWEST_CANARY * self.best_flops < self.roof_flops

    @property
    def are_few(self) -> bool:
        """Whether fewer than half of the rounds that were asked for count."""
        return 2 * self.num_kept < self.num_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The timings on one model, and for each peer the ratio of its times to Tilewright's.

    ``left_out`` has the peers that cannot run this model, with what they said.
    """

    model: str
    threads: int
    device: str
    commit: str | None
    inputs: Mapping[str, str]
    timings: Sequence[Timing]
    ratio_min: Mapping[str, float]
    ratio_median: Mapping[str, float]
    canaries: Canaries
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def uneven(self) -> list[str]:
        """Contenders whose median is far from their minimum: something else ran between."""
        return [one.contender for one in self.timings if one.median_us > MOST_SPREAD * one.min_us]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """All comparisons, and the geometric mean of their ratios for each peer.

    ``BEST`` is the peer that is the fastest one on a model.
    """

    comparisons: Sequence[Comparison]
    geomean_min: Mapping[str, float]
    geomean_median: Mapping[str, float]
    schema: str = field(default=SCHEMA)

    @staticmethod
    def of(comparisons: Sequence[Comparison]) -> BenchReport:
        """Takes the means."""
        return BenchReport(
            comparisons=comparisons,
            geomean_min=_means([with_best(one.ratio_min) for one in comparisons]),
            geomean_median=_means([with_best(one.ratio_median) for one in comparisons]),
        )


def with_best(ratios: Mapping[str, float]) -> dict[str, float]:
    """The ratios, and the one to the fastest peer."""
    return {**ratios, BEST: min(ratios.values())}


def is_kept(one: Round, rounds: Sequence[Round]) -> bool:
    """Whether a round met about as fast a machine as the best of the rounds did."""
    best = max(other.canary_flops for other in rounds)
    return best <= SLOWEST_CANARY * one.canary_flops


def canaries_of(
    rounds: Sequence[Round], num_asked: int, roof_flops: float | None = None
) -> Canaries:
    """Summary of the rounds' canaries, of which so many should count."""
    best = max(one.canary_flops for one in rounds)
    num_kept = sum(is_kept(one, rounds) for one in rounds)
    return Canaries(
        best_flops=best,
        share=[one.canary_flops / best for one in rounds],
        num_kept=num_kept,
        num_discarded=len(rounds) - num_kept,
        num_asked=num_asked,
        roof_flops=roof_flops,
        round_trip_ns=[one.round_trip_ns for one in rounds if one.round_trip_ns is not None],
    )


def kept_samples_us(rounds: Sequence[Round], contender: str) -> list[float]:
    """A contender's times in the rounds that count."""
    return [us for one in rounds if is_kept(one, rounds) for us in one.samples_us[contender]]


def _means(ratios: Sequence[Mapping[str, float]]) -> dict[str, float]:
    peers = dict.fromkeys(peer for ratio in ratios for peer in ratio)
    return {
        peer: statistics.geometric_mean([ratio[peer] for ratio in ratios if peer in ratio])
        for peer in peers
    }
