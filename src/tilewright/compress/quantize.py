"""``tilewright.quantize``: a float model and data in, an 8-bit model in ONNX out.

Input -> Output: a model, calibration data and options -> ``Quantized``: ONNX with QuantizeLinear
and DequantizeLinear, and the record of what was decided.
Guarantees: the caller's model is not changed; nothing is written.
Not here: the stages (job), what each node costs (evaluate), running integers (compiler).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.compress.calibrate import Progress
from tilewright.compress.evaluate import EVAL_LIMIT, Evaluation, check_scorable, evaluate
from tilewright.compress.job import Job, prepare
from tilewright.compress.options import make_options
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.score import Metric
from tilewright.core import check_option as check
from tilewright.core.record import Decision
from tilewright.core.whole_file import check_output, whole_file
from tilewright.report.quantization import Front, Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A quantised model.

    Attributes:
        model: the bytes of an ONNX file; ``tilewright.compile`` takes them.
        decisions: what was chosen, in order.
        summary: counts and sizes.
        sensitivity: what each node costs; None where nothing was evaluated.
        front: the choices between integers and float; None without a budget.
    """

    model: bytes
    decisions: tuple[Decision, ...]
    summary: Mapping[str, Any]
    sensitivity: Sensitivity | None = None
    front: Front | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the ONNX file.

        Raises:
            CacheError: it cannot be written.
        """
        check_output(path)
        with whole_file(path) as unfinished:
            Path(unfinished).write_bytes(self.model)


def quantize(
    model: Any,
    data: Any = None,
    *,
    calibration: str = "minmax",
    percentile: float | None = None,
    activations: str = "uint8",
    per_channel: bool = True,
    remedies: str | Iterable[str] = "auto",
    exclude: Iterable[str] | None = None,
    preprocessing: Preprocessing | None = None,
    limit: int | None = None,
    sensitivity: bool = False,
    eval_data: Any = None,
    labels: Any = None,
    metric: Metric | None = None,
    eval_limit: int = EVAL_LIMIT,
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Quantises a model to 8 bits.

    Args:
        model: a path, the bytes of an ONNX file, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: to calibrate with: a folder of pictures or arrays, ``.npy``, ``.npz``, an iterable of
            feeds, or a function that returns one. About 100 samples are enough for most models;
            dynamic activations need none.
        calibration: ``minmax``, ``moving-average``, ``percentile``, ``mse`` or ``entropy``.
        percentile: share of the numbers inside of the range, in percent (99.99).
        activations: ``uint8``, ``int8`` (symmetric) or ``dynamic``.
        per_channel: a weight scale for each output channel; False: one a layer.
        remedies: ``auto``, ``none``, or some of ``equalize``, ``smooth``, ``adaround``,
            ``bias-correction``.
        exclude: names of nodes to leave in float.
        preprocessing: of pictures.
        limit: samples to calibrate with at most.
        sensitivity: find out which node hurts, and why.
        eval_data: what to score on, as ``data``; None: the calibration data.
        labels: of ``eval_data``: a class for each sample, or a CSV with columns file and label.
        metric: called with a function that runs the model on feeds; returns a number, higher for
            better. Without labels and metric, outputs are compared with the float model's.
        eval_limit: samples to score on at most.
        max_drop: a budget: how much the metric may drop (0.005: half a point of accuracy). Nodes
            stay in float where that is needed, or where integers are slower by the clock.
        min_sqnr: a budget: least ratio of float outputs to their error, in dB.
        threads: of the float model's runs; None: as many as there are processors.
        progress: called with (stage, done, total).

    Returns:
        The model in ONNX with its decisions.

    Raises:
        InvalidModel, UnsupportedOp: the model cannot be read.
        BadOption: an option is unknown or contradicts another, or nothing can be quantised.
        BadData: data that cannot be calibrated with.
        BudgetNotMet: no choice with a node on integers keeps the budget.
    """
    wanted = Evaluation.of(
        sensitivity=sensitivity,
        data=eval_data,
        labels=labels,
        metric=metric,
        limit=eval_limit,
        max_drop=max_drop,
        min_sqnr=min_sqnr,
    )
    options = make_options(
        calibration=calibration,
        percentile=percentile,
        activations=activations,
        per_channel=per_channel,
        remedies=remedies,
        exclude=exclude,
    )
    if wanted is not None:
        check_scorable(options)
    job = prepare(
        model,
        data,
        options,
        preprocessing=preprocessing,
        limit=None if limit is None else check.whole("limit", limit, 1),
        threads=threads,
        progress=check.function("progress", progress),
    )
    if wanted is None:
        return conclude(job)
    found, front = evaluate(job, wanted, data, preprocessing, threads, progress)
    return conclude(job, found, front)


def conclude(job: Job, found: Sensitivity | None = None, front: Front | None = None) -> Quantized:
    """Writes the model and counts."""
    left = frozenset(front.points[front.chosen].float_nodes if front is not None else ())
    emitted = job.emit(left)
    nodes = [*(layer.node for layer in job.plan.layers), *job.plan.carriers]
    float_bytes = sum(layer.weights.nbytes for layer in job.plan.layers)
    return Quantized(
        model=emitted,
        decisions=tuple(job.log.entries),
        sensitivity=found,
        front=front,
        summary={
            "layers": sum(layer.node not in left for layer in job.plan.layers),
            "carriers": sum(name not in left for name in job.plan.carriers),
            "kept_in_float": [*(name for name, _, _ in job.plan.kept), *sorted(left & set(nodes))],
            "activations": job.options.activations,
            "weights": "int8 per channel" if job.options.per_channel else "int8 per tensor",
            "calibration": job.options.calibration,
            "samples": 0 if job.seen is None else job.seen.num_samples,
            "size_bytes": len(emitted),
            "float_weight_bytes": float_bytes,
        },
    )
