"""Lint quantised models that others made.

Input -> Output: a model as it was written -> ``Finding``s with remedies and prices, errors first.
Guarantees: nothing is rewritten or run; a model without fault has no finding; each rule is one
function of one of the two lists below, with a broken model in its test.
Not here: making quantised models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.codegen.cpu.target import named_target
from tilewright.compress import lint_numbers, lint_placement
from tilewright.compress.finding import Finding
from tilewright.compress.lint_placement import Prices
from tilewright.compress.quant_view import QuantView
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption, UserError
from tilewright.core.plural import listed
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, as_written
from tilewright.runtime.explain.floors import Floors
from tilewright.runtime.explain.of_engine import device_floors

NUMBERS: tuple[Callable[[QuantView], Iterator[Finding]], ...] = (
    lint_numbers.opsets,
    lint_numbers.zero_points,
    lint_numbers.scales,
    lint_numbers.weight_axes,
    lint_numbers.bias_scales,
    lint_numbers.dead_channels,
    lint_numbers.size_growth,
)
PLACEMENT: tuple[Callable[[QuantView, Prices], Iterator[Finding]], ...] = (
    lint_placement.q_before_activation,
    lint_placement.residual_in_float,
    lint_placement.float_contraction,
    lint_placement.float_gap,
    lint_placement.requantised,
)


def lint(
    model: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    board: str | None = None,
    threads: int = 1,
) -> tuple[Finding, ...]:
    """Looks through a quantised model.

    Args:
        model: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        sizes: of symbolic dims, for prices; those that are missing count as 1.
        board: a GPU of the tables to price for; None is this machine.
        threads: of a run on this machine.

    Returns:
        Errors before warnings, then in the order of the graph's rules. Prices are None where the
        model's own faults keep its shapes from being known.

    Raises:
        UserError: the file is no model, the board or a dim is unknown.
    """
    known = check.sizes("sizes", sizes)
    floors = device_floors(board, named_target("host").name, threads, 0.0)
    view = QuantView.of(as_written(model))
    _check_names(view, known)
    found = [finding for rule in NUMBERS for finding in rule(view)]
    prices = _prices(model, known, floors)
    found += [finding for rule in PLACEMENT for finding in rule(view, prices)]
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda finding: finding.severity != "error"))


def _check_names(view: QuantView, sizes: Mapping[str, int]) -> None:
    symbols = {n for value in view.graph.inputs for dim in value.shape or () for n in dim.symbols}
    if unknown := sorted(set(sizes) - symbols):
        raise BadOption(
            f"unknown dims {listed(unknown)}",
            remedy=f"the model's symbolic dims are {listed(sorted(symbols))}",
        )


def _prices(model: Any, sizes: Mapping[str, int], floors: Floors) -> Prices:
    """Sizes of all values; of none where the model's faults keep it from being imported."""
    try:
        tensors = Model.load(model, DecisionLog(), known=lambda *_: True).infer().tensors
    except UserError:
        return Prices(elements={}, floors=floors)
    elements: dict[str, int] = {}
    for name, info in tensors.items():
        count = 1
        for dim in info.shape or ():
            count *= max(0, dim.evaluate({symbol: sizes.get(symbol, 1) for symbol in dim.symbols}))
        if info.shape is not None:
            elements[name] = count
    return Prices(elements=elements, floors=floors)
