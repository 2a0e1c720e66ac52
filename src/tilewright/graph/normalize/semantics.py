"""Rewrites for operators whose meaning or spelling changed between versions.

Softmax(x, axis=a), opset < 13   -> Reshape(Softmax(Flatten(x, a), -1), Shape(x))
BatchNormalization, spatial=0    -> (x - mean) * scale / sqrt(var + epsilon) + B
Upsample, Resize, opset < 11     -> Resize with asymmetric coordinates, rounded down
Scatter                          -> ScatterElements
GroupNormalization, opset < 21   -> scale and bias repeated for each channel
Add(..., broadcast=1, axis=a)    -> trailing dims of one added to the second operand (opset 6)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.element_types import element_type_of
from tilewright.graph.normalize.edit import Edit


def softmax_over_rest(edit: Edit) -> None:
    """Softmax, LogSoftmax and Hardmax ran over all axes from ``axis`` on."""
    axis = edit.take("axis", 1)
    data = edit.data()
    rank = edit.rank(data)
    if axis == -1 or (rank is not None and axis == rank - 1):
        edit.put("axis", -1)
        return
    shape = edit.emit("Shape", [data])
    flat = edit.emit("Flatten", [data], axis=axis)
    result = edit.emit(edit.node.op_type, [flat], axis=-1)
    edit.replace(edit.emit("Reshape", [result, shape], allowzero=1))


def batch_normalization(edit: Edit) -> None:
    """Training was asked for by naming more outputs; ``spatial=0`` had a statistic per element."""
    node = edit.node
    is_test, spatial = edit.take("is_test", 0), edit.take("spatial", 1)
    extra = [value for value in node.outputs[1:] if value.name]
    if extra and not is_test:
        if not spatial or any(
            value.uses() or value.is_graph_output() for value in node.outputs[3:]
        ):
            raise edit.unsupported("saved statistics of training have no equivalent")
        edit.put("training_mode", 1)
        if len(node.outputs) > 3:
            node.resize_outputs(3)
        return
    if any(value.uses() or value.is_graph_output() for value in extra):
        raise edit.unsupported("statistics are read although is_test=1")
    if len(node.outputs) > 1:
        node.resize_outputs(1)
    if spatial:
        return
    epsilon = edit.take("epsilon", 1e-5)
    data, scale, bias, mean, variance = node.inputs[:5]
    if variance is None:
        raise edit.unsupported("an input is absent")
    added = edit.emit("Add", [variance, edit.number_like(epsilon, variance, "epsilon")])
    normal = edit.emit("Div", [edit.emit("Sub", [data, mean]), edit.emit("Sqrt", [added])])
    edit.replace(edit.emit("Add", [edit.emit("Mul", [normal, scale]), bias]))


def upsample_to_resize(edit: Edit) -> None:
    """Upsample -> Resize-10 form: data, scales."""
    height, width = edit.take("height_scale"), edit.take("width_scale")
    scales = edit.take("scales") or ([1.0, 1.0, height, width] if height is not None else None)
    if scales is not None:
        edit.set_input(1, edit.constant(list(scales), "scales", "float32"))
    if edit.node.attributes.get_string("mode", "nearest") == "bilinear":
        edit.put("mode", "linear")
    edit.node.op_type = "Resize"
    resize_without_region(edit)


def resize_without_region(edit: Edit) -> None:
    """Resize-10: no region of interest yet; coordinates were scaled from the corner."""
    scales = edit.input(1)
    edit.set_input(2, scales)
    edit.set_input(1, None)
    edit.put("coordinate_transformation_mode", "asymmetric")
    edit.put("nearest_mode", "floor")


def resize_inputs(edit: Edit) -> None:
    """An empty tensor meant an absent input; the region matters for one coordinate mode only."""
    mode = edit.node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    for index in range(1, len(edit.node.inputs)):
        array = edit.constant_input(index)
        if (array is not None and not array.size) or (index == 1 and mode != "tf_crop_and_resize"):
            edit.set_input(index, None)


def scatter_to_scatter_elements(edit: Edit) -> None:
    """Scatter was renamed."""
    edit.node.op_type = "ScatterElements"


def roi_align_without_offset(edit: Edit) -> None:
    """Before opset 16 there was no shift by half a pixel."""
    edit.put("coordinate_transformation_mode", "output_half_pixel")


def grid_sample_modes(edit: Edit) -> None:
    """``bilinear`` and ``bicubic`` were renamed when more than two dims came."""
    mode = edit.node.attributes.get_string("mode", "bilinear")
    edit.put("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def group_normalization(edit: Edit) -> None:
    """Scale and bias had one element a group; now one a channel."""
    data = edit.data()
    groups = edit.node.attributes.get_int("num_groups", 1)
    channels = edit.emit("Shape", [data], start=1, end=2)
    each = edit.emit("Div", [channels, edit.integers([groups], "groups")])
    shape = edit.emit("Concat", [edit.integers([groups], "rows"), each], axis=0)
    for index in (1, 2):
        column = edit.emit("Unsqueeze", [edit.input(index), edit.integers([1], "axis")])
        wide = edit.emit("Expand", [column, shape])
        edit.set_input(index, edit.emit("Reshape", [wide, edit.integers([-1], "flat")]))


def drop_output_sequence(edit: Edit) -> None:
    """RNN, GRU, LSTM: outputs are asked for by naming them."""
    edit.take("output_sequence")


# --- opset 6: broadcasting by attribute -----------------------------------------------------------


def legacy_broadcast(edit: Edit) -> None:
    """``axis`` said where the second operand's first dim falls; dims of one are added behind it."""
    broadcast, axis = edit.take("broadcast", 0), edit.take("axis")
    left, right = edit.input(0), edit.input(1)
    if not broadcast or axis is None or left is None or right is None:
        return
    rank_left = edit.emit("Shape", [edit.emit("Shape", [left])])
    rank_right = edit.emit("Shape", [edit.emit("Shape", [right])])
    if axis >= 0:
        rank_left = edit.emit("Sub", [rank_left, edit.integers([axis], "axis")])
    else:
        rank_left = edit.integers([-axis], "axis")
    behind = edit.emit("Sub", [rank_left, rank_right])
    edit.set_input(1, _with_ones(edit, edit.emit("Shape", [right]), behind, right))


def drop_broadcast(edit: Edit) -> None:
    """Gemm-6: C broadcasts anyhow."""
    edit.take("broadcast")


def slope_by_channel(edit: Edit) -> None:
    """PRelu-6: a vector of slopes belonged to the channels, axis 1."""
    data, slope = edit.data(), edit.input(1)
    array = edit.constant_input(1)
    rank = edit.rank(slope)
    if slope is None or (array is not None and array.size == 1) or (rank is not None and rank != 1):
        return
    two = edit.integers([2], "two")
    rank_data = edit.emit("Max", [edit.emit("Shape", [edit.emit("Shape", [data])]), two])
    behind = edit.emit("Sub", [rank_data, two])
    edit.set_input(1, _with_ones(edit, edit.integers([-1], "channels"), behind, slope))


def _with_ones(edit: Edit, shape: ir.Value, count: ir.Value, value: ir.Value) -> ir.Value:
    """The value with ``count`` dims of one behind its shape."""
    one = ir.Tensor(np.asarray([1], dtype=np.int64))
    ones = edit.emit("ConstantOfShape", [count], value=one)
    return edit.emit("Reshape", [value, edit.emit("Concat", [shape, ones], axis=0)])


# --- Scan-8 ---------------------------------------------------------------------------------------


def scan_without_batch(edit: Edit) -> None:
    """Scan-8 had a leading batch axis: a Scan over the batch around one over the sequence."""
    node = edit.node
    if node.inputs and node.inputs[0] is not None:
        raise edit.unsupported("sequence_lens has no equivalent")
    body = node.attributes["body"].as_graph()
    given = list(node.inputs[1:])
    num_scanned = node.attributes.get_int("num_scan_inputs", 1)
    inner_inputs = [_slice_of_batch(edit, value, index) for index, value in enumerate(given)]
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", num_scanned)]
    directions = edit.take("directions")
    if directions:
        attributes.append(ir.AttrInt64s("scan_input_directions", directions))
    edit.node.attributes.pop("body")
    inner = ir.Node(
        "",
        "Scan",
        inner_inputs,
        attributes,
        num_outputs=len(node.outputs),
        version=NEWEST_OPSET,
        name=edit.names.claim(f"{node.name}/sequence"),
    )
    for index, value in enumerate(inner.outputs):
        value.name = edit.names.claim(f"{node.name}/sequence.out{index}")
    outer_body = ir.Graph(inner_inputs, inner.outputs, nodes=[inner], name=f"{node.name}/batch")
    outer = ir.Node(
        "",
        "Scan",
        given,
        [ir.AttrGraph("body", outer_body), ir.AttrInt64("num_scan_inputs", len(given))],
        num_outputs=len(node.outputs),
        version=NEWEST_OPSET,
        name=edit.names.claim(f"{node.name}/batch"),
    )
    for index, value in enumerate(outer.outputs):
        value.name = edit.names.claim(f"{node.name}/batch.out{index}")
    edit.graph.insert_before(node, outer)
    edit.replace(*outer.outputs)


def _slice_of_batch(edit: Edit, value: ir.Value | None, index: int) -> ir.Value:
    if value is None:
        raise edit.unsupported("an input is absent")
    dtype = element_type_of(value)
    if dtype is None:
        raise edit.unsupported("the element type of an input is not known")
    name = edit.names.claim(f"{edit.node.name}/batch.in{index}")
    return ir.Value(name=name, type=ir.TensorType(ir.DataType(dtype.code)))
