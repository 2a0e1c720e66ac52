"""If, Loop and Scan for random models, with bodies that read values from around them.

Input -> Output: a draft -> the draft with one more node, or ``Rejected``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from property.draft import Draft, Rejected, Value
from property.families import Maker, numbers
from tilewright.core.dtypes import BOOL, INT16, INT64, UINT16, DType

_SMOOTH = ("Relu", "Abs", "Neg", "Identity")


def _info(name: str, dtype: DType, rank: int | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype.code, None if rank is None else [None] * rank)


def _number(name: str, number: Any, dtype: DType) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(number, dtype.numpy), name)


def _unary(draft: Draft, dtype: DType) -> str:
    return draft.one(_SMOOTH if dtype.is_float else ("Abs", "Identity"))  # type: ignore[no-any-return]


def branch(draft: Draft) -> object:
    """``If`` with a constant or a computed condition; the sides may give other shapes."""
    x = numbers(draft)
    flag = draft.fresh(BOOL, [] if draft.chance(0.8) else [draft.same(1)])
    if draft.chance(0.3):
        flag = draft.emit("Not", [flag])[0]
    first, second, third = (draft.name("b") for _ in range(3))
    one = _number(third, 1, x.dtype)
    then = helper.make_graph(
        [
            helper.make_node("Mul", [x.name, x.name], [first + "t"]),
            helper.make_node(_unary(draft, x.dtype), [first + "t"], [first]),
        ],
        "then",
        [],
        [_info(first, x.dtype, None)],
    )
    side = draft.one(("value", "reduced", "outer"))
    if x.dtype in (INT16, UINT16):  # ReduceMax does not take them
        side = "value"
    nodes = {
        "value": [helper.make_node("Add", [x.name, third], [second])],
        "reduced": [helper.make_node("ReduceMax", [x.name], [second], keepdims=1)],
        "outer": [helper.make_node("Identity", [x.name], [second])],
    }[side]
    if side == "reduced" and any(array.size == 0 for array in x.narrow):
        raise Rejected("a maximum of nothing")
    otherwise = helper.make_graph(nodes, "else", [], [_info(second, x.dtype, None)], [one])
    return draft.emit_graph(
        "If", [flag], [x], {"then_branch": then, "else_branch": otherwise}, outputs=1
    )


def loop(draft: Draft) -> object:
    """``Loop`` that accumulates, scans, and may stop early."""
    x = numbers(draft, 0, 3)
    p = draft.name("l")
    trips = draft.one((0, 1, 2, 3))
    stop = draft.rng.randint(0, 3)
    nodes = [
        helper.make_node(draft.one(("Add", "Sub", "Max")), [f"{p}s", x.name], [f"{p}next"]),
        helper.make_node(_unary(draft, x.dtype), [f"{p}next"], [f"{p}scan"]),
        helper.make_node("Less", [f"{p}i", f"{p}limit"], [f"{p}go"])
        if draft.chance(0.5)
        else helper.make_node("Identity", [f"{p}c"], [f"{p}go"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [_info(f"{p}i", INT64, 0), _info(f"{p}c", BOOL, 0), _info(f"{p}s", x.dtype, x.rank)],
        [
            _info(f"{p}go", BOOL, 0),
            _info(f"{p}next", x.dtype, x.rank),
            _info(f"{p}scan", x.dtype, x.rank),
        ],
        [_number(f"{p}limit", stop, INT64)],
    )
    limit: Value = (
        draft.constant(trips)
        if draft.chance(0.5)
        else draft.fresh(
            INT64, [], constant=False, make=lambda _s, run: np.asarray((trips + run) % 4)
        )
    )
    flag = draft.fresh(BOOL, []) if draft.chance(0.3) else None
    start = x if draft.chance(0.5) else draft.fresh(x.dtype, x.dims)
    return draft.emit_graph("Loop", [limit, flag, start], [x], {"body": body}, outputs=2)


def scan(draft: Draft) -> object:
    """``Scan`` along the first axis, in either direction."""
    x = numbers(draft, 1, 3)
    p = draft.name("s")
    start = draft.fresh(x.dtype, x.dims[1:])
    rank = x.rank - 1
    body = helper.make_graph(
        [
            helper.make_node(draft.one(("Add", "Max")), [f"{p}a", f"{p}x"], [f"{p}b"]),
            helper.make_node("Sub", [f"{p}b", f"{p}x"], [f"{p}y"]),
        ],
        "body",
        [_info(f"{p}a", x.dtype, rank), _info(f"{p}x", x.dtype, rank)],
        [_info(f"{p}b", x.dtype, rank), _info(f"{p}y", x.dtype, rank)],
    )
    attributes: dict[str, Any] = {"body": body, "num_scan_inputs": 1}
    if draft.chance(0.5):
        attributes["scan_input_directions"] = [draft.one((0, 1))]
        attributes["scan_output_directions"] = [draft.one((0, 1))]
    return draft.emit_graph("Scan", [start, x], [], attributes, outputs=2)


FAMILIES: tuple[tuple[Maker, float], ...] = ((branch, 1.2), (loop, 0.8), (scan, 0.6))
