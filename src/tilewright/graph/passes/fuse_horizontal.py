"""Make one contraction of several that read the same value.

    MatMul(x, w1); MatMul(x, w2)  ->  Split(MatMul(x, [w1 w2]))
    (also Gemm and Conv with equal attributes; a constant bias added to each MatMul is joined too)
    MatMul(x, DequantizeLinear(w1, s1, z1)); ..  ->  Split(MatMul(x, DequantizeLinear([w1 w2], ..)))
    in a pass of its own, for before integers are multiplied
Requires: constant weights of one type; equal reduced sizes and attributes; all with a bias or all
    without.
Guarantees: every result is the same sum in the same order; results keep their names.
    No result feeds an elementwise operator: a Split would part it from its epilogue.
Not here: contractions that fill the machine by themselves, or are of very unequal sizes: reading
    ``x`` once gains nothing there, and splitting costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import (
    Array,
    Pass,
    PassContext,
    Refused,
    attribute,
    operand,
)
from tilewright.graph.passes.match import maker, only_reader, other_input
from tilewright.graph.walk import node_label

MAX_CHANNELS = 1024  # of one sibling: above, it fills the machine by itself
MAX_RATIO = 8  # of the largest sibling to the smallest
_EPILOGUES = frozenset(
    "Relu LeakyRelu PRelu Elu Selu Celu Clip Sigmoid HardSigmoid HardSwish Swish Gelu Tanh "
    "Softplus Mish Add Sub Mul Div Max Min Where QuantizeLinear Cast Neg Exp Sqrt Pow".split()
)
_OPS = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sibling:
    """A contraction, its weights [.., channels ..], its bias [channels] and its last node.

    Attributes:
        steps: scale and zero point [channels] of weights that are codes; None for floats.
    """

    node: ir.Node
    weights: Array
    bias: Array | None
    channels: int
    end: ir.Node
    steps: tuple[Array, Array] | None = None


def _join(ctx: PassContext, of: Callable[[PassContext, ir.Node], _Sibling | None]) -> None:
    for graph in ctx.graphs():
        groups: dict[Hashable, list[_Sibling]] = {}
        for node in graph:
            if not node.domain and node.op_type in _OPS:
                sibling = of(ctx, node)
                if sibling is not None:
                    groups.setdefault(_key(sibling), []).append(sibling)
        for siblings in groups.values():
            if len(siblings) > 1:
                _fuse(ctx, siblings)


fuse_horizontal = Pass(name="fuse_horizontal", run=lambda ctx: _join(ctx, _sibling))
fuse_quantized = Pass(name="fuse_quantized", run=lambda ctx: _join(ctx, _quantized_sibling))


def _sibling(ctx: PassContext, node: ir.Node) -> _Sibling | None:
    weights = ctx.constant(operand(node, 1))
    if weights is None or operand(node, 0) is None or ctx.constant(operand(node, 0)) is not None:
        return None
    if node.op_type == "MatMul":
        return _matmul(ctx, node, weights)
    given = operand(node, 2)
    bias = ctx.constant(given)
    if given is not None and bias is None:
        return None
    if node.op_type == "Conv":
        if attribute(node, "group", 1) != 1:
            return None
        return _Sibling(node=node, weights=weights, bias=bias, channels=weights.shape[0], end=node)
    channels = weights.shape[0 if attribute(node, "transB", 0) else 1]
    if bias is not None:
        if bias.ndim > 1 and any(size != 1 for size in bias.shape[:-1]):
            return None
        bias = np.broadcast_to(bias.reshape(-1), (channels,))
    return _Sibling(node=node, weights=weights, bias=bias, channels=channels, end=node)


def _matmul(
    ctx: PassContext, node: ir.Node, weights: Array, steps: tuple[Array, Array] | None = None
) -> _Sibling | None:
    rank = ctx.rank(node.inputs[0])
    if weights.ndim != 2 or rank is None or rank < 2:
        return None
    channels = weights.shape[1]
    value = node.outputs[0]
    add = only_reader(value, "Add")
    bias = ctx.constant(other_input(add, value)) if add is not None else None
    kind = weights.dtype if steps is None else steps[0].dtype
    if add is None or bias is None or bias.shape != (channels,) or bias.dtype != kind:
        add, bias = node, None
    return _Sibling(node=node, weights=weights, bias=bias, channels=channels, end=add, steps=steps)


def _quantized_sibling(ctx: PassContext, node: ir.Node) -> _Sibling | None:
    """A MatMul whose weights are dequantised, by one scale or one a column."""
    source = maker(operand(node, 1), "DequantizeLinear", graph=node.graph)
    if node.op_type != "MatMul" or source is None or attribute(source, "block_size", 0):
        return None
    codes, scale = (ctx.constant(operand(source, index)) for index in (0, 1))
    zero = ctx.constant(operand(source, 2))
    if codes is None or codes.ndim != 2 or scale is None:
        return None
    if zero is None:
        if operand(source, 2) is not None:
            return None
        zero = np.zeros(scale.shape, codes.dtype)
    columns = codes.shape[1]
    if scale.size > 1 and (attribute(source, "axis", 1) % 2 != 1 or scale.shape != (columns,)):
        return None
    steps = [np.broadcast_to(part.reshape(-1), (columns,)) for part in (scale, zero)]
    return _matmul(ctx, node, codes, (steps[0], steps[1]))


def _key(sibling: _Sibling) -> Hashable:
    """Equal for contractions that can be joined."""
    node, weights = sibling.node, sibling.weights
    attributes = tuple((name, str(node.attributes[name].value)) for name in sorted(node.attributes))
    if node.op_type == "Conv":
        reduced: tuple[int, ...] = weights.shape[1:]
    else:
        reduced = (weights.shape[1 - _weights_axis(node)],)
    return (
        node.op_type,
        id(node.inputs[0]),
        attributes,
        weights.dtype.str,
        reduced,
        None if sibling.bias is None else sibling.bias.dtype.str,
        None if sibling.steps is None else (weights.dtype.name, sibling.steps[0].dtype.str),
    )


def _pointless(siblings: list[_Sibling]) -> Refused | None:
    sizes = [sibling.channels for sibling in siblings]
    if not min(sizes):
        return Refused(reason="one of them has no channels")
    if max(sizes) > MAX_CHANNELS:
        return Refused(reason=f"one of {max(sizes)} channels fills the machine by itself")
    if max(sizes) > MAX_RATIO * min(sizes):
        return Refused(reason=f"{min(sizes)} beside {max(sizes)} channels: only splitting costs")
    epilogues = [name for sibling in siblings if (name := _epilogue(sibling)) is not None]
    if epilogues:
        return Refused(reason=f"{epilogues[0]} is an epilogue, which a Split would part from it")
    return None


def _epilogue(sibling: _Sibling) -> str | None:
    """An elementwise operator that could be computed with the contraction."""
    for reader, _ in sibling.end.outputs[0].uses():
        if not reader.domain and reader.op_type in _EPILOGUES:
            return reader.op_type
    return None


def _fuse(ctx: PassContext, siblings: list[_Sibling]) -> None:
    first = siblings[0].node
    label = node_label(first)
    refused = _pointless(siblings)
    if refused is not None:
        ctx.refuse(label, refused)
        return
    channels = [sibling.channels for sibling in siblings]
    inputs = [first.inputs[0], _joined_weights(ctx, siblings)]
    biases = [sibling.bias for sibling in siblings if sibling.bias is not None]
    bias = None
    if biases:
        bias = ctx.new_constant(np.concatenate(biases), f"{first.name}/bias")
    if bias is not None and first.op_type != "MatMul":
        inputs.append(bias)
    node = ctx.new_node(first.op_type, inputs, first.attributes, before=first)
    result = node.outputs[0]
    if bias is not None and first.op_type == "MatMul":
        result = ctx.new_node("Add", [result, bias], before=first).outputs[0]
    sizes = ctx.new_constant(np.asarray(channels, np.int64), f"{first.name}/channels")
    split = ctx.new_node(
        "Split",
        [result, sizes],
        {"axis": 1 if first.op_type == "Conv" else -1},
        before=first,
        num_outputs=len(siblings),
    )
    for sibling, part in zip(siblings, split.outputs, strict=True):
        ctx.adopt(sibling.end.outputs[0], part)
        ctx.remove(dict.fromkeys([sibling.end, sibling.node]))
    ctx.did(label, f"{len(siblings)} of {first.op_type} joined: {' + '.join(map(str, channels))}")


def _joined_weights(ctx: PassContext, siblings: list[_Sibling]) -> ir.Value:
    """The weights beside each other, dequantised where they were."""
    first = siblings[0].node
    parts = [sibling.weights for sibling in siblings]
    joined = np.concatenate(parts, axis=_weights_axis(first))
    weights = ctx.new_constant(joined, f"{first.name}/weights")
    steps = [sibling.steps for sibling in siblings if sibling.steps is not None]
    if not steps:
        return weights
    scale, zero = (np.concatenate(each) for each in zip(*steps, strict=True))
    inputs = [
        weights,
        ctx.new_constant(scale, f"{first.name}/scales"),
        ctx.new_constant(zero, f"{first.name}/zeros"),
    ]
    return ctx.new_node("DequantizeLinear", inputs, {"axis": 1}, before=first).outputs[0]


def _weights_axis(node: ir.Node) -> int:
    """The axis of the weights that runs over output channels."""
    if node.op_type == "Conv":
        return 0
    return 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1
