"""What quantisation costs, on data that the caller chose.

Input -> Output: a job, data and perhaps labels or a metric -> ``Sensitivity``.
Not here: scores (score), putting nodes in and out (sensitivity).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.compress.calibrate import Progress
from tilewright.compress.data import open_data
from tilewright.compress.job import Job
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.score import Metric, Scorer, read_labels
from tilewright.compress.sensitivity import measure
from tilewright.compress.simulator import Simulator
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption
from tilewright.report.quantization import Sensitivity

EVAL_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to score on, and by what.

    Attributes:
        data: None: the calibration data.
        labels: see ``score.read_labels``.
        metric: of the caller.
        limit: samples at most.
    """

    data: Any
    labels: Any
    metric: Metric | None
    limit: int

    @staticmethod
    def of(
        *, sensitivity: Any, data: Any, labels: Any, metric: Any, limit: Any
    ) -> Evaluation | None:
        """Checks; None where nothing is to be evaluated.

        Raises:
            BadOption: what to score on is given in vain, or twice.
        """
        limit = check.whole("eval_limit", limit, 1)
        if not check.flag("sensitivity", sensitivity):
            given = {"eval_data": data, "labels": labels, "metric": metric}
            vain = [name for name, value in given.items() if value is not None]
            if vain:
                raise BadOption(
                    f"{vain[0]} is given, but nothing is evaluated",
                    remedy="add sensitivity=True (--sensitivity), or leave it out",
                )
            return None
        if labels is not None and metric is not None:
            raise BadOption("labels and a metric are given", remedy="leave one of them out")
        if labels is not None and data is None:
            raise BadOption("labels without eval_data", remedy="give the data that they belong to")
        metric = check.function("metric", metric)
        return Evaluation(data=data, labels=labels, metric=metric, limit=limit)


def evaluate(
    job: Job,
    wanted: Evaluation,
    data: Any,
    preprocessing: Preprocessing | None,
    threads: int | None,
    progress: Progress | None,
) -> Sensitivity:
    """What each node costs, on the data to score on."""
    if job.options.activations == "dynamic":
        raise BadOption(
            "sensitivity with dynamic activations", remedy="use uint8 or int8, or leave it out"
        )
    source = data if wanted.data is None else wanted.data
    inputs = job.model.view().inputs
    batches = open_data(source, inputs, preprocessing=preprocessing, limit=wanted.limit)
    if not batches.again:
        raise BadOption(
            "the data to score on are an iterator, which ends after one pass",
            remedy="give a list, or a function that returns a new iterator",
        )
    simulator = Simulator(job.model, job.plan, threads=threads)
    labels = None if wanted.labels is None else read_labels(wanted.labels, batches)
    scorer = Scorer(
        batches,
        lambda feeds: simulator.run({}, feeds),
        labels=None if labels is None else labels[: wanted.limit],
        metric=wanted.metric,
    )
    recipe = job.recipe()
    types = {node.name: node.op_type for node in job.model.view().nodes}
    return measure(simulator, scorer, job.plan, recipe, types, job.seen, progress=progress)
