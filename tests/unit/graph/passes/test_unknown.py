"""What shape inference does not know is refused with a reason, never guessed."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.passes.base import Pass
from tilewright.graph.passes.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tilewright.graph.passes.eliminate_identities import eliminate_identities
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fold_pads import fold_pads
from tilewright.graph.passes.fold_scale import fold_scale
from tilewright.graph.passes.recognise_gelu import recognise_gelu
from tilewright.graph.passes.recognise_normalization import recognise_normalization
from tilewright.graph.passes.recognise_softmax import recognise_softmax
from tilewright.graph.passes.recognise_swish import recognise_swish
from tilewright.graph.passes.simplify_reshapes import simplify_reshapes
from unit.graph.passes.harness import f32, i64, make, noise, ops, run_alone

# ``u`` has as many dims as the run gives ``s`` elements.
HEAD = "u = Reshape(x, s) "
END = " y = ReduceSum<keepdims = 0>(r)"


@pytest.mark.parametrize(
    ("step", "body", "reason"),
    [
        (eliminate_identities, "r = Mul(u, flat)", "the rank is unknown"),
        (recognise_swish, "g = Sigmoid(u) r = Mul(u, g)", "the shape is unknown"),
        (
            recognise_gelu,
            "d = Div(u, root) e = Erf(d) a = Add(e, one) m = Mul(u, a) r = Mul(m, half)",
            "the shape is unknown",
        ),
        (
            recognise_normalization,
            (
                "m = ReduceMean(u, last) d = Sub(u, m) q = Mul(d, d) v = ReduceMean(q, last)"
                " e = Add(v, one) t = Sqrt(e) r = Div(d, t)"
            ),
            "the rank is unknown",
        ),
        (simplify_reshapes, "t = Shape(u) k = Neg(t) n = Neg(k) r = Reshape(u, n)", "unknown"),
        (fold_scale, "c = MatMul(u, w) r = Mul(c, half)", "the rank is unknown"),
    ],
)
def test_unknown_rank(step: Pass, body: str, reason: str) -> None:
    model = make(
        "float[N] x, int64[R] s => float y",
        HEAD + body + END,
        flat=f32([1.0]),
        root=f32(2**0.5),
        one=f32(1.0),
        half=f32(0.5),
        last=i64(-1),
        w=noise(4, 4),
    )
    before = ops(model)
    ctx = run_alone(model, step)
    assert ops(model) == before
    reasons = [text for entry in ctx.log.entries for _, text in entry.rejected]
    assert any(reason in text for text in reasons), reasons


def test_old_softmax_of_unknown_rank() -> None:
    body = HEAD + "r = Softmax<axis = 1>(u)" + END.replace("ReduceSum", "ReduceMax")
    model = make("float[N] x, int64[R] s => float y", body, opset=11)
    ctx = run_alone(model, recognise_softmax)
    assert ctx.log.entries[0].rejected[0][1] == "the rank is unknown"


def test_pads_of_the_run() -> None:
    model = make(
        "float[N,4,5,5] x, int64[8] p => float[N,6,H,K] y", "a = Pad(x, p) y = Conv(a, w)",
        w=noise(6, 4, 3, 3),
    )  # fmt: skip
    ctx = run_alone(model, fold_pads)
    assert "not known" in ctx.log.entries[0].rejected[0][1]


def test_size_that_a_check_guards() -> None:
    model = make("float[N,M] x => float[N,4] y", "a = Reshape(x, s) y = Exp(a)", s=i64(0, 4))
    run_alone(model, eliminate_identities)
    assert ops(model) == ["Reshape", "Exp"]


def test_equal_outputs_say_why_they_stay() -> None:
    model = make("float[2] x => float[2] y, float[2] z", "y = Exp(x) z = Exp(x)")
    ctx = run_alone(model, eliminate_common_subexpressions)
    assert "graph outputs" in ctx.log.entries[0].rejected[0][1]
    assert run_alone(model, eliminate_common_subexpressions).changes == 0


def test_operator_without_shape_rule_leaves_folding_alive() -> None:
    """A result of unknown type is not compared with a guess."""
    weights: dict[str, Any] = {"a": np.asarray(["x", "y"], object), "b": np.asarray(["z"], object)}
    model = make("float[2] x => string[2] y", "y = StringConcat(a, b)", **weights)
    run_alone(model, fold_constants)
    assert ops(model) == []
