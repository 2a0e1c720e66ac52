"""Which rewrite an operator needs, and below which opset.

Read a line as: nodes older than this opset get this rewrite; several apply in order.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.normalize import attributes, semantics
from tilewright.graph.normalize.edit import Edit

Rewrite = Callable[[Edit], None]
_ALWAYS = 1_000_000

RULES: dict[str, tuple[tuple[int, Rewrite], ...]] = {
    "BatchNormalization": ((14, semantics.batch_normalization),),
    "Clip": ((11, attributes.clip_to_inputs),),
    "DFT": ((20, attributes.dft_axis_to_input),),
    "Dropout": ((12, attributes.dropout_to_input),),
    "GRU": ((7, semantics.drop_output_sequence),),
    "Gemm": ((7, semantics.drop_broadcast),),
    "GridSample": ((20, semantics.grid_sample_modes),),
    "GroupNormalization": ((21, semantics.group_normalization),),
    "Hardmax": ((13, semantics.softmax_over_rest),),
    "LSTM": ((7, semantics.drop_output_sequence),),
    "LogSoftmax": ((13, semantics.softmax_over_rest),),
    "PRelu": ((7, semantics.slope_by_channel),),
    "Pad": ((11, attributes.pad_to_inputs),),
    "RNN": ((7, semantics.drop_output_sequence),),
    "ReduceSum": ((13, attributes.axes_to_input),),
    "Resize": ((11, semantics.resize_without_region), (_ALWAYS, semantics.resize_inputs)),
    "RoiAlign": ((16, semantics.roi_align_without_offset),),
    "Scan": ((9, semantics.scan_without_batch),),
    "Scatter": ((_ALWAYS, semantics.scatter_to_scatter_elements),),
    "Slice": ((10, attributes.slice_to_inputs),),
    "Softmax": ((13, semantics.softmax_over_rest),),
    "Split": ((13, attributes.split_to_input), (18, attributes.split_count)),
    "Squeeze": ((13, attributes.axes_to_input),),
    "TopK": ((10, attributes.top_k_to_input),),
    "Unsqueeze": ((13, attributes.axes_to_input),),
    "Upsample": ((_ALWAYS, semantics.upsample_to_resize),),
}
for _name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
    RULES[f"Reduce{_name}"] = ((18, attributes.axes_to_input),)
for _name in ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"):
    RULES[_name] = ((7, semantics.legacy_broadcast),)
