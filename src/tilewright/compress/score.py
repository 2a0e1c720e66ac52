"""How good a model's outputs are: labels, a caller's metric, or nearness to the float model.

Input -> Output: a function that runs a model -> a number, the higher the better.
    accuracy  share of the samples whose greatest score is that of the label
    metric    what the caller's function returns
    sqnr_db   10 log10(sum of squares of the float outputs / sum of squared differences)
Guarantees: labels that do not match, and metrics that raise or return no number, are errors that
say which and what to do.
Not here: which model is run (simulator, an engine).
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.data import BadData, Batches, Feeds
from tilewright.core.errors import BadOption

Array = npt.NDArray[Any]
Run = Callable[[Feeds], Mapping[str, Any]]
Metric = Callable[[Run], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Of one run over all data.

    Attributes:
        metric: accuracy, or what the caller's metric returned; None without labels and metric.
        noise: squared differences from the float outputs, relative to the squares of these.
    """

    metric: float | None
    noise: float

    @property
    def sqnr_db(self) -> float:
        """Signal to quantisation noise; inf where there is no noise."""
        return decibels(self.noise)


def decibels(noise: float) -> float:
    """Of a relative noise."""
    return -10 * math.log10(noise) if noise > 0 else math.inf


class Scorer:
    """Scores of one model on one set of data.

    Args:
        batches: that can be walked several times.
        labels: a class for each sample, in order; None without.
        metric: the caller's; None without.
        reference: runs the float model.
        most: samples that were asked for; labels of further ones are left out. None: all.
    """

    def __init__(
        self,
        batches: Batches,
        reference: Run,
        *,
        labels: Sequence[int] | None = None,
        metric: Metric | None = None,
        most: int | None = None,
    ) -> None:
        self._batches, self._metric = batches, metric
        self._wanted: list[dict[str, Array]] = []
        count = 0
        for feeds in batches:
            self._wanted.append(_floats(reference(feeds)))
            count += next(iter(self._wanted[-1].values())).shape[0]
        if not self._wanted:
            raise BadData(f"{batches.name}: no samples", remedy="give data to evaluate on")
        if labels is not None and most is not None and count >= most:
            labels = labels[:count]
        self._labels = None if labels is None else _checked(labels, count, self._wanted[0])
        self.count = count

    def __call__(self, run: Run) -> Scores:
        """Runs all data once (a caller's metric may run more)."""
        signal = noise = 0.0
        right = start = 0
        for feeds, wanted in zip(self._batches, self._wanted, strict=True):
            given = run(feeds)
            for name, floats in wanted.items():
                signal += float(np.square(floats, dtype=np.float64).sum())
                noise += float(np.square(np.asarray(given[name], np.float64) - floats).sum())
            if self._labels is not None:
                scores = np.asarray(given[next(iter(wanted))])
                labels = self._labels[start : start + len(scores)]
                right += int((scores.argmax(1) == labels).sum())
                start += len(scores)
        metric = None if self._labels is None else right / self.count
        if self._metric is not None:
            metric = _called(self._metric, run)
        return Scores(metric=metric, noise=noise / signal if signal else noise)


def _floats(outputs: Mapping[str, Any]) -> dict[str, Array]:
    found = {name: np.asarray(array) for name, array in outputs.items()}
    kept = {name: array for name, array in found.items() if array.dtype.kind == "f" and array.ndim}
    if not kept:
        raise BadOption(
            "the model has no float output to compare", remedy="give a metric of its outputs"
        )
    return kept


def _checked(labels: Sequence[int], count: int, outputs: Mapping[str, Array]) -> Array:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadData(
            f"labels are {array.dtype} of shape {array.shape}", remedy="give one integer a sample"
        )
    if len(array) != count:
        raise BadData(
            f"{len(array)} labels for {count} samples", remedy="give one label a sample, in order"
        )
    name, first = next(iter(outputs.items()))
    if first.ndim != 2:
        raise BadData(
            f"labels are given, and the output {name} has {first.ndim} dims",
            remedy="labels are classes of an output [samples, classes]; use a metric for others",
        )
    if array.min() < 0 or array.max() >= first.shape[1]:
        raise BadData(
            f"labels are {array.min()} .. {array.max()}, the model has {first.shape[1]} classes",
            remedy="give the index of the class in the output, from 0",
        )
    return array


def _called(metric: Metric, run: Run) -> float:
    """What the caller's metric returns.

    Raises:
        BadOption: it raises, or returns no finite number.
    """
    try:
        value = metric(run)
    except Exception as error:
        raise BadOption(
            f"the metric raised {type(error).__name__}: {error}",
            remedy="try it with a float engine's run: metric(engine.run)",
        ) from error
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadOption(
            f"the metric returned {value!r}", remedy="return a finite number, higher for better"
        )
    return number


# --- labels ---------------------------------------------------------------------------------------


def read_labels(given: Any, batches: Batches) -> list[int]:
    """A label for each sample, in order.

    Args:
        given: integers, or a CSV file with the columns ``file`` and ``label``.
        batches: whose samples they are; its files are looked up by path, or by the file's name.

    Raises:
        BadData: a file without a label, or a CSV that cannot be read.
    """
    if not isinstance(given, str | os.PathLike):
        return list(np.asarray(given).tolist()) if isinstance(given, Iterable) else [given]
    table = _table(Path(given))
    if batches.files is None:
        return list(table.values())
    by_name: dict[str, int] = {Path(file).name: label for file, label in table.items()}
    found, missing = [], []
    for file in batches.files:
        label = table.get(file, by_name.get(Path(file).name))
        if label is None:
            missing.append(file)
        else:
            found.append(label)
    if missing:
        raise BadData(
            f"no label for {len(missing)} of {len(batches.files)} files, as {missing[0]}",
            file=str(given),
            remedy=f"give a row file,label for every file of {batches.name}",
        )
    return found


def _table(path: Path) -> dict[str, int]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
            return {str(row["file"]): int(row["label"]) for row in rows}
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise BadData(
            f"cannot be read as labels: {error}",
            file=str(path),
            remedy="a CSV with the columns file and label; labels are integers",
        ) from error
