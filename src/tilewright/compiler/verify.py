"""A whole engine against the float64 reference.

Input -> Output: an engine and the model's graph -> ``Verification``: error of each output, and where it failed.
Tolerance: largest difference relative to the largest reference value of the output (DESIGN: contractions);
integers, bools and strings must be equal.
Not here: verification of single passes (graph.passes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.compiler.options import CompileOptions
from tilewright.compiler.samples import sample_feeds
from tilewright.core.dtypes import DType, Kind
from tilewright.core.errors import (
    BadOption,
    ContractBreach,
    OutOfRange,
    ShapeMismatch,
    UserError,
    VerificationFailed,
)
from tilewright.graph.facade import Model, reference
from tilewright.graph.view import GraphView
from tilewright.runtime.engine import Engine
from tilewright.runtime.feeds import check_feeds

# Unit roundoff of each float type times what long sums and deep networks add up to.
TOLERANCES = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 2e-2,
    "bfloat16": 6e-2,
}
_SMALL_FLOAT_TOLERANCE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """One output's largest difference, relative to its largest reference value."""

    name: str
    error: float
    tolerance: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The comparison of all outputs."""

    outputs: tuple[OutputError, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)
    first_wrong: str | None = None

    @property
    def passed(self) -> bool:
        """True when every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    @property
    def max_error(self) -> float:
        """The largest relative error of all outputs."""
        return max((output.error for output in self.outputs), default=0.0)

    @property
    def text(self) -> str:
        """One line."""
        verdict = "within tolerance" if self.passed else "WRONG"
        return f"max relative error {self.max_error:.2e} against float64, {verdict}"

    def __str__(self) -> str:
        lines = [self.text]
        for output in self.outputs:
            mark = "ok" if output.passed else "WRONG"
            lines.append(
                f"  {output.name}: {output.error:.3e} (tolerance {output.tolerance:.0e}) {mark}"
                + (f" {output.detail}" if output.detail else "")
            )
        if self.first_wrong:
            lines.append(f"  first wrong value: {self.first_wrong}")
        return "\n".join(lines)


def verify_engine(
    engine: Engine, graph: GraphView, *, feeds: Mapping[str, Any] | None = None, seed: int = 0
) -> Verification:
    """Compares every output on the given or random inputs.

    Raises:
        UserError: the inputs do not fit the engine, or no random ones do.
    """
    if feeds is not None:
        return _compare(engine, graph, feeds)
    refused: UserError | None = None
    for candidate in sample_feeds(engine.inputs, engine.ranges, seed):
        try:
            return _compare(engine, graph, candidate)
        except (ShapeMismatch, OutOfRange) as error:
            refused = error
    raise BadOption(
        f"no random inputs fit the model (the last were refused: {refused})",
        file=engine.info.get("model"),
        remedy="give verify_feeds=, declare ranges with dims=, or pass verify=False",
    )


def _compare(engine: Engine, graph: GraphView, feeds: Mapping[str, Any]) -> Verification:
    _, symbols = check_feeds(feeds, engine.inputs, {})
    results = engine.run(feeds)
    expected = reference(graph, feeds)
    narrow = reference(graph, feeds, wide=False) if _has_steps(graph) else expected
    outputs = tuple(
        compare_output(
            spec.name, spec.dtype, results[spec.name], expected[spec.name], narrow[spec.name]
        )
        for spec in engine.outputs
    )
    return Verification(outputs=outputs, symbols=symbols)


# Operators that turn a small difference into a whole step; there the reference in the model's own types is
# accepted as well (DESIGN: integers are exact in the stated types, not in float64).
_STEPS = frozenset(
    """ArgMax ArgMin TopK QuantizeLinear DynamicQuantizeLinear Round Floor Ceil Sign Equal Less
    LessOrEqual Greater GreaterOrEqual Cast NonMaxSuppression Unique QLinearConv QLinearMatMul Mod
    Resize GridSample Hardmax NonZero If Loop Scan Where""".split()
)


def _has_steps(graph: GraphView) -> bool:
    return any(node.op_type in _STEPS for node in graph.nodes)


def compare_output(
    name: str, dtype: DType, got: Any, wide: Any, narrow: Any
) -> OutputError:
    """The better of the errors against the two references."""
    tolerance = tolerance_of(dtype)
    errors = [relative_error(got, want) for want in (wide, narrow)]
    best = min(errors, key=lambda pair: pair[0])
    return OutputError(name=name, error=best[0], tolerance=tolerance, detail=best[1])


def tolerance_of(dtype: DType) -> float:
    """The tolerance of an output type; 0 for what must be exact."""
    if dtype.kind is not Kind.FLOAT:
        return 0.0
    return TOLERANCES.get(dtype.name, _SMALL_FLOAT_TOLERANCE)


def relative_error(got: Any, want: Any) -> tuple[float, str]:
    """Largest absolute difference over the largest finite reference value; infinite if not comparable."""
    if got is None or want is None:
        return (0.0, "") if got is want else (math.inf, "one is empty")
    if isinstance(got, list) or isinstance(want, list):
        if len(got) != len(want):
            return math.inf, f"{len(got)} elements, expected {len(want)}"
        pairs = [relative_error(a, b) for a, b in zip(got, want, strict=True)]
        return max(pairs, default=(0.0, ""))
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return math.inf, f"shape {list(a.shape)}, expected {list(b.shape)}"
    if a.dtype == object or b.dtype.kind in "OUS" or not _is_number(b):
        same = bool(np.array_equal(a.astype(str), b.astype(str)))
        return (0.0, "") if same else (math.inf, "values differ")
    if not a.size:
        return 0.0, ""
    return _numeric_error(a, b)


def _is_number(array: Any) -> bool:
    return array.dtype.kind in "biufcV"


def _numeric_error(a: Any, b: Any) -> tuple[float, str]:
    if b.dtype.kind in "biu":
        wrong = int(np.count_nonzero(a != b))
        return (0.0, "") if not wrong else (math.inf, f"{wrong} of {a.size} values differ")
    kind = np.complex128 if b.dtype.kind == "c" else np.float64
    x, y = a.astype(kind), b.astype(kind)
    special = ~np.isfinite(y) | ~np.isfinite(x)
    with np.errstate(invalid="ignore", over="ignore"):
        overflow = np.isfinite(y) & (np.abs(y) > _largest(a.dtype))
    if special.any():
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (overflow & np.isinf(x))
        if not bool(same[special].all()):
            return math.inf, "NaN or infinity in other places"
    x, y = np.where(special, 0, x), np.where(special, 0, y)
    scale = float(np.abs(y).max())
    difference = float(np.abs(x - y).max())
    return difference / max(scale, 1e-30) if difference else 0.0, ""


def _largest(dtype: Any) -> float:
    return float(np.finfo(dtype).max) if dtype.kind == "f" else math.inf


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
            remedy="please report it with the model; `tilewright verify` writes a small reproducer",
        )
    limit = options.require.max_error
    if limit is not None and found.max_error > limit:
        raise ContractBreach(
            f"max_error={limit:g} is required, the engine has {found.max_error:.3e}",
            file=model.name,
            remedy="allow a larger error",
        )

