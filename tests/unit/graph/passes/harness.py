"""Small models from ONNX's text form, and the checks that every pass must stand.

Input -> Output: text and weights -> a model in the newest form; a pass -> its decisions, after
values before and after were compared, names kept, and a second run changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from tilewright.core.record import Decision, DecisionLog
from tilewright.graph.load import load_model
from tilewright.graph.normalize import normalize
from tilewright.graph.passes.base import Pass, PassContext
from tilewright.graph.passes.standard import run_passes
from tilewright.graph.walk import all_nodes

OPSET = 24


def make(signature: str, body: str, *, opset: int = OPSET, **weights: Any) -> ir.Model:
    """A model of ``signature`` (``float[N,4] x => float[N,4] y``) and ``body``."""
    inputs, outputs = signature.split("=>")
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> '
        f"graph ({inputs.strip()}) => ({outputs.strip()}) {{ {body} }}"
    )
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = load_model(proto)
    normalize(model)
    return model


def f32(*values: Any) -> Any:
    """A float32 array; one number is a scalar."""
    return np.asarray(values[0] if len(values) == 1 else values, np.float32)


def i64(*values: int) -> Any:
    """A vector of int64."""
    return np.asarray(values, np.int64)


def noise(*shape: int, seed: int = 0) -> Any:
    """Float32 numbers of a fixed seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ops(model: ir.Model) -> list[str]:
    """Operators in order, those of sub-graphs too."""
    return [node.op_type for node in all_nodes(model.graph)]


def interface(model: ir.Model) -> tuple[list[str | None], list[str | None]]:
    """Names of inputs and outputs."""
    return [v.name for v in model.graph.inputs], [v.name for v in model.graph.outputs]


def apply(
    model: ir.Model,
    *passes: Pass,
    feeds: dict[str, Any] | None = None,
    assume_finite: bool = False,
) -> list[Decision]:
    """Runs passes with all checks; returns the decisions of the first run."""
    names = interface(model)
    log = DecisionLog()
    run_passes(
        model, log, passes=passes, verify_passes=True, feeds=feeds, assume_finite=assume_finite
    )
    uncompared = [entry for entry in log.entries if entry.subject == "comparison"]
    assert not uncompared, uncompared
    assert interface(model) == names
    again = run_passes(model, DecisionLog(), passes=passes, assume_finite=assume_finite)
    assert again.changes == 0, again.log.entries
    return log.entries


def assert_fires(
    model: ir.Model, step: Pass | Sequence[Pass], expected: Sequence[str], **options: Any
) -> list[Decision]:
    """The pass leaves exactly these operators."""
    passes = (step,) if isinstance(step, Pass) else tuple(step)
    decisions = apply(model, *passes, **options)
    assert ops(model) == list(expected), ops(model)
    return decisions


def assert_refuses(model: ir.Model, step: Pass, reason: str, **options: Any) -> None:
    """The pass changes nothing and gives this reason."""
    before = ops(model)
    decisions = apply(model, step, **options)
    assert ops(model) == before, ops(model)
    reasons = [text for entry in decisions for _, text in entry.rejected]
    assert any(reason in text for text in reasons), reasons


def assert_ignores(model: ir.Model, step: Pass, **options: Any) -> None:
    """The pass changes nothing and says nothing: it is not its pattern."""
    before = ops(model)
    assert apply(model, step, **options) == []
    assert ops(model) == before


def run_alone(model: ir.Model, step: Pass) -> PassContext:
    """Runs one pass without comparison (for models that cannot be evaluated)."""
    return run_passes(model, DecisionLog(), passes=(step,))
