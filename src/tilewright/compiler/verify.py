"""A whole engine against the float64 reference.

Input -> Output: an engine and the model's graph -> ``Verification``: error of each output, and
where it failed.
Tolerance: largest difference relative to the largest reference value of the output (DESIGN:
contractions); integers, bools and strings must be equal.
Not here: verification of single passes (graph.passes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.compiler.bisect import Fault, find_fault
from tilewright.compiler.compare import TOLERANCES, OutputError, compare_output
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.samples import sample_feeds
from tilewright.core.errors import (
    BadOption,
    ContractBreach,
    OutOfMemory,
    OutOfRange,
    ShapeMismatch,
    UserError,
    VerificationFailed,
)
from tilewright.graph.facade import Model, reference
from tilewright.graph.view import GraphView
from tilewright.runtime.engine import Engine
from tilewright.runtime.feeds import check_feeds

_OTHER_FEEDS = (
    "give inputs (verify_feeds=, or --npz), state ranges (dims=, or --dim), or do without "
    "(verify=False, or --no-verify)"
)
_MUCH = 2**26  # elements of an output
_DEPTH_FACTOR = 1000.0  # how much the errors of a deep network may exceed those of each operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The comparison of all outputs.

    Attributes:
        fault: where an output that is beyond its tolerance goes wrong.
        rounding: instead, where every value is right by itself: the value with the largest error.
    """

    outputs: tuple[OutputError, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)
    feeds: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    fault: Fault | None = None
    rounding: Fault | None = None

    @property
    def passed(self) -> bool:
        """True when every output is within its tolerance, or only rounding adds up."""
        return all(self.accepts(output) for output in self.outputs)

    def accepts(self, output: OutputError) -> bool:
        """True where an output is within its tolerance, or beyond it only as rounding adds up."""
        return output.passed or self.rounding is not None

    @property
    def max_error(self) -> float:
        """The largest relative error of all outputs."""
        return max((output.error for output in self.outputs), default=0.0)

    @property
    def text(self) -> str:
        """One line."""
        verdict = "within tolerance" if self.passed else "WRONG"
        if self.rounding is not None:
            own = self.rounding.found.error
            verdict = (
                "accepted: rounding adds up in this model, each value is right by itself, to "
                f"{own:.2e}"
            )
        return f"max relative error {self.max_error:.2e} against float64, {verdict}"

    def __str__(self) -> str:
        lines = [self.text]
        for output in self.outputs:
            mark = "ok" if output.passed else "WRONG"
            if self.accepts(output) and not output.passed:
                mark = "beyond it by rounding that this model amplifies (accepted)"
            lines.append(
                f"  {output.name}: {output.error:.3e} (tolerance {output.tolerance:.0e}) {mark}"
                + (f" {output.detail}" if output.detail else "")
            )
        if self.fault is not None:
            lines.extend(f"  {line}" for line in self.fault.lines)
        return "\n".join(lines)


def verify_engine(
    engine: Engine, model: Model, *, feeds: Mapping[str, Any] | None = None, seed: int = 0
) -> Verification:
    """Compares every output on the given or random inputs; finds the fault if one differs.

    Raises:
        UserError: the inputs do not fit the engine, or no random ones do.
        OutOfMemory: the reference needs more memory than there is.
    """
    found = _sampled(engine, model, seed) if feeds is None else compare_engine(engine, model, feeds)
    # Where GPUs keep 16 bits, values inside of an engine are not laid out as the graph's.
    narrow = engine.info.get("archs") and engine.info.get("precision") in _NARROW
    if found.passed or narrow:
        return found
    try:
        fault = find_fault(engine, model, found.feeds, least=_least_tolerance(engine))
    except OutOfMemory:  # all values at once need more memory than a run
        return found
    if fault is not None and fault.cause == "rounding" and _may_add_up(found, model.original):
        return replace(found, rounding=fault)
    return replace(found, fault=fault)


def _may_add_up(found: Verification, graph: GraphView) -> bool:
    """Tolerances hold for each operator; in a row of many, errors grow, across steps by steps."""
    return _has_steps(graph) or all(
        output.error <= _DEPTH_FACTOR * output.tolerance for output in found.outputs
    )


def _sampled(engine: Engine, model: Model, seed: int) -> Verification:
    refused: UserError | None = None
    for large in (False, True):  # small results first
        for candidate in sample_feeds(engine.inputs, engine.ranges, seed):
            try:
                if _gives_much(engine, candidate) is large:
                    return compare_engine(engine, model, candidate)
            except (ShapeMismatch, OutOfRange, OutOfMemory) as error:
                refused = error
    node = refused.node if refused is not None else None
    if isinstance(refused, OutOfMemory):
        raise OutOfMemory(
            f"random inputs are too large to verify with: {refused.message}",
            file=engine.info.get("model"),
            node=node,
            remedy=_OTHER_FEEDS,
        ) from refused
    raise BadOption(
        f"no random inputs fit the model (the last were refused: {refused})",
        file=engine.info.get("model"),
        node=node,
        remedy=_OTHER_FEEDS,
    )


def _gives_much(engine: Engine, feeds: Mapping[str, Any]) -> bool:
    """Whether the outputs for these inputs are large, as far as the inputs' sizes tell."""
    _, sizes = check_feeds(feeds, engine.inputs, {})
    shapes = [spec.shape for spec in engine.outputs if spec.shape is not None]
    return any(
        math.prod(max(dim.evaluate(sizes), 0) for dim in shape) > _MUCH
        for shape in shapes
        if all(dim.symbols <= sizes.keys() for dim in shape)
    )


def compare_engine(engine: Engine, model: Model, feeds: Mapping[str, Any]) -> Verification:
    """Compares every output on given inputs."""
    graph = model.original
    feeds, symbols = check_feeds(feeds, engine.inputs, {})
    # The reference first: it refuses what no run could hold, and an engine may only take for ever.
    expected = reference(graph, feeds)
    results = engine.run(feeds)
    outputs = _compared(engine, results, expected, expected)
    if not all(output.passed for output in outputs) and _has_steps(graph):
        outputs = _compared(engine, results, expected, reference(graph, feeds, wide=False))
    return Verification(outputs=outputs, symbols=symbols, feeds=dict(feeds))


def _compared(
    engine: Engine, results: Mapping[str, Any], wide: Mapping[str, Any], narrow: Mapping[str, Any]
) -> tuple[OutputError, ...]:
    found = tuple(
        compare_output(
            spec.name, spec.dtype, results[spec.name], wide[spec.name], narrow[spec.name]
        )
        for spec in engine.outputs
    )
    factor = _WINOGRAD_FACTOR if _uses_winograd(engine) else 1.0
    least = _least_tolerance(engine)
    return tuple(
        replace(output, tolerance=max(factor, least / output.tolerance) * output.tolerance)
        if output.tolerance
        else output
        for output in found
    )


_NARROW = {"fp16": "float16", "bf16": "bfloat16"}  # types that a precision keeps operands in


def _least_tolerance(engine: Engine) -> float:
    """Of float results, where a precision rounds the operands of an engine."""
    narrow = _NARROW.get(engine.info.get("precision", ""))
    least = 0.0 if narrow is None else TOLERANCES[narrow]
    return max(least, _FLOAT8_TOLERANCE) if _keeps_float8(engine) else least


# A sum that is almost a tie of float8 moves by a step, an eighth of it, where it is added up in
# another order or with fewer bits.
_FLOAT8_TOLERANCE = TOLERANCES["bfloat16"]


def _keeps_float8(engine: Engine) -> bool:
    return any(entry.stage == "float8" for entry in engine.decisions)


_WINOGRAD_FACTOR = 2.0  # DESIGN: 2e-5 instead of 1e-5, recorded in the decisions


def _uses_winograd(engine: Engine) -> bool:
    return any(d.stage == "winograd" and d.chosen.startswith("F(") for d in engine.decisions)


# Operators that turn a small difference into a whole step; there the reference in the model's own
# types is accepted as well (DESIGN: integers are exact in the stated types, not in float64).
_STEPS = frozenset(
    """ArgMax ArgMin TopK QuantizeLinear DynamicQuantizeLinear Round Floor Ceil Sign Equal Less
    LessOrEqual Greater GreaterOrEqual Cast NonMaxSuppression Unique QLinearConv QLinearMatMul Mod
    Resize GridSample Hardmax NonZero If Loop Scan Where""".split()
)


def _has_steps(graph: GraphView) -> bool:
    return any(node.op_type in _STEPS for node in graph.nodes)


def check_tolerance(found: Verification, model: Model, options: CompileOptions) -> None:
    """Raises when an error is beyond its tolerance or the contract.

    Raises:
        VerificationFailed: beyond DESIGN's tolerance.
        ContractBreach: beyond ``max_error``.
    """
    if not found.passed:
        raise VerificationFailed(
            str(found),
            file=model.name,
            remedy="this network needs precision=fp32"
            if options.precision in _NARROW
            else "`tilewright verify MODEL --reproducer DIR` writes a small model that shows it",
        )
    limit = options.require.max_error
    if limit is not None and found.max_error > limit:
        raise ContractBreach(
            f"max_error={limit:g} is required, the engine has {found.max_error:.3e}",
            file=model.name,
            remedy="allow a larger error",
        )
