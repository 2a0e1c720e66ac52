"""Put quantisers into a model: as QuantizeLinear and DequantizeLinear, or with run-time parameters.

    conv(x, w, b)  ->  conv(DQ(Q(x)), DQ(w8), DQ(b32))            insert_qdq (float8: b stays)
    matmul(x, w)   ->  float(MatMulInteger(x8, w8)) * s_x * s_w    insert_dynamic
    conv(x, w, b)  ->  conv(clip(round(x / s?), low?, high?) * s?, w?, b?)    insert_simulation
Guarantees: only the named readers read the quantised value; an activation function goes where the
saturation of the quantiser behind it does the same.
Not here: scales (compress).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import Array, PassContext, attribute, operand

SIMULATED = ("scale", "low", "high")  # inputs of a simulated quantiser


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """``real = (integer - zero) * scale``; integers are int8, uint8, int32, or float8 numbers.

    Attributes:
        scale: float32; a scalar, or one number for each index of ``axis``, or for each block of it.
        zero: of the type of the integers; shaped as ``scale``.
        axis: None for one scale.
        block: elements of ``axis`` that share a scale; 0: the axis has one an index.
    """

    scale: Array
    zero: Array
    axis: int | None = None
    block: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayer:
    """A node with constant weights.

    Attributes:
        node: its name.
        weights: integers, as ``params`` says; in the shape of the float weights.
        params: of the weights.
        bias: int32 with a scale, float32 without; None where the node's own is kept.
        bias_scale: float32; None for a bias in float.
    """

    node: str
    weights: Array
    params: Affine
    bias: Array | None = None
    bias_scale: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to quantise.

    Attributes:
        points: parameters of each quantised activation by value.
        readers: nodes that read the quantised value, by value.
        layers: nodes whose weights are quantised.
        dynamic: parameters of activations are found at run time.
    """

    points: Mapping[str, Affine] = field(default_factory=dict)
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layers: tuple[QuantizedLayer, ...] = ()
    dynamic: bool = False


def insert_qdq(ctx: PassContext, recipe: Recipe) -> None:
    """Quantises activations of ``recipe.points`` and weights of ``recipe.layers``."""
    nodes, values = _named(ctx.model)
    for name, params in recipe.points.items():
        _quantize(ctx, values[name], params, [nodes[reader] for reader in recipe.readers[name]])
    for layer in recipe.layers:
        node = nodes[layer.node]
        params = layer.params
        hint = node.inputs[1].name or layer.node  # type: ignore[union-attr]
        weights = _dequantized(ctx, node, layer.weights, params, hint)
        node.replace_input_with(1, weights)
        if layer.bias is not None:
            set_input(node, 2, _bias(ctx, node, layer.bias, layer.bias_scale))


def _bias(ctx: PassContext, node: ir.Node, bias: Array, scale: Array | None) -> ir.Value:
    """A bias of integers with a scale, or of floats."""
    old = operand(node, 2)
    hint = (old.name if old is not None else None) or f"{node.name}/bias"
    if scale is None:
        return ctx.new_constant(bias, hint)
    zero = np.zeros(scale.shape, np.int32)
    params = Affine(scale=scale, zero=zero, axis=0 if scale.ndim else None)
    return _dequantized(ctx, node, bias, params, hint)


def set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    """Lets a node read a value at a position that may have been absent."""
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _dequantized(
    ctx: PassContext, node: ir.Node, integers: Array, params: Affine, hint: str
) -> ir.Value:
    attributes: dict[str, int] = {} if params.axis is None else {"axis": params.axis}
    if params.block:
        attributes["block_size"] = params.block
    inputs = [
        ctx.new_constant(integers, f"{hint}_quantized"),
        ctx.new_constant(params.scale, f"{hint}_scale"),
    ]
    if params.zero.any() or integers.dtype != np.int32:
        inputs.append(ctx.new_constant(params.zero, f"{hint}_zero_point"))
    return ctx.new_node("DequantizeLinear", inputs, attributes, before=node).outputs[0]


def _quantize(ctx: PassContext, value: ir.Value, params: Affine, readers: list[ir.Node]) -> None:
    """DQ(Q(value)) for some readers."""
    hint = value.name or "value"
    scale = ctx.new_constant(params.scale, f"{hint}_scale")
    zero = ctx.new_constant(params.zero, f"{hint}_zero_point")
    source = _without_saturation(ctx, value, params, readers)
    first = readers[0]
    quantized = ctx.new_node("QuantizeLinear", [source, scale, zero], before=first)
    restored = ctx.new_node(
        "DequantizeLinear", [quantized.outputs[0], scale, zero], before=first
    ).outputs[0]
    _redirect(value, restored, readers)


def _redirect(value: ir.Value, new: ir.Value, readers: list[ir.Node]) -> None:
    for reader in readers:
        for index, read in enumerate(reader.inputs):
            if read is value and not (index == 1 and value.is_initializer()):
                reader.replace_input_with(index, new)


def _without_saturation(
    ctx: PassContext, value: ir.Value, params: Affine, readers: list[ir.Node]
) -> ir.Value:
    """The value before a Relu or Clip that the quantiser's saturation does as well."""
    node = value.producer()
    if node is None or node.op_type not in ("Relu", "Clip") or value.is_graph_output():
        return value
    if {reader for reader, _ in value.uses()} - set(readers) or params.scale.ndim:
        return value
    if params.zero.dtype.kind not in "iu":  # float8 has numbers below 0 as well
        return value
    low, high = 0.0, np.inf
    if node.op_type == "Clip":
        bounds = [ctx.scalar(operand(node, index)) for index in (1, 2)]
        given = [operand(node, index) is not None for index in (1, 2)]
        if any(has and bound is None for has, bound in zip(given, bounds, strict=True)):
            return value
        low = -np.inf if bounds[0] is None else bounds[0]
        high = np.inf if bounds[1] is None else bounds[1]
    limits = np.iinfo(params.zero.dtype)
    scale, zero = np.float32(params.scale), int(params.zero)
    if np.rint(np.float32(low) / scale) + zero > limits.min:
        return value
    if np.rint(np.float32(high) / scale) + zero < limits.max:
        return value
    ctx.did(node.name or "", "left out: the quantiser behind it saturates there")
    source = node.inputs[0]
    return source if source is not None else value


# --- scales found at run time ---------------------------------------------------------------------


def insert_dynamic(ctx: PassContext, recipe: Recipe) -> None:
    """Products of integers whose activations are quantised by the range that they have."""
    nodes, _ = _named(ctx.model)
    shared: dict[ir.Value, ir.Node] = {}
    for layer in recipe.layers:
        node = nodes[layer.node]
        x = node.inputs[0]
        if x is None:
            continue
        if x not in shared:
            shared[x] = ctx.new_node("DynamicQuantizeLinear", [x], before=node, num_outputs=3)
        integers, scale, zero = shared[x].outputs
        _replace_product(ctx, node, layer, integers, scale, zero)


def _replace_product(
    ctx: PassContext,
    node: ir.Node,
    layer: QuantizedLayer,
    integers: ir.Value,
    scale: ir.Value,
    zero: ir.Value,
) -> None:
    transposed = node.op_type == "Gemm" and bool(attribute(node, "transB", 0))
    weights = np.ascontiguousarray(layer.weights.T) if transposed else layer.weights
    hint = node.inputs[1].name or layer.node  # type: ignore[union-attr]
    matrix = ctx.new_constant(weights, f"{hint}_quantized")
    no_shift = ctx.new_constant(np.zeros((), weights.dtype), f"{hint}_zero_point")
    steps = ctx.new_constant(layer.params.scale, f"{hint}_scale")
    sums = ctx.new_node("MatMulInteger", [integers, matrix, zero, no_shift], before=node)
    floats = ctx.new_node("Cast", [sums.outputs[0]], {"to": ir.DataType.FLOAT.value}, before=node)
    both = ctx.new_node("Mul", [scale, steps], before=node)
    last = ctx.new_node("Mul", [floats.outputs[0], both.outputs[0]], before=node)
    bias = operand(node, 2)
    if bias is not None:
        last = ctx.new_node("Add", [last.outputs[0], bias], before=node)
    ctx.adopt(node.outputs[0], last.outputs[0])
    ctx.remove([node])


# --- parameters as inputs -------------------------------------------------------------------------


def insert_simulation(ctx: PassContext, recipe: Recipe) -> None:
    """Quantisers and weights whose parameters are inputs.

    Each reader of a value has a quantiser of its own, ``{reader}<{value}:{parameter}``; weights are
    ``{layer}:weights`` and ``{layer}:bias``, of the shapes that the recipe's layers have.
    """
    nodes, values = _named(ctx.model)
    for name, readers in recipe.readers.items():
        for reader in readers:
            node = nodes[reader]
            inputs = [_new_input(ctx, f"{reader}<{name}:{part}") for part in SIMULATED]
            scale, low, high = inputs
            steps = ctx.new_node("Div", [values[name], scale], before=node).outputs[0]
            whole = ctx.new_node("Round", [steps], before=node).outputs[0]
            clipped = ctx.new_node("Clip", [whole, low, high], before=node).outputs[0]
            restored = ctx.new_node("Mul", [clipped, scale], before=node).outputs[0]
            _redirect(values[name], restored, [node])
    for layer in recipe.layers:
        node = nodes[layer.node]
        weights = _new_input(ctx, f"{layer.node}:weights", layer.weights.shape)
        node.replace_input_with(1, weights)
        if layer.bias is not None:
            set_input(node, 2, _new_input(ctx, f"{layer.node}:bias", layer.bias.shape))


def _new_input(ctx: PassContext, name: str, shape: Sequence[int] = ()) -> ir.Value:
    kind = ir.TensorType(ir.DataType.FLOAT)
    value = ir.Value(name=name, type=kind, shape=ir.Shape(shape))
    ctx.model.graph.inputs.append(value)
    return value


def _named(model: ir.Model) -> tuple[dict[str, ir.Node], dict[str, ir.Value]]:
    nodes = {node.name or "": node for node in model.graph}
    values = {value.name or "": value for value in model.graph.inputs}
    for node in model.graph:
        values.update({value.name or "": value for value in node.outputs})
    return nodes, values
