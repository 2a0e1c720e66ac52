"""What ``tilewright.quantize`` may be told, by name, and which stage each option is of.

Not here: their defaults and checks (options, evaluate, weight_only).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from tilewright.compress.calibrate import Progress
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.score import Metric
from tilewright.core.errors import BadOption


class Arguments(TypedDict, total=False):
    """Options of ``tilewright.quantize``; what is left out has its default.

    Attributes:
        exclude: names of nodes to leave in float.
        require: ``["quantized"]``: an error where any other node that computes stays in float.
        preprocessing: of pictures.
        limit: samples to calibrate with at most.
        threads: of the float model's runs; by default as many as there are processors.
        progress: called with (stage, done, total).

        format: ``int8`` (default), or ``float8``: weights and activations in float8 (e4m3), for
            GPUs from sm_90 on.
        calibration: ``minmax`` (default), ``moving-average``, ``percentile``, ``mse`` or
            ``entropy``.
        percentile: share of the numbers inside of the range, in percent (99.99).
        activations: ``uint8`` (default), ``int8`` (symmetric) or ``dynamic``.
        per_channel: a weight scale for each output channel (default); False: one a layer.
        remedies: ``auto`` (default), ``none``, or some of ``equalize``, ``smooth``, ``gptq``,
            ``adaround``, ``bias-correction``.

        sensitivity: find out which node hurts, and why.
        eval_data: what to score on, as ``data``; by default the calibration data.
        labels: of ``eval_data``: a class for each sample, or a CSV with columns file and label.
        metric: called with a function that runs the model on feeds; returns a number, higher for
            better. Without labels and metric, outputs are compared with the float model's.
        eval_limit: samples to score on at most (64; with a budget, choices are scored on 1000).
        max_drop: a budget: how much the metric may drop (0.005: half a point of accuracy). Nodes
            stay in float where that is needed, or where integers are slower by the clock.
        min_sqnr: a budget: least ratio of float outputs to their error, in dB.
        prove: with a budget, build and time every choice next to the chosen one, and go on from a
            faster one: minutes for most models.

        weights: ``int8`` or ``int4``: quantise weights of matrix products alone, activations stay
            in float. Data, which need not be given, then serve to round weights (GPTQ).
        block: rows of weights that share a scale, a power of two from 16 (32).
        wide: with ``int4``, names of nodes whose weights get 8 bits; ``auto`` (default): products
            that no other one follows and, with data, those with the greatest error for their size,
            up to 5 % of the weights; ``none``.
    """

    exclude: Iterable[str] | None
    require: Iterable[str] | None
    preprocessing: Preprocessing | None
    limit: int | None
    threads: int | None
    progress: Progress | None
    format: str
    calibration: str
    percentile: float | None
    activations: str
    per_channel: bool
    remedies: str | Iterable[str]
    sensitivity: bool
    eval_data: Any
    labels: Any
    metric: Metric | None
    eval_limit: int
    max_drop: float | None
    min_sqnr: float | None
    prove: bool
    weights: str | None
    block: int | None
    wide: str | Iterable[str] | None


DATA = ("preprocessing", "limit", "threads", "progress")
NUMBERS = ("format", "calibration", "percentile", "activations", "per_channel", "remedies")
SCORES = (
    "sensitivity",
    "eval_data",
    "labels",
    "metric",
    "eval_limit",
    "max_drop",
    "min_sqnr",
    "prove",
)
SMALL = ("weights", "block", "wide")
_AS_LEFT_OUT = {"sensitivity": False, "prove": False, "per_channel": True}


def part(given: Arguments, names: Iterable[str]) -> dict[str, Any]:
    """Those of some names that were given."""
    return {name: given[name] for name in names if name in given}  # type: ignore[literal-required]


def check_names(given: Arguments) -> None:
    """Refuses names that are no options, as Python does.

    Raises:
        TypeError: there are some.
    """
    unknown = sorted(set(given) - set(Arguments.__annotations__))
    if unknown:
        raise TypeError(f"quantize() got an unexpected keyword argument {unknown[0]!r}")


def refuse_vain(given: Arguments, names: Iterable[str], why: str) -> None:
    """Refuses options that would have no effect.

    Raises:
        BadOption: one of them was given.
    """
    for name, value in part(given, names).items():
        if value is not None and value is not _AS_LEFT_OUT.get(name):
            raise BadOption(f"{name} would have no effect: {why}", remedy=f"leave out {name}")
