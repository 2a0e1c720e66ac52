"""float16 inside of networks: which values, which not, and where their channels go."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.compiler.channels_last import channels_last_program
from tilewright.compiler.narrow import narrow_program
from tilewright.compiler.options import make_options
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from tilewright.core.errors import BadOption, BadTarget
from unit.compiler.drafts import draft_of, kernels_of, values_of
from unit.compiler.models import feeds_of, network, normal
from unit.graph.models import model_of, node, tensor_info


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16])
def test_values_inside_are_narrow_and_outputs_are_not(kind: DType) -> None:
    builder, draft, build = draft_of(network())
    narrow_program(draft, builder.constants, build.log, kind)
    types = {b.name: b.dtype for kernel in kernels_of(draft) for b in kernel.buffers}
    assert types["x"] is FLOAT32
    assert types["y"] is FLOAT32
    assert types["r"] is FLOAT32
    assert types["x$copy"] is kind
    assert types[f"w${kind}"] is kind
    assert types["b"] is FLOAT32
    (decision,) = [d for d in build.log.entries if d.stage == "precision"]
    assert f"weights are {kind}, sums are float32" in decision.chosen


@pytest.mark.parametrize(("kind", "tolerance"), [(FLOAT16, 1e-3), (BFLOAT16, 1e-2)])
def test_the_result_is_the_same_but_for_rounding(kind: DType, tolerance: float) -> None:
    feeds, sizes = feeds_of(), {"batch": 2, "height": 6}
    builder, draft, build = draft_of(network())
    exact = values_of(draft, builder.constants, feeds, sizes)["y"]
    narrow_program(draft, builder.constants, build.log, kind)
    channels_last_program(draft, builder.constants, build.log)
    found = values_of(draft, builder.constants, feeds, sizes)["y"]
    np.testing.assert_allclose(
        found, exact, rtol=10 * tolerance, atol=tolerance * np.abs(exact).max()
    )
    assert not np.array_equal(found, exact)


def _two_convolutions(first: Any) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="one", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Conv", ["r", "v"], ["y"], name="two"),
    ]
    return model_of(
        nodes,
        inputs=[tensor_info("x", (1, 3, 6, 6))],
        outputs=["y"],
        weights={"w": first, "b": normal(4), "v": normal(5, 4, 3, 3)},
    )


def test_channels_of_values_between_convolutions_are_last() -> None:
    builder, draft, build = draft_of(_two_convolutions(normal(4, 3, 3, 3)))
    narrow_program(draft, builder.constants, build.log)
    channels_last_program(draft, builder.constants, build.log)
    shapes = {b.name: b.shape for kernel in kernels_of(draft) for b in kernel.buffers}
    names = {name: [dim.const for dim in shape] for name, shape in shapes.items()}
    assert [1, 6, 6, 4] in names.values()
    assert names["x"] == [1, 3, 6, 6]
    assert names["y"] == [1, 5, 4, 4]
    assert names["v$float16$channels_last"] == [5, 3, 3, 4]
    assert builder.constants["v$float16$channels_last"].shape == (5, 3, 3, 4)


def test_weights_beyond_float16_stay_wide() -> None:
    large = normal(4, 3, 3, 3)
    large[0, 0, 0, 0] = 1e6
    builder, draft, build = draft_of(_two_convolutions(large))
    narrow_program(draft, builder.constants, build.log)
    types = {b.name: b.dtype for kernel in kernels_of(draft) for b in kernel.buffers}
    assert types["w"] is FLOAT32
    refused = [d for d in build.log.entries if d.stage == "precision" and d.subject == "w"]
    assert refused[0].rejected == (("float16", "a weight is 1e+06, float16 ends at 65504"),)


def test_options_of_gpus() -> None:
    given: dict[str, Any] = {"cpu": None, "threads": 1, "dims": None, "require": None}
    assert make_options(target="cuda", precision="fp16", **given).precision == "fp16"
    with pytest.raises(BadOption):
        make_options(target="cpu", precision="fp16", **given)
    with pytest.raises(BadTarget, match="sm_75"):
        make_options(target="sm_75", precision="fp32", **given)
    with pytest.raises(BadOption, match="drop one of them"):
        make_options(target="sm_90", precision="fp32", **{**given, "cpu": "haswell"})
    with pytest.raises(BadOption, match="winograd"):
        make_options(target="sm_90", precision="fp32", disable=["winograd"], **given)
