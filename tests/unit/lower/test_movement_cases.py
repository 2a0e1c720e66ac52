"""ONNX's own cases of data movement, through shape rules, lowering and the interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import unit.lower.direct  # noqa: F401  (registers the families)
from tilewright.graph.build_view import view
from tilewright.graph.load import load_model
from tilewright.graph.normalize import normalize
from unit.lower.harness import Array, Case, compare, node_cases, run_graph

_OPERATORS = (
    "Transpose",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "Expand",
    "Tile",
    "Slice",
    "Pad",
    "Concat",
    "Split",
    "DepthToSpace",
    "SpaceToDepth",
    "Gather",
    "GatherElements",
    "GatherND",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "TensorScatter",
    "OneHot",
    "EyeLike",
    "Trilu",
    "Range",
    "ConstantOfShape",
    "Constant",
    "Shape",
    "Size",
    "TopK",
    "NonZero",
    "Compress",
    "Resize",
    "Upsample",
    "GridSample",
    "AffineGrid",
    "RoiAlign",
    "MaxRoiPool",
    "CenterCropPad",
    "Col2Im",
    "ReverseSequence",
    "MaxUnpool",
    "BlackmanWindow",
    "HannWindow",
    "HammingWindow",
    "MelWeightMatrix",
)


_PRINTED = (  # expectations written down with four digits
    "test_gridsample_bicubic",
    "test_roialign_aligned_false",
    "test_roialign_aligned_true",
)


@pytest.mark.parametrize("known", [False, True], ids=["fed", "constant"])
@pytest.mark.parametrize("case", node_cases(*_OPERATORS))
def test_case(case: Case, known: bool) -> None:
    """``known``: operands but the first are constants, else everything is fed at run time."""
    proto, feeds = case.model, dict(case.feeds)
    if known:
        proto, feeds = _with_constants(proto, feeds)
    model = load_model(proto)
    normalize(model)
    results = run_graph(view(model), feeds)
    for name, expected in case.expected.items():
        if case.name in _PRINTED:
            np.testing.assert_allclose(results[name], expected, atol=1e-4)
        else:
            compare(results[name], expected, name)


def _with_constants(
    proto: onnx.ModelProto, feeds: dict[str, Array]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    fed = {value.name for value in proto.graph.input[:1]}
    del changed.graph.input[1:]
    changed.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in feeds.items() if name not in fed
    )
    return changed, {name: array for name, array in feeds.items() if name in fed}
