"""One node to items: what is looked up, refused and checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.core.dtypes import COMPLEX64, FLOAT32, STRING, DType
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.view import NodeView
from tilewright.kernel.ir import Buffer, Kernel, constant
from tilewright.lower import registry
from tilewright.lower.context import Lowering, Unlowerable, View
from tilewright.lower.families import LOWERINGS
from tilewright.lower.lower_node import Lowered, lower_node
from tilewright.lower.registry import lowers
from tilewright.lower.reindex import Refusal

N = Dim.symbol("n")


def info(dtype: DType = FLOAT32, *, container: str = "tensor", known: bool = True) -> TensorInfo:
    return TensorInfo(dtype=dtype, shape=(N,) if known else None, container=container)


def node(op_type: str, inputs: tuple[str | None, ...] = ("x",), domain: str = "") -> NodeView:
    return NodeView(
        name="node1",
        op_type=op_type,
        domain=domain,
        opset=21,
        inputs=inputs,
        outputs=("y",),
        attributes={},
    )


def lowered(view: NodeView, **tensors: TensorInfo) -> Lowered | Refusal:
    known = {"x": info(), "y": info(), **tensors}
    outputs = tuple(known[name] if name else None for name in view.outputs)
    return lower_node(view, NodeInfo(outputs=outputs, params={}, bindings=()), known)


def test_a_node_becomes_kernels() -> None:
    found = lowered(node("Relu"))
    assert isinstance(found, Lowered)
    (kernel,) = found.items
    assert isinstance(kernel, Kernel)
    assert kernel.sources == ("node1",)
    assert kernel.outputs == (Buffer("y", FLOAT32, (N,)),)


@pytest.mark.parametrize(
    ("view", "tensors", "reason"),
    [
        (node("NoSuchOperator"), {}, "there is no kernel for this operator"),
        (node("Relu", domain="elsewhere"), {}, "there is no kernel for this operator"),
        (node("Relu"), {"x": info(container="sequence")}, "x is a sequence"),
        (node("Relu"), {"y": info(known=False)}, "the rank of y is not known"),
        (node("Relu"), {"x": info(STRING)}, "x holds string"),
        (node("Relu"), {"x": info(COMPLEX64)}, "x holds complex64"),
    ],
)
def test_refusals_say_why(view: NodeView, tensors: dict[str, Any], reason: str) -> None:
    assert lowered(view, **tensors) == Refusal(reason)


# --- what a lowering may do -----------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registrations of a test end with it."""
    monkeypatch.setattr(registry, "LOWERINGS", LOWERINGS)
    before = dict(LOWERINGS)
    yield
    LOWERINGS.clear()
    LOWERINGS.update(before)


@pytest.mark.usefixtures("own")
def test_an_output_that_is_not_written_is_a_fault() -> None:
    @lowers("Forgetful", domain="test")
    def forget(ctx: Lowering) -> None:
        ctx.input(0)

    with pytest.raises(InternalError, match="Forgetful left its output y unwritten"):
        lowered(node("Forgetful", domain="test"))


@pytest.mark.usefixtures("own")
def test_illegal_kernels_are_found() -> None:
    @lowers("Illegal", domain="test")
    def wrong(ctx: Lowering) -> None:
        out = ctx.output()
        assert out is not None
        ctx.pure(out, lambda i: i)  # an int64 into a float32 buffer

    with pytest.raises(InternalError, match="illegal kernel"):
        lowered(node("Illegal", domain="test"))


@pytest.mark.usefixtures("own")
def test_constants_temporaries_and_views_are_handed_over() -> None:
    @lowers("Fancy", domain="test")
    def fancy(ctx: Lowering) -> None:
        table = ctx.constant(np.arange(3, dtype=np.float32), FLOAT32)
        first = ctx.temporary(FLOAT32, (N,))
        second = ctx.temporary(FLOAT32, (N, 1))
        out = ctx.output()
        assert out is not None
        ctx.pure(first, lambda i: ctx.input(0)[i] * table[(2,)])
        ctx.view(second, first)
        ctx.pure(out, lambda i: second[i, 0] + constant(1.0, FLOAT32))

    found = lowered(node("Fancy", domain="test"))
    assert isinstance(found, Lowered)
    assert list(found.constants) == ["node1/c1"]
    names = [
        item.target.name if isinstance(item, View) else item.outputs[0].name for item in found.items
    ]
    assert names == ["node1/t2", "node1/t3", "y"]


@pytest.mark.usefixtures("own")
def test_reasons_of_lowerings_become_refusals() -> None:
    @lowers("Choosy", domain="test")
    def refuse(_: Lowering) -> None:
        raise Unlowerable("only on Sundays")

    @lowers("Needy", domain="test")
    def need(ctx: Lowering) -> None:
        ctx.input(0)

    assert lowered(node("Choosy", domain="test")) == Refusal("only on Sundays")
    assert lowered(node("Needy", (None,), "test")) == Refusal("input 0 is absent")
    assert lowered(node("Needy", (), "test")) == Refusal("input 0 is absent")


@pytest.mark.usefixtures("own")
def test_two_lowerings_of_one_operator_are_a_fault() -> None:
    with pytest.raises(InternalError, match=r"two lowerings for ai\.onnx\.Relu"):
        lowers("Relu")(lambda _: None)
