"""What quantisation costs, on data that the caller chose.

Input -> Output: a job, data and perhaps labels or a metric -> ``Sensitivity``.
Not here: scores (score), putting nodes in and out (sensitivity).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilewright.compress.calibrate import Progress
from tilewright.compress.data import Batches, open_data
from tilewright.compress.expected import expected_recipe
from tilewright.compress.job import Job
from tilewright.compress.options import QuantizeOptions
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.score import Metric, Scorer, read_labels
from tilewright.compress.search import Budget, search
from tilewright.compress.sensitivity import measure
from tilewright.compress.simulator import Simulator
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption
from tilewright.report.quantization import Front, Sensitivity

EVAL_LIMIT = 64
BUDGET_LIMIT = 1000  # samples to score choices on: shares of a percent take many


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to score on, and by what.

    Attributes:
        data: None: the calibration data.
        labels: see ``score.read_labels``.
        metric: of the caller.
        limit: samples to score choices on at most.
        ranked: samples to rank nodes on at most.
        budget: what may be lost; None: only measure.
        prove: whether every choice next to the chosen one is measured.
    """

    data: Any
    labels: Any
    metric: Metric | None
    limit: int
    ranked: int
    budget: Budget | None
    prove: bool = False

    @staticmethod
    def of(
        *,
        sensitivity: Any = False,
        eval_data: Any = None,
        labels: Any = None,
        metric: Any = None,
        eval_limit: Any = None,
        max_drop: Any = None,
        min_sqnr: Any = None,
        prove: Any = False,
    ) -> Evaluation | None:
        """Checks; None where nothing is to be evaluated.

        Raises:
            BadOption: what to score on is given in vain, or twice.
        """
        budget = _budget(max_drop, min_sqnr)
        most = EVAL_LIMIT if budget is None else BUDGET_LIMIT
        limit = most if eval_limit is None else check.whole("eval_limit", eval_limit, 1)
        if check.flag("prove", prove) and budget is None:
            raise BadOption(
                "prove is given, but nothing is chosen",
                remedy="add a budget: max_drop (--max-drop) or min_sqnr (--min-sqnr)",
            )
        if not check.flag("sensitivity", sensitivity) and budget is None:
            given = {"eval_data": eval_data, "labels": labels, "metric": metric}
            given["eval_limit"] = eval_limit
            vain = [name for name, value in given.items() if value is not None]
            if vain:
                raise BadOption(
                    f"{vain[0]} is given, but nothing is evaluated",
                    remedy="add sensitivity=True (--sensitivity) or a budget, or leave it out",
                )
            return None
        if labels is not None and metric is not None:
            raise BadOption("labels and a metric are given", remedy="leave one of them out")
        if labels is not None and eval_data is None:
            raise BadOption("labels without eval_data", remedy="give the data that they belong to")
        metric = check.function("metric", metric)
        if max_drop is not None and labels is None and metric is None:
            raise BadOption(
                "max_drop is of a metric, and there is none",
                remedy="give labels (--labels) or a metric, or use min_sqnr (--min-sqnr)",
            )
        return Evaluation(
            data=eval_data,
            labels=labels,
            metric=metric,
            limit=limit,
            ranked=limit if sensitivity else min(limit, EVAL_LIMIT),
            budget=budget,
            prove=prove,
        )


def _budget(max_drop: Any, min_sqnr: Any) -> Budget | None:
    for name, value in (("max_drop", max_drop), ("min_sqnr", min_sqnr)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value) and value >= 0):
            raise BadOption(
                f"{name} is {check.shown(value)}",
                remedy="use a number, 0 or more: max_drop=0.005, min_sqnr=30",
            )
    if max_drop is None and min_sqnr is None:
        return None
    return Budget(max_drop=max_drop, min_sqnr_db=min_sqnr)


def check_scorable(options: QuantizeOptions) -> None:
    """Refuses to score what the simulator does not know.

    Raises:
        BadOption: activations are dynamic, or numbers are float8.
    """
    if options.format == "float8":
        raise BadOption(
            "an evaluation with format float8: the simulator counts the steps of integers",
            remedy="use format int8, or leave it out",
        )
    if options.activations == "dynamic":
        raise BadOption(
            "an evaluation with dynamic activations", remedy="use uint8 or int8, or leave it out"
        )


def evaluate(
    job: Job,
    wanted: Evaluation,
    data: Any,
    preprocessing: Preprocessing | None,
    threads: int | None,
    progress: Progress | None,
) -> tuple[Sensitivity, Front | None]:
    """What each node costs on the data to score on, and the choice within the budget."""
    simulator = Simulator(job.model, job.plan, threads=threads)

    def scorer(limit: int) -> tuple[Scorer, Batches]:
        return _scorer(job, wanted, data, preprocessing, simulator, limit)

    recipe = job.recipe()
    types = {node.name: node.op_type for node in job.model.view().nodes}
    few, batches = scorer(wanted.ranked)
    expected = expected_recipe(job.model, job.plan, recipe, batches, threads)
    found = measure(simulator, few, job.plan, recipe, expected, types, job.seen, progress=progress)
    if wanted.budget is None:
        return found, None
    front = search(
        job,
        simulator,
        few if wanted.limit == wanted.ranked else scorer(wanted.limit)[0],
        found,
        wanted.budget,
        next(iter(batches)),
        prove=wanted.prove,
        threads=threads,
        progress=progress,
    )
    chosen = front.points[front.chosen]
    for node in chosen.float_nodes:
        job.log.add("search", node, "kept in float", (("int8", f"budget: {wanted.budget}"),))
    return found, front


def _scorer(
    job: Job,
    wanted: Evaluation,
    data: Any,
    preprocessing: Preprocessing | None,
    simulator: Simulator,
    limit: int,
) -> tuple[Scorer, Batches]:
    """Scores on some samples, and these."""
    source = data if wanted.data is None else wanted.data
    inputs = job.model.view().inputs
    batches = open_data(source, inputs, preprocessing=preprocessing, limit=limit)
    if not batches.again:
        raise BadOption(
            "the data to score on are an iterator, which ends after one pass",
            remedy="give a list, or a function that returns a new iterator",
        )
    scorer = Scorer(
        batches,
        lambda feeds: simulator.run({}, feeds),
        labels=None if wanted.labels is None else read_labels(wanted.labels, batches),
        metric=wanted.metric,
        most=limit,
    )
    return scorer, batches
