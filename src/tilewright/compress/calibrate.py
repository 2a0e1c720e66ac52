"""Run calibration data through the float model and watch the values to quantise.

Input -> Output: a model, a plan and batches -> observers by value, moments by layer.
Guarantees: a batch's values are seen and dropped before the next one runs; what is kept has a size
that the model sets, whatever the amount of data.
Not here: ranges of what was seen (observers), remedies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build import compile as compile_model
from tilewright.compress.data import BadData, Batches, Feeds, num_rows
from tilewright.compress.layers import Layer, Plan
from tilewright.compress.moments import Moments
from tilewright.compress.observers import Observer, make_observer
from tilewright.core.plural import plural
from tilewright.graph.quantizable import Quantizable

Array = npt.NDArray[Any]
Progress = Callable[[str, int, int], None]

LEAST_SAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was seen.

    Attributes:
        observers: by value, one for each set of tied values.
        moments: by layer.
        largest: greatest magnitude of each input channel, by layer whose weights are a matrix.
        num_samples: rows of data.
    """

    observers: Mapping[str, Observer]
    moments: Mapping[str, Moments]
    largest: Mapping[str, Array]
    num_samples: int


def calibrate(
    model: Quantizable,
    plan: Plan,
    batches: Batches,
    *,
    method: str,
    share: float,
    second: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Watches every value that the plan quantises.

    Args:
        model: in float.
        plan: what to watch.
        batches: of feeds.
        method, share: see ``observers``.
        second: whether second moments are taken too (AdaRound needs them).
        threads: of a run.
        progress: called with (stage, samples so far, samples in all or 0).

    Raises:
        BadData: too few samples, all alike, or values that are not finite.
    """
    watched = _Watched.of(model, plan, method, share, second)
    names = [name for name in plan.readers if name not in watched.inputs]
    run = runner(model, names, threads)
    variety = Variety(batches.name)
    seen = 0
    for feeds in batches:
        watched.add(run(feeds))
        variety.add(feeds)
        seen += num_rows(feeds)
        if progress is not None:
            progress("calibrate", seen, batches.num_samples or 0)
    variety.check(seen)
    observers = watched.tied(plan)
    return Calibration(
        observers=observers, moments=watched.moments, largest=watched.largest, num_samples=seen
    )


def runner(
    model: Quantizable, names: Sequence[str], threads: int | None
) -> Callable[[Feeds], dict[str, Array]]:
    """A function that gives the named values of the float model, and the feeds themselves.

    It raises ``BadData`` where one of them is not finite.
    """
    engine = compile_model(model.observed(names), threads=threads, verify=False) if names else None

    def run(feeds: Feeds) -> dict[str, Array]:
        found = {} if engine is None else engine.run(feeds)
        for name, array in found.items():
            if not np.isfinite(array).all():
                raise BadData(
                    f"{name} of the model is NaN or infinite on calibration data",
                    remedy="run the float model on this data: it overflows, or the data are not "
                    "what it was trained on",
                )
        return {**feeds, **found}

    return run


@dataclass(slots=True)
class _Watched:
    plan: Plan
    inputs: frozenset[str]
    observers: dict[str, Observer]
    moments: dict[str, Moments]
    largest: dict[str, Array] = field(default_factory=dict)

    @staticmethod
    def of(model: Quantizable, plan: Plan, method: str, share: float, second: bool) -> _Watched:
        graph = model.view()
        nodes = {node.name: node for node in graph.nodes}
        return _Watched(
            plan=plan,
            inputs=frozenset(value.name for value in graph.inputs),
            observers={name: make_observer(method, share) for name in plan.readers},
            moments={
                layer.node: Moments(layer, nodes[layer.node], second=second)
                for layer in plan.layers
            },
        )

    def add(self, values: Mapping[str, Array]) -> None:
        for name, observer in self.observers.items():
            observer.add(values[name])
        for layer in self.plan.layers:
            self._add_layer(layer, values[layer.source])

    def _add_layer(self, layer: Layer, x: Array) -> None:
        moments = self.moments[layer.node]
        if moments.known and x.size:
            moments.add(x)
        if layer.op_type in ("MatMul", "Gemm") and x.size:
            most = np.abs(x).reshape(-1, x.shape[-1]).max(0)
            before = self.largest.get(layer.node)
            self.largest[layer.node] = most if before is None else np.maximum(before, most)

    def tied(self, plan: Plan) -> dict[str, Observer]:
        """The observers, those of tied values merged."""
        found = dict(self.observers)
        for group in plan.ties:
            first, *rest = sorted(group)
            for name in rest:
                found[first].merge(found[name])
                found[name] = found[first]
        return found


@dataclass(slots=True)
class Variety:
    """Whether samples differ at all."""

    name: str
    first: Feeds | None = None
    differ: bool = False
    constant: dict[str, float | None] = field(default_factory=dict)

    def add(self, feeds: Feeds) -> None:
        if self.first is None:
            self.first = {name: array[:1].copy() for name, array in feeds.items() if array.ndim}
        for name, array in feeds.items():
            if name in self.first and not self.differ:
                same = array.shape[1:] == self.first[name].shape[1:]
                self.differ = not same or bool((array != self.first[name]).any())
            if array.dtype.kind == "f" and array.size:
                low, high = float(array.min()), float(array.max())
                known = self.constant.setdefault(name, low)
                self.constant[name] = low if low == high == known else None

    def check(self, count: int) -> None:
        """Refuses data that tell nothing.

        Raises:
            BadData: too few samples, or all alike.
        """
        if count < LEAST_SAMPLES:
            raise BadData(
                f"{self.name}: {plural(count, 'sample')}, at least {LEAST_SAMPLES} are needed",
                remedy="give more: 100 that resemble what the model will see are enough for most",
            )
        flat = [name for name, value in self.constant.items() if value is not None]
        if flat:
            raise BadData(
                f"{self.name}: {flat[0]} is {self.constant[flat[0]]:g} everywhere",
                remedy="give real data: ranges of a constant say nothing",
            )
        if not self.differ:
            raise BadData(
                f"{self.name}: all {count} samples are the same",
                remedy="give data that differ as what the model will see does",
            )
