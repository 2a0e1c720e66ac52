"""What happens to float16 drafts for GPUs: layouts of weights and images, joined attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tilewright.codegen.cuda.generate import generate
from tilewright.compiler.build_program import Builder, DraftProgram
from tilewright.compiler.channels_last import channels_last_program
from tilewright.compiler.depth_last import depth_last_program
from tilewright.compiler.fold_columns import fold_columns_program
from tilewright.compiler.join_attention import join_attention_program
from tilewright.compiler.join_sums import join_sums_program
from tilewright.compiler.lanes_last import lanes_last_program
from tilewright.compiler.narrow import narrow_program
from tilewright.compiler.pad_channels import pad_channels_program
from tilewright.compiler.pipeline import Build
from tilewright.compiler.store_quantized import store_quantized_program
from unit.compiler.drafts import draft_of, kernels_of, values_of
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info
from unit.quantized.qdq import Net, simulated


def _narrow(model: onnx.ModelProto) -> tuple[Builder, DraftProgram, Build]:
    builder, draft, build = draft_of(model)
    narrow_program(draft, builder.constants, build.log)
    channels_last_program(draft, builder.constants, build.log)
    return builder, draft, build


def _product(second: str) -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="one"),
        node("Relu", ["m"], ["r"], name="relu"),
        node("MatMul", ["r", second], ["y"], name="two"),
    ]
    weights = {"w": normal(16, 16), "v": normal(16, 24)}
    return model_of(nodes, inputs=[tensor_info("x", (5, 16))], outputs=["y"], weights=weights)


def test_weights_lie_along_the_depth_of_their_sums() -> None:
    builder, draft, build = _narrow(_product("v"))
    feeds = {"x": normal(5, 16, seed=3)}
    before = values_of(draft, builder.constants, feeds)["y"]
    depth_last_program(draft, builder.constants, build.log)
    shapes = {b.name: [d.const for d in b.shape] for k in kernels_of(draft) for b in k.inputs}
    assert shapes["v$float16$depth_last"] == [24, 16]
    after = values_of(draft, builder.constants, feeds)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_weights_that_are_read_elsewhere_stay() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="one"),
        node("Add", ["m", "w"], ["y"], name="add"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (16, 16))],
        outputs=["y"],
        weights={"w": normal(16, 16)},
    )
    builder, draft, build = _narrow(model)
    depth_last_program(draft, builder.constants, build.log)
    assert not any("depth_last" in b.name for k in kernels_of(draft) for b in k.inputs)


def _depthwise(channels: int, size: int) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1, 1, 1]),
        node("Conv", ["c", "v"], ["d"], name="depthwise", group=channels, pads=[1, 1, 1, 1]),
        node("Conv", ["d", "u"], ["y"], name="last"),
    ]
    weights = {
        "w": normal(channels, 16, 3, 3),
        "v": normal(channels, 1, 3, 3),
        "u": normal(16, channels, 1, 1),
    }
    inputs = [tensor_info("x", (1, 16, size, size))]
    return model_of(nodes, inputs=inputs, outputs=["y"], weights=weights)


def _residual(stride: int) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "v", "c"], ["d"], name="shortcut", strides=[stride, stride]),
        node("Conv", ["x", "u"], ["t"], name="first", strides=[stride, stride]),
        node("Relu", ["t"], ["s"], name="relu"),
        node("Conv", ["s", "w", "b"], ["m"], name="second"),
        node("Add", ["m", "d"], ["a"], name="add"),
        node("Relu", ["a"], ["r"], name="after"),
        node("Conv", ["r", "z"], ["y"], name="last"),
    ]
    weights = {
        "z": normal(8, 48, 1, 1),
        "u": normal(64, 128, 1, 1),
        "v": normal(48, 128, 1, 1),
        "w": normal(48, 64, 1, 1),
        "b": normal(48),
        "c": normal(48),
    }
    inputs = [tensor_info("x", (2, 128, 8, 8))]
    return model_of(nodes, inputs=inputs, outputs=["y"], weights=weights)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_sum_that_is_added_to_another_becomes_a_part_of_it(stride: int) -> None:
    builder, draft, build = _narrow(_residual(stride))
    depth_last_program(draft, builder.constants, build.log)
    feeds = {"x": normal(2, 128, 8, 8, seed=3)}
    before = values_of(draft, builder.constants, feeds)["y"]
    count = len(kernels_of(draft))
    join_sums_program(draft, builder.constants, build.log)
    assert len(kernels_of(draft)) == count - 1
    after = values_of(draft, builder.constants, feeds)["y"]
    np.testing.assert_allclose(after, before, rtol=4e-3, atol=4e-3 * np.abs(before).max())
    assert any(d.stage == "sums" and "one sum" in d.chosen for d in build.log.entries)


def _edited(how: str) -> onnx.ModelProto:
    """A residual block of which one thing is not as it has to be."""
    model = _residual(1)
    nodes = {one.name: one for one in model.graph.node}
    weights = {one.name: one for one in model.graph.initializer}

    def replace(**arrays: Any) -> None:
        for name, array in arrays.items():
            weights[name].CopyFrom(numpy_helper.from_array(array, name))

    if how == "activation":
        nodes["shortcut"].output[0] = "e"
        model.graph.node.insert(1, node("Relu", ["e"], ["d"], name="between"))
    elif how == "input":
        model.graph.initializer.remove(weights["v"])
        model.graph.input.append(tensor_info("v", (48, 128, 1, 1)))
    elif how == "no product":  # a sum over all columns, beside a window of all columns
        nodes["second"].CopyFrom(node("ReduceSum", ["s", "b"], ["m"], name="second"))
        replace(b=np.array([3]), u=normal(48, 128, 1, 1), v=normal(48, 128, 1, 8))
    else:
        replace(u=normal(72, 128, 1, 1), w=normal(48, 72, 1, 1))
    return model


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("activation", "does more than to add to its sum"),
        ("input", "no constant whose dims are outputs and what is summed"),
        ("no product", "no sum of products"),
        ("depth", "a depth that is no whole number of steps"),
    ],
)
def test_sums_that_do_not_become_one_say_why(how: str, reason: str) -> None:
    builder, draft, build = _narrow(_edited(how))
    depth_last_program(draft, builder.constants, build.log)
    count = len(kernels_of(draft))
    join_sums_program(draft, builder.constants, build.log)
    assert len(kernels_of(draft)) == count
    refused = [one.rejected for one in build.log.entries if one.stage == "sums"]
    assert any(reason in why for pairs in refused for _, why in pairs), refused


def test_a_sum_that_others_read_stays() -> None:
    model = _residual(1)
    model.graph.output.append(tensor_info("d", (2, 48, 8, 8)))
    builder, draft, build = _narrow(model)
    depth_last_program(draft, builder.constants, build.log)
    count = len(kernels_of(draft))
    join_sums_program(draft, builder.constants, build.log)
    assert len(kernels_of(draft)) == count


def test_weights_of_depthwise_windows_lie_along_their_channels() -> None:
    builder, draft, build = _narrow(_depthwise(24, 40))
    feeds = {"x": normal(1, 16, 40, 40, seed=3)}
    depth_last_program(draft, builder.constants, build.log)
    before = values_of(draft, builder.constants, feeds)["y"]
    lanes_last_program(draft, builder.constants, build.log)
    moved = [b for k in kernels_of(draft) for b in k.inputs if b.name.endswith("$lanes_last")]
    assert [[d.const for d in b.shape][-1] for b in moved] == [24]
    np.testing.assert_array_equal(values_of(draft, builder.constants, feeds)["y"], before)
    (kernel,) = (k for k in kernels_of(draft) if moved[0] in k.inputs)
    assert generate(kernel).stages[0].tactic == "pack"


def test_weights_of_products_do_not_lie_along_outputs() -> None:
    builder, draft, build = _narrow(_product("v"))
    depth_last_program(draft, builder.constants, build.log)
    lanes_last_program(draft, builder.constants, build.log)
    assert not any("lanes_last" in b.name for k in kernels_of(draft) for b in k.inputs)


def test_few_channels_of_an_image_are_padded() -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["y"], name="pool"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (2, 3, 9, 8))],
        outputs=["y"],
        weights={"w": normal(16, 3, 3, 3), "b": normal(16)},
    )
    builder, draft, build = _narrow(model)
    feeds = {"x": normal(2, 3, 9, 8, seed=3)}
    before = values_of(draft, builder.constants, feeds)["y"]
    pad_channels_program(draft, builder.constants, build.log)
    shapes = {b.name: [d.const for d in b.shape] for k in kernels_of(draft) for b in k.inputs}
    assert shapes["x$copy$padded"] == [2, 9, 8, 8]
    after = values_of(draft, builder.constants, feeds)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4)


def _image(size: int, strides: list[int], pads: list[int], channels: int = 3) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=pads, strides=strides),
        node("Relu", ["c"], ["r"], name="relu"),
        node("GlobalAveragePool", ["r"], ["y"], name="pool"),
    ]
    return model_of(
        nodes,
        inputs=[tensor_info("x", (2, channels, 17, 22))],
        outputs=["y", "r"],
        weights={"w": normal(16, channels, size, size), "b": normal(16)},
    )


@pytest.mark.parametrize("size", [2, 3, 6, 7])
@pytest.mark.parametrize("strides", [[2, 2], [1, 2], [3, 2]])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [3, 2, 0, 5]])
def test_two_columns_of_an_image_are_folded(size: int, strides: list[int], pads: list[int]) -> None:
    builder, draft, build = _narrow(_image(size, strides, pads))
    feeds = {"x": normal(2, 3, 17, 22, seed=3)}
    before = values_of(draft, builder.constants, feeds)
    fold_columns_program(draft, builder.constants, build.log)
    assert any(b.name == "x$copy$folded" for k in kernels_of(draft) for b in k.inputs)
    after = values_of(draft, builder.constants, feeds)
    for name in ("y", "r"):
        np.testing.assert_allclose(after[name], before[name], rtol=2e-3, atol=2e-3)


def _read_twice() -> onnx.ModelProto:
    model = _image(3, [2, 2], [1, 1, 1, 1])
    (conv,) = (one for one in model.graph.node if one.op_type == "Conv")
    other = node("Conv", conv.input, ["c2"], name="other", pads=[0] * 4, strides=[2, 2])
    model.graph.node.insert(1, other)
    model.graph.output.append(tensor_info("c2", (2, 16, 8, 10)))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_image(3, [2, 1], [1, 1, 1, 1]), "windows do not move by whole rows and by two columns"),
        (_read_twice(), "2 kernels read it"),
        (_image(3, [2, 2], [1, 1, 1, 1], channels=5), None),
    ],
)
def test_images_whose_columns_cannot_be_folded_stay(
    model: onnx.ModelProto, reason: str | None
) -> None:
    builder, draft, build = _narrow(model)
    before = len(build.log.entries)
    fold_columns_program(draft, builder.constants, build.log)
    assert not any("folded" in b.name for k in kernels_of(draft) for b in k.inputs)
    told = [why for one in build.log.entries[before:] for _, why in one.rejected]
    assert told == ([] if reason is None else [reason])


def _attention(
    width: int = 32, *, shared: bool = False, guarded: bool = True, quantized: bool = False
) -> onnx.ModelProto:
    heads, keys = 2, 12
    scale = np.array(0.2, np.float32)
    nodes = [
        *(node("MatMul", [n, "m"], [f"{n}m"], name=f"project_{n}") for n in "qkv"),
        node("Mul", ["qm", "s"], ["qs"], name="scale_q"),
        node("Transpose", ["km"], ["kt"], name="transpose_k", perm=[0, 1, 3, 2]),
        node("Mul", ["kt", "s"], ["ks"], name="scale_k"),
        node("MatMul", ["qs", "ks"], ["scores"], name="scores"),
        node("Add", ["scores", "mask"], ["masked"], name="mask"),
        node("Softmax", ["masked"], ["p"], name="softmax", axis=-1),
        node("IsNaN", ["p"], ["bad"], name="isnan"),
        node("Where", ["bad", "zero", "p"], ["w"], name="guard"),
        node("MatMul", ["w" if guarded else "p", "vm"], ["o"], name="values"),
        node("Transpose", ["o"], ["t"], name="transpose", perm=[0, 2, 1, 3]),
        node("Relu", ["t"], ["y"], name="relu"),
    ]
    if not guarded:
        nodes = [n for n in nodes if n.name not in ("isnan", "guard")]
    if quantized:
        nodes[-1:] = [
            node("Reshape", ["t", "joined"], ["r"], name="join"),
            node("QuantizeLinear", ["r", "step", "middle"], ["y"], name="quantize"),
        ]
    shape = (1, heads, keys, width)
    return model_of(
        nodes,
        inputs=[tensor_info(name, shape) for name in "qkv"]
        + [tensor_info("mask", (1, 1, 1, keys))],
        outputs=["y", "p"] if shared else ["y"],
        weights={
            "s": scale,
            "zero": np.array(0.0, np.float32),
            "m": normal(width, width) / 5,
            "joined": np.array([1, keys, heads * width]),
            "step": np.array(0.03, np.float32),
            "middle": np.array(120, np.uint8),
        },
    )


def _attention_feeds(width: int = 32) -> dict[str, Any]:
    found = {name: normal(1, 2, 12, width, seed=k) for k, name in enumerate("qkv")}
    mask = np.where(np.arange(12) < 9, 0, -np.inf).astype(np.float32)
    return {**found, "mask": mask.reshape(1, 1, 1, 12)}


@pytest.mark.parametrize("guarded", [True, False])
def test_kernels_of_attention_are_joined(guarded: bool) -> None:
    builder, draft, build = _narrow(_attention(guarded=guarded))
    feeds = _attention_feeds()
    before = values_of(draft, builder.constants, feeds)["y"]
    join_attention_program(draft, builder.constants, build.log)
    names = [kernel.name for kernel in kernels_of(draft)]
    assert names.count("Attention") == 1
    assert not {"Softmax", "Add", "Where"} & set(names)
    after = values_of(draft, builder.constants, feeds)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-2, atol=4e-3)


@pytest.mark.parametrize(
    ("model", "reason"),
    [(_attention(24), "rows of 24 elements"), (_attention(shared=True), "")],
)
def test_what_cannot_be_joined_stays(model: onnx.ModelProto, reason: str) -> None:
    builder, draft, build = _narrow(model)
    before = [kernel.name for kernel in kernels_of(draft)]
    join_attention_program(draft, builder.constants, build.log)
    assert [kernel.name for kernel in kernels_of(draft)] == before
    said = [d.rejected[0][1] for d in build.log.entries if d.stage == "attention"]
    assert said == ([reason] if reason else [])


@pytest.mark.parametrize(("stride", "chosen"), [(2, "2 rows and two columns"), (1, "padded to 16")])
def test_images_of_bytes_get_chunks_of_16_channels(stride: int, chosen: str) -> None:
    net = Net(0)
    first, scales = net.weight((16, 3, 5, 5), 0)
    second, _ = net.weight((24, 16, 3, 3), 0)
    x = net.quantize("x", 0.02, 30)  # padding is the zero point
    strides, bias = [stride, stride], net.bias(16, 0.02 * scales)
    y = net.add("Conv", [x, first, bias], pads=[2, 2, 2, 2], strides=strides)
    y = net.quantize(net.add("Relu", [y]), 1.0, 0)
    out = net.quantize(net.add("Conv", [y, second], pads=[1, 1, 1, 1]), 9.0, 120)
    builder, draft, build = draft_of(net.model((2, 3, 11, 10), out))
    feeds = {"x": normal(2, 3, 11, 10, seed=3)}
    before = values_of(draft, builder.constants, feeds)[out]
    channels_last_program(draft, builder.constants, build.log)
    fold_columns_program(draft, builder.constants, build.log)
    pad_channels_program(draft, builder.constants, build.log)
    layouts = [entry.chosen for entry in build.log.entries if entry.stage == "layout"]
    assert any(chosen in text for text in layouts)
    assert len(np.unique(before)) > 30
    np.testing.assert_array_equal(values_of(draft, builder.constants, feeds)[out], before)


def test_rows_that_are_normalised_are_quantised_with_them() -> None:
    net = Net(0)
    weights, _ = net.weight((64, 64), 1)
    scale, bias = net.constant(normal(64)), net.constant(normal(64, seed=1))
    y = net.add("LayerNormalization", ["x", scale, bias])
    product = net.add("MatMul", [net.quantize(y, 0.05, 120), weights])
    out = net.add("Add", [product, y])
    builder, draft, build = _narrow(net.model((2, 40, 64), out))
    feeds = {"x": normal(2, 40, 64, seed=3)}
    before = values_of(draft, builder.constants, feeds)[out]
    count = len(kernels_of(draft))
    store_quantized_program(draft, builder.constants, build.log)
    assert len(kernels_of(draft)) == count - 1
    assert any(len(kernel.outputs) == 2 for kernel in kernels_of(draft))
    np.testing.assert_array_equal(values_of(draft, builder.constants, feeds)[out], before)


def test_attention_stores_its_quantised_form_alone() -> None:
    builder, draft, build = _narrow(_attention(quantized=True))
    feeds = _attention_feeds()
    join_attention_program(draft, builder.constants, build.log)
    before = values_of(draft, builder.constants, feeds)["y"]
    count = len(kernels_of(draft))
    store_quantized_program(draft, builder.constants, build.log)
    assert len(kernels_of(draft)) == count - 1
    assert kernels_of(draft)[-1].outputs[0].name == "y$quantized"
    assert len(np.unique(before)) > 20
    np.testing.assert_array_equal(values_of(draft, builder.constants, feeds)["y"], before)


def test_signed_images_are_multiplied_as_they_are() -> None:
    net = Net(0)
    weights, scales = net.weight((16, 16, 3, 3), 0)
    x = net.quantize("x", 0.02, -9, "int8")
    y = net.add("Conv", [x, weights, net.bias(16, 0.02 * scales)], pads=[1, 1, 1, 1])
    model = net.model((1, 16, 8, 8), net.quantize(y, 1.0, 5, "int8"))
    builder, draft, build = draft_of(model)
    channels_last_program(draft, builder.constants, build.log)
    feeds = {"x": normal(1, 16, 8, 8)}
    expected, _ = simulated(model, feeds)
    values = values_of(draft, builder.constants, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(values[name], array)
    made = generate(kernels_of(draft)[1], clusters=True, constants=builder.constants.keys())
    assert "TwDeep<TwS8S8" in made.text
    assert "tw_fill<4160223223u>" in made.text  # -9 four times, around the image
