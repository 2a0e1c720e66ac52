"""Control flow: ``If``, ``Loop`` and ``Scan`` as the executor runs them.

Input -> Output: a step with sub-programs, and a run -> the step's outputs in ``run.values``.
Guarantees: sub-programs see the values around them (names are unique); a loop of zero trips gives
the initial values, and empty scans of the shape that a first iteration would give; the shapes of
carried values may change from one iteration to the next; sizes found inside stay inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.errors import ShapeMismatch, UserError
from tilewright.runtime.program import Branch, Program, Repeat, Sweep, TensorSpec

if TYPE_CHECKING:
    from tilewright.runtime.executor import Executor, Run


def branch(executor: Executor, step: Branch, run: Run) -> None:
    """Runs the chosen side."""
    chosen = bool(_single(executor.value(run, step.condition), "condition"))
    results = _body(executor, step.then if chosen else step.otherwise, [], run)
    _give(executor, step.outputs, results, run)


def repeat(executor: Executor, step: Repeat, run: Run) -> None:
    """Runs the body while trips are left and the condition holds."""
    trips = None if step.trips is None else int(_single(executor.value(run, step.trips), "count"))
    going = step.condition is None or bool(
        _single(executor.value(run, step.condition), "condition")
    )
    carried = [executor.value(run, name) for name in step.carried]
    scans: list[list[Any]] = [[] for _ in range(len(step.body.outputs) - 1 - len(carried))]
    iteration = 0
    while going and (trips is None or iteration < trips):
        feeds = [np.asarray(iteration, dtype=np.int64), np.asarray(True), *carried]
        results = _body(executor, step.body, feeds, run)
        going = bool(_single(results[0], "condition"))
        carried = results[1 : 1 + len(carried)]
        for scan, part in zip(scans, results[1 + len(carried) :], strict=True):
            scan.append(np.array(part))
        iteration += 1
    trial: list[Any] = []
    if scans and not iteration:
        feeds = [np.asarray(0, np.int64), np.asarray(True), *carried]
        trial = _trial(executor, step.body, feeds, run)[1 + len(carried) :]
    stacked = [
        _stack(scan, spec, 0, trial[number] if trial else None)
        for number, (scan, spec) in enumerate(
            zip(scans, step.body.outputs[1 + len(carried) :], strict=True)
        )
    ]
    _give(executor, step.outputs, [*carried, *stacked], run)


def sweep(executor: Executor, step: Sweep, run: Run) -> None:
    """Runs the body for each slice of the scanned inputs."""
    carried = [executor.value(run, name) for name in step.carried]
    inputs = [np.asarray(executor.value(run, name)) for name in step.scanned]
    axes = [_axis(axis, array.ndim) for array, axis in zip(inputs, step.input_axes, strict=True)]
    lengths = {array.shape[axis] for array, axis in zip(inputs, axes, strict=True)}
    if len(lengths) != 1:
        raise ShapeMismatch(
            f"scanned inputs have lengths {sorted(lengths)}", remedy="feed sequences of one length"
        )
    length = lengths.pop()
    scans: list[list[Any]] = [[] for _ in range(len(step.body.outputs) - len(carried))]
    for number in range(length):
        slices = [
            np.array(np.take(array, length - 1 - number if back else number, axis))
            for array, axis, back in zip(inputs, axes, step.input_reversed, strict=True)
        ]
        results = _body(executor, step.body, [*carried, *slices], run)
        carried = results[: len(carried)]
        for scan, part in zip(scans, results[len(carried) :], strict=True):
            scan.append(np.array(part))
    trial: list[Any] = []
    if scans and not length:
        slices = [
            np.zeros([size for k, size in enumerate(array.shape) if k != axis], array.dtype)
            for array, axis in zip(inputs, axes, strict=True)
        ]
        trial = _trial(executor, step.body, [*carried, *slices], run)[len(carried) :]
    stacked = []
    specs = step.body.outputs[len(carried) :]
    for number, (scan, spec, axis, back) in enumerate(
        zip(scans, specs, step.output_axes, step.output_reversed, strict=True)
    ):
        parts = scan[::-1] if back else scan
        stacked.append(_stack(parts, spec, axis, trial[number] if trial else None))
    _give(executor, step.outputs, [*carried, *stacked], run)


def _single(value: Any, what: str) -> Any:
    array = np.asarray(value)
    if array.size != 1:
        raise ShapeMismatch(
            f"the {what} has {array.size} elements, expected 1", remedy=f"give one {what}"
        )
    return array.reshape(-1)[0]


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ShapeMismatch(
            f"axis {axis} of a scanned input of rank {rank}",
            remedy=f"scan along an axis of {-rank} to {rank - 1}",
        )
    return axis % rank


def _body(executor: Executor, program: Program, feeds: list[Any], run: Run) -> list[Any]:
    """The results of a sub-program; the sizes that it finds are its own."""
    around = run.symbols
    run.symbols = dict(around)
    try:
        for spec, value in zip(program.inputs, feeds, strict=True):
            executor.settle(spec, value, run)
        executor.execute(program, run)
        return executor.outputs(program, run)
    finally:
        run.symbols = around


def _trial(executor: Executor, program: Program, feeds: list[Any], run: Run) -> list[Any]:
    """Results of a body that no iteration runs, for their shapes; nothing where it cannot run."""
    try:
        return _body(executor, program, feeds, run)
    except UserError:
        return []


def _stack(parts: list[Any], spec: TensorSpec, axis: int, trial: Any) -> Any:
    if parts:
        shapes = sorted({part.shape for part in parts})
        if len(shapes) > 1:
            raise ShapeMismatch(
                f"iterations give {spec.name} the shapes {shapes}",
                remedy="give what is stacked one shape in all iterations",
            )
        return np.stack(parts, axis=axis)
    if trial is not None:
        return np.stack([trial], axis=axis).take([], axis=axis)
    sizes = [dim.const if dim.is_const else 0 for dim in spec.shape or ()]
    position = axis if axis >= 0 else axis + len(sizes) + 1
    sizes.insert(position, 0)
    return np.empty(sizes, dtype=spec.dtype.numpy)


def _give(
    executor: Executor, specs: tuple[TensorSpec | None, ...], values: list[Any], run: Run
) -> None:
    for spec, value in zip(specs, values, strict=False):
        if spec is not None:
            executor.settle(spec, value, run)
