"""Rewrites for attributes that became inputs.

Squeeze(x, axes=[0]) -> Squeeze(x, [0]), and the like for Unsqueeze, Reduce*, Split, Slice, Pad,
Clip, Dropout, TopK, DFT.
Guarantees: an attribute that was left out stays left out; its meaning did not change.
"""

from __future__ import annotations

from tilewright.graph.normalize.edit import Edit

_LOWEST, _HIGHEST = -3.4028234663852886e38, 3.4028234663852886e38


def axes_to_input(edit: Edit) -> None:
    """``axes`` -> input 1; an empty list means the same as none."""
    axes = edit.take("axes")
    if axes:
        edit.set_input(1, edit.integers(list(axes), "axes"))


def split_to_input(edit: Edit) -> None:
    """``split`` -> input 1."""
    split = edit.take("split")
    if split:
        edit.set_input(1, edit.integers(list(split), "split"))


def split_count(edit: Edit) -> None:
    """Equal parts are asked for by ``num_outputs``."""
    if edit.input(1) is None:
        edit.put("num_outputs", len(edit.node.outputs))


def slice_to_inputs(edit: Edit) -> None:
    """``starts``, ``ends``, ``axes`` -> inputs 1 to 3."""
    for index, name in enumerate(("starts", "ends", "axes"), start=1):
        values = edit.take(name)
        if values is not None:
            edit.set_input(index, edit.integers(list(values), name))


def pad_to_inputs(edit: Edit) -> None:
    """``pads``, ``value`` -> inputs 1 and 2."""
    edit.set_input(1, edit.integers(list(edit.take("pads", [])), "pads"))
    value = edit.take("value", 0.0)
    if value != 0.0:
        edit.set_input(2, edit.number_like(value, edit.data(), "value"))


def clip_to_inputs(edit: Edit) -> None:
    """``min``, ``max`` -> inputs 1 and 2, in the type of the data."""
    for index, (name, least) in enumerate((("min", _LOWEST), ("max", _HIGHEST)), start=1):
        value = edit.take(name)
        if value is not None and value != least:
            edit.set_input(index, edit.number_like(value, edit.data(), name))


def top_k_to_input(edit: Edit) -> None:
    """``k`` -> input 1."""
    edit.set_input(1, edit.integers([edit.take("k", 1)], "k"))


def dft_axis_to_input(edit: Edit) -> None:
    """``axis`` -> input 2; its default was 1, it is -2 now."""
    edit.set_input(2, edit.integers(edit.take("axis", 1), "axis"))


def dropout_to_input(edit: Edit) -> None:
    """``ratio`` -> input 1; before opset 10 the mask had the type of the data."""
    ratio = edit.take("ratio", 0.5)
    if edit.take("is_test", None) == 0:
        edit.note("is_test=0 is ignored: inference")
    edit.set_input(1, edit.constant(ratio, "ratio", "float32"))
    node = edit.node
    if (node.version or 0) < 10 and len(node.outputs) > 1 and node.outputs[1].name:
        data = edit.data()
        dropped = edit.emit("Dropout", list(node.inputs), num_outputs=2)
        made = dropped.producer()
        if made is not None:
            mask = edit.emit("CastLike", [made.outputs[1], data])
            edit.replace(dropped, mask)
