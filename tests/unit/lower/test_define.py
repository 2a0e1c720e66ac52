"""One definition of an elementwise operator gives shapes, a reference and a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import InternalError, ShapeMismatch, UserError, VerificationFailed
from tilewright.graph.shapes.registry import RULES
from tilewright.kernel.ir import Expr
from tilewright.lower.define import define_elementwise
from tilewright.lower.registry import LOWERINGS
from tilewright.runtime.reference import registry
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info

DOMAIN = "org.example"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    for name in ("Leak", "Wrong"):
        for table in (RULES, LOWERINGS, registry._ENTRIES):
            table.pop((DOMAIN, name), None)


def _model(op_type: str, **attributes: Any) -> Any:
    return model_of(
        [node(op_type, ["a", "b"], ["y"], name="it", domain=DOMAIN, **attributes)],
        inputs=[tensor_info("a", ("n", 1)), tensor_info("b", (3,))],
        opset=21,
        domains=[DOMAIN],
    )


def _leak_values(a: Any, b: Any, slope: float) -> Any:
    return np.where(a < b, slope * a, a + b)


def _leak(a: Expr, b: Expr, slope: float) -> Expr:
    from tilewright.kernel.ir import select

    return select(a.lt(b), a * slope, a + b)


def test_a_definition_is_compiled_and_verified() -> None:
    define_elementwise("Leak", DOMAIN, values=_leak_values, kernel=_leak, attributes={"slope": 0.5})
    a, b = normal(5, 1), normal(3, seed=1)
    for attributes, slope in (({}, 0.5), ({"slope": 2.0}, 2.0)):
        engine = compiled(_model("Leak", **attributes), require=["compiled"])
        np.testing.assert_allclose(
            engine.run({"a": a, "b": b})["y"], _leak_values(a, b, slope), rtol=1e-6
        )


def test_a_definition_whose_halves_differ_is_caught() -> None:
    define_elementwise("Wrong", DOMAIN, values=lambda a, b: a + b, kernel=lambda a, b: a - b)
    with pytest.raises(VerificationFailed, match="Wrong"):
        compiled(_model("Wrong"))


def test_inputs_that_do_not_fit_are_refused() -> None:
    define_elementwise("Leak", DOMAIN, values=_leak_values, kernel=_leak, attributes={"slope": 0.5})
    model = _model("Leak")
    model.graph.input[1].type.tensor_type.elem_type = 11
    with pytest.raises(UserError, match="float64|double"):
        compiled(model)
    model = _model("Leak")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2
    with pytest.raises(ShapeMismatch, match="broadcast"):
        compiled(model)


def test_integers_are_refused() -> None:
    define_elementwise("Leak", DOMAIN, values=_leak_values, kernel=_leak, attributes={"slope": 0.5})
    model = _model("Leak")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = 6
    with pytest.raises(UserError, match="is defined for floats"):
        compiled(model)


def test_operators_of_onnx_are_not_defined_this_way() -> None:
    with pytest.raises(InternalError, match="the runtime"):
        define_elementwise("Leak", "", values=_leak_values, kernel=_leak)
