"""One token of a decoder for GPUs: sums with what reads them, attention without a joined cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.codegen.cuda.decode import decode_refusal
from tilewright.codegen.cuda.generate import generate
from tilewright.compiler.build_program import Builder, DraftProgram
from tilewright.compiler.depth_last import depth_last_program
from tilewright.compiler.join_attention import join_attention_program
from tilewright.compiler.join_vectors import join_vectors_program
from tilewright.compiler.narrow import narrow_program
from tilewright.compiler.pipeline import Build
from tilewright.compiler.pure_softmax import pure_softmax_program
from unit.compiler.drafts import draft_of, kernels_of, values_of
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info

_PAST, _WIDTH = 139, 64


def _layer(**attention: Any) -> onnx.ModelProto:
    """Attention of 2 heads over one, with what comes before, then gated products."""
    depth, heads = 96, {"q_num_heads": 2, "kv_num_heads": 1}
    nodes = [
        node("RMSNormalization", ["x", "one"], ["n"], name="normal", axis=-1),
        node("Gemm", ["n", "w"], ["p"], name="packed"),
        node("Split", ["p", "sizes"], ["q2", "k2", "v2"], name="split", axis=1),
        *(node("Reshape", [f"{n}2", "three"], [n], name=f"reshape_{n}") for n in "qkv"),
        *(
            node("RotaryEmbedding", [n, "cos", "sin"], [f"{n}r"], name=f"turn_{n}", num_heads=h)
            for n, h in (("q", 2), ("k", 1))
        ),
        node(
            "Attention",
            ["qr", "kr", "v", "", "past_k", "past_v"],
            ["a"],
            name="attention",
            **heads,
            **attention,
        ),
        node("Reshape", ["a", "two"], ["r"], name="reshape"),
        node("Gemm", ["r", "g"], ["gate"], name="gate"),
        node("Gemm", ["r", "u"], ["up"], name="up"),
        node("Sigmoid", ["gate"], ["s"], name="sigmoid"),
        node("Mul", ["gate", "s"], ["m"], name="swish"),
        node("Mul", ["m", "up"], ["y"], name="mul"),
    ]
    angles = normal(1, 1, _WIDTH // 2)
    shape = (1, 1, _PAST, _WIDTH)
    return model_of(
        nodes,
        inputs=[
            tensor_info("x", (1, depth)),
            tensor_info("past_k", shape),
            tensor_info("past_v", shape),
        ],
        outputs=["y", "kr"],
        weights={
            "one": np.ones(depth, np.float32),
            "w": normal(depth, 4 * _WIDTH) / 10,
            "g": normal(2 * _WIDTH, 80) / 10,
            "u": normal(2 * _WIDTH, 80, seed=5) / 10,
            "sizes": np.array([2 * _WIDTH, _WIDTH, _WIDTH]),
            "two": np.array([1, -1]),
            "three": np.array([1, 1, -1]),
            "cos": np.cos(angles),
            "sin": np.sin(angles),
        },
        opset=23,
    )


def _narrow(model: onnx.ModelProto) -> tuple[Builder, DraftProgram, Build]:
    builder, draft, build = draft_of(model)
    narrow_program(draft, builder.constants, build.log)
    depth_last_program(draft, builder.constants, build.log)
    return builder, draft, build


def _joined(model: onnx.ModelProto) -> tuple[list[Any], Any, Any]:
    """The kernels, and all values before and after."""
    builder, draft, build = _narrow(model)
    feeds = {"x": normal(1, 96, seed=2)}
    feeds |= {f"past_{n}": normal(1, 1, _PAST, _WIDTH, seed=k) for k, n in enumerate("kv")}
    before = values_of(draft, builder.constants, feeds)
    pure_softmax_program(draft, build.log)
    join_attention_program(draft, builder.constants, build.log)
    join_vectors_program(draft, build.log)
    return kernels_of(draft), before, values_of(draft, builder.constants, feeds)


def test_a_token_takes_three_kernels_of_float16() -> None:
    kernels, before, after = _joined(_layer())
    kernels = [kernel for kernel in kernels if kernel.name not in ("Cast", "cast")]
    ways = [generate(kernel).stages[0].tactic.split("(")[0] for kernel in kernels]
    assert [way for way in ways if way in ("gemv", "decode")] == ["gemv", "decode", "gemv"]
    for name in ("y", "kr"):
        np.testing.assert_allclose(after[name], before[name], rtol=2e-2, atol=4e-3)


@pytest.mark.parametrize("attributes", [{"is_causal": 1}, {"softcap": 5.0}])
def test_what_hides_no_key_of_all_is_joined_too(attributes: Any) -> None:
    kernels, before, after = _joined(_layer(**attributes))
    assert any(decode_refusal(kernel) is None for kernel in kernels)
    np.testing.assert_allclose(after["y"], before["y"], rtol=2e-2, atol=4e-3)


def test_masks_may_hide_the_first_key_and_stay_as_they_are() -> None:
    _, draft, build = _narrow(_layer(is_causal=1, softcap=5.0))
    pure_softmax_program(draft, build.log)
    assert any(entry.chosen == "a softmax in one stage" for entry in build.log.entries)
    masked = model_of(
        [
            node(
                "Attention",
                ["q", "k", "v", "mask"],
                ["y"],
                name="attention",
                q_num_heads=1,
                kv_num_heads=1,
            )
        ],
        inputs=[tensor_info(n, (1, 130, 64)) for n in "qkv"] + [tensor_info("mask", (130, 130))],
        outputs=["y"],
        opset=23,
    )
    _, draft, build = _narrow(masked)
    pure_softmax_program(draft, build.log)
    assert not any(entry.stage == "attention" for entry in build.log.entries)
