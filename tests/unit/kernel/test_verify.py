"""Each rule of a legal kernel, in a kernel that breaks it."""

from dataclasses import replace
from typing import Any

import pytest

from tilewright.core.dtypes import BOOL, FLOAT16, FLOAT32, INT4, INT32, INT64, STRING, UINT8
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.expr import _intern as intern
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Expr,
    Kernel,
    Reduce,
    Stage,
    Store,
    axis_var,
    cast,
    constant,
    load,
    reduce_axes,
    select,
)
from tilewright.kernel.verify import verify

N = Dim.symbol("n")
I = Axis("i", N)
X = Buffer("x", FLOAT32, (N,))
Y = Buffer("y", FLOAT32, (N,))


def kernel(value: Expr, **changes: Any) -> Kernel:
    """``y[i] = value``."""
    stage = Stage((I,), (Store("y", (I.var,), value),))
    legal = Kernel(name="test", inputs=(X,), outputs=(Y,), stages=(stage,))
    return replace(legal, **changes)


def stored(*stores: Store, axes: tuple[Axis, ...] = (I,), **changes: Any) -> Kernel:
    """A kernel of one stage with these stores."""
    return kernel(X[I.var], stages=(Stage(axes, stores),), **changes)


def raw_call(op: str, *args: Expr) -> Expr:
    """A call that the constructor would refuse."""
    made: Expr = intern(Call, ("raw", op, *map(id, args)), args[-1].dtype, op=op, args=args)
    return made


def raw_reduce(combiner: str, axes: tuple[Axis, ...], body: Expr) -> Expr:
    made: Expr = intern(
        Reduce, (combiner, axes, id(body)), body.dtype, combiner=combiner, axes=axes, body=body
    )
    made.__dict__["free_axes"] = body.free_axes - {axis.name for axis in axes}
    return made


def test_a_legal_kernel_passes() -> None:
    r = Axis("r", N)
    value = reduce_axes("sum", (r,), X[r.var]) + X[I.var] * 2
    verify(kernel(value))


def test_one_reduction_axis_may_serve_several_reductions() -> None:
    r = Axis("r", N)
    largest = reduce_axes("max", (r,), X[r.var])
    verify(kernel(reduce_axes("sum", (r,), X[r.var]) - largest))


REFUSED = {
    "arithmetic on float16": (
        kernel(
            raw_call("add", load("h", FLOAT16, [I.var]), load("h", FLOAT16, [I.var])).cast(FLOAT32)
        ),
        "add of float16",
    ),
    "arithmetic on int4": (
        kernel(raw_call("neg", cast(X[I.var], INT4)).cast(FLOAT32)),
        "neg of int4",
    ),
    "logic on floats": (kernel(raw_call("and", X[I.var], X[I.var])), "and of float32"),
    "roots of integers": (
        kernel(raw_call("sqrt", cast(X[I.var], INT32)).cast(FLOAT32)),
        "sqrt of int32",
    ),
    "mixed operands": (
        kernel(raw_call("add", cast(X[I.var], INT32), X[I.var])),
        "add of int32, float32",
    ),
    "condition that is no bool": (
        kernel(raw_call("select", cast(X[I.var], INT32), X[I.var], X[I.var])),
        "select on int32",
    ),
    "sum of bools": (
        kernel(raw_reduce("sum", (Axis("r", N),), X[axis_var("r")].gt(0)).cast(FLOAT32)),
        "sum of bool",
    ),
    "bits of another size": (
        kernel(cast(cast(X[I.var], UINT8, bits=True), FLOAT32)),
        "reinterprets float32 as uint8",
    ),
    "undeclared buffer": (kernel(load("z", FLOAT32, [I.var])), "undeclared buffer z"),
    "load of another type": (kernel(load("x", INT32, [I.var]).cast(FLOAT32)), "loads int32 from x"),
    "load of another rank": (
        kernel(load("x", FLOAT32, [I.var, I.var])),
        "2 indices for x of rank 1",
    ),
    "index that is no int64": (
        kernel(load("x", FLOAT32, [cast(I.var, INT32)])),
        "index of type int32",
    ),
    "unbound axis": (kernel(X[axis_var("j")]), "axis j is not bound"),
    "stage axis bound twice": (
        stored(Store("y", (I.var,), X[I.var]), axes=(I, I)),
        "axis i is bound twice",
    ),
    "steps with a stage's axis": (
        kernel(X[I.var], steps=Axis("i", N, ordered=True)),
        "axis i is bound twice",
    ),
    "reduction over a stage's axis": (
        kernel(reduce_axes("sum", (I,), X[I.var])),
        "reduction axis i is an axis of the stage",
    ),
    "reduction within a reduction over the same axis": (
        kernel(
            reduce_axes(
                "sum",
                (Axis("r", N),),
                X[axis_var("r")] + reduce_axes("max", (Axis("r", N),), X[axis_var("r")]),
            )
        ),
        "bound by a reduction within its own reduction",
    ),
    "one axis with two extents": (
        kernel(
            reduce_axes("sum", (Axis("r", N),), X[axis_var("r")])
            + reduce_axes("sum", (Axis("r", N - 1),), X[axis_var("r")])
        ),
        "axis r has two extents",
    ),
    "reduction that binds an axis twice": (
        kernel(reduce_axes("sum", (Axis("r", N), Axis("r", N)), X[axis_var("r")])),
        "binds an axis twice",
    ),
    "ordered reduction": (
        kernel(reduce_axes("sum", (Axis("r", N, ordered=True),), X[axis_var("r")])),
        "reduction axis r is ordered",
    ),
    "store to an input": (
        stored(Store("x", (I.var,), X[I.var]), Store("y", (I.var,), X[I.var])),
        "stores to input x",
    ),
    "store to nowhere": (
        stored(Store("z", (I.var,), X[I.var]), Store("y", (I.var,), X[I.var])),
        "stores to undeclared buffer z",
    ),
    "store of another type": (
        stored(Store("y", (I.var,), cast(X[I.var], INT32))),
        "stores int32 to y of float32",
    ),
    "store of another rank": (stored(Store("y", (), X[I.var])), "store: 0 indices for y"),
    "guard that is no bool": (
        stored(Store("y", (I.var,), X[I.var], guard=I.var)),
        "guard of type int64",
    ),
    "output never stored": (
        kernel(X[I.var], outputs=(Y, Buffer("w", FLOAT32, ()))),
        "output w is never stored",
    ),
    "two buffers of one name": (kernel(X[I.var], inputs=(X, X)), "buffer x is declared twice"),
    "strings": (kernel(X[I.var], inputs=(X, Buffer("s", STRING, ()))), "of type string"),
    "temporary read before it is stored": (
        kernel(load("t", FLOAT32, [I.var]), temporaries=(Buffer("t", FLOAT32, (N,)),)),
        "t is loaded before anything is stored",
    ),
    "parallel points that exchange values": (
        stored(
            Store("y", (I.var,), X[I.var]),
            Store("y", (I.var,), select(I.var.gt(0), load("y", FLOAT32, [I.var - 1]), 0.0)),
        ),
        "parallel points exchange values through y",
    ),
    "all points to one element": (
        stored(Store("y", (constant(0, INT64),), X[I.var])),
        "every point of axis i stores to one element of y",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    illegal, message = REFUSED[name]
    half = Buffer("h", FLOAT16, (N,))
    if name == "arithmetic on float16":
        illegal = replace(illegal, inputs=(X, half))
    with pytest.raises(InternalError, match="illegal kernel") as caught:
        verify(illegal)
    assert message in str(caught.value)
    assert "kernel test" in str(caught.value)


def test_exchange_is_allowed_in_order() -> None:
    ordered = Axis("i", N, ordered=True)
    earlier = select(I.var.gt(0), load("y", FLOAT32, [I.var - 1]), 0.0)
    verify(stored(Store("y", (I.var,), earlier + X[I.var]), axes=(ordered,)))


def test_a_stage_may_reload_the_element_that_it_stored() -> None:
    again = load("y", FLOAT32, [I.var]) * 2
    verify(stored(Store("y", (I.var,), X[I.var]), Store("y", (I.var,), again)))


def test_guarded_stores_may_share_a_target() -> None:
    guard = I.var.eq(0)
    assert guard.dtype is BOOL
    verify(stored(Store("y", (constant(0, INT64),), X[I.var], guard)))
