"""ONNX's own cases of data movement, with every dim and parameter a symbol and contents hidden.

Input -> Output: a conformance case -> the lowering's outputs, compared with the expected ones.
Guarantees: parameters come from NumPy's reading of the operator, not from the shape rules.
Not here: the same cases with shape rules (test_movement_cases).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from unit.lower.direct import Array, run
from unit.lower.harness import Case, node_cases

Params = Mapping[str, Sequence[int]]

_OPERATORS = (
    "Transpose Reshape Flatten Squeeze Unsqueeze Identity Expand Tile Slice Pad Concat Split "
    "DepthToSpace SpaceToDepth Gather GatherElements GatherND ScatterElements ScatterND "
    "TensorScatter OneHot EyeLike Trilu Range ConstantOfShape Constant Shape Size TopK NonZero "
    "Compress Resize GridSample AffineGrid RoiAlign CenterCropPad Col2Im ReverseSequence MaxUnpool "
    "BlackmanWindow HannWindow HammingWindow MelWeightMatrix"
).split()
_PRINTED = (  # expectations written down with four digits
    "test_gridsample_bicubic",
    "test_roialign_aligned_false",
    "test_roialign_aligned_true",
)
_STATIC_TUPLES = {"GatherND": (1,), "ScatterND": (1,)}  # the length of index tuples is structure


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("case", node_cases(*_OPERATORS))
def test_case(case: Case, symbolic: bool) -> None:
    node = case.model.graph.node[0]
    expected = list(case.expected.values())
    inputs = [case.feeds.get(name) for name in node.input]
    attributes = _attributes(node)
    rule = _PARAMS.get(node.op_type)
    params = {} if rule is None else rule(inputs, attributes, expected)
    results = run(
        node.op_type,
        inputs,
        [(array.dtype, array.shape) for array in expected],
        attributes=attributes,
        params=params,
        symbolic=symbolic,
        fixed=_STATIC_TUPLES.get(node.op_type, ()),
    )
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        if wanted.dtype.kind == "f":
            tolerance = 1e-4 if case.name in _PRINTED else 1e-6
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=tolerance)
        else:
            np.testing.assert_array_equal(result, wanted)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


# --- what the shape rules would say ---------------------------------------------------------------


def _slice(inputs: list[Array], attributes: dict[str, Any], expected: list[Array]) -> Params:
    del attributes, expected
    x, starts, ends, *rest = inputs
    axes = rest[0] if rest else np.arange(len(starts))
    steps = rest[1] if len(rest) > 1 else np.ones(len(starts), np.int64)
    first, step = [0] * x.ndim, [1] * x.ndim
    for axis, start, end, stride in zip(axes, starts, ends, steps, strict=True):
        lo, _, stride = slice(int(start), int(end), int(stride)).indices(x.shape[axis])
        if stride < 0 and end < -x.shape[axis]:
            lo = slice(int(start), None, int(stride)).indices(x.shape[axis])[0]
        first[axis], step[axis] = max(lo, 0), stride
    return {"starts": first, "steps": step}


def _pad(inputs: list[Array], attributes: dict[str, Any], expected: list[Array]) -> Params:
    del attributes, expected
    x, pads = inputs[0], inputs[1]
    axes = inputs[3] if len(inputs) > 3 else np.arange(x.ndim)
    full = [0] * (2 * x.ndim)
    for k, axis in enumerate(axes):
        full[axis % x.ndim], full[axis % x.ndim + x.ndim] = int(pads[k]), int(pads[k + len(axes)])
    return {"pads": full}


def _split(inputs: list[Array], attributes: dict[str, Any], expected: list[Array]) -> Params:
    del inputs
    axis = attributes.get("axis", 0)
    lengths = [part.shape[axis] for part in expected]
    return {"offsets": [sum(lengths[:k]) for k in range(len(lengths))]}


def _topk(inputs: list[Array], attributes: dict[str, Any], expected: list[Array]) -> Params:
    del attributes, expected
    return {"k": [int(inputs[1][0])]}


def _trilu(inputs: list[Array], attributes: dict[str, Any], expected: list[Array]) -> Params:
    del attributes, expected
    return {"k": [int(inputs[1]) if len(inputs) > 1 else 0]}


def _col2im(inputs: list[Array], attributes: dict[str, Any], expected: list[Array]) -> Params:
    del expected
    kernel = [int(size) for size in inputs[2]]
    return {
        "kernel": kernel,
        "strides": attributes.get("strides", [1] * len(kernel)),
        "dilations": attributes.get("dilations", [1] * len(kernel)),
        "pads": attributes.get("pads", [0] * (2 * len(kernel))),
    }


_PARAMS: dict[str, Callable[[list[Any], dict[str, Any], list[Array]], Params]] = {
    "Slice": _slice,
    "Pad": _pad,
    "Split": _split,
    "TopK": _topk,
    "Trilu": _trilu,
    "Col2Im": _col2im,
}
