"""Move integers rather than the floats that they stand for.

    Quantize(Dequantize(q))            ->  q
    Quantize(Reshape(Dequantize(q)))   ->  Reshape(q)       (all that moves, repeats or chooses)
    Quantize(Concat(Dequantize(q)..))  ->  Concat(q..)
Requires: the same per-tensor scale, zero point and type on both sides; nobody else reads in
    between.
Guarantees: every integer is kept: a multiple of a scale, divided by it, rounds to itself, and
    larger numbers have no smaller integers.
Not here: padding and interpolation, which make new numbers.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, attribute, enclosed
from tilewright.graph.passes.match import maker
from tilewright.graph.passes.quantization import Parameters, parameters_of

_MOVING = frozenset(
    """Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Gather Expand Tile DepthToSpace
    SpaceToDepth MaxPool Concat Resize""".split()
)


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    direct = maker(node.inputs[0], "DequantizeLinear", graph=node.graph)
    if direct is not None:
        return _cancel(ctx, node, direct)
    move = maker(node.inputs[0], *_MOVING, graph=node.graph)
    if move is None or (move.op_type == "Resize" and not _copies(move)):
        return None
    count = len(move.inputs) if move.op_type == "Concat" else 1
    sources = [maker(value, "DequantizeLinear", graph=node.graph) for value in move.inputs[:count]]
    if len(move.outputs) > 1 and any(value.uses() for value in move.outputs[1:]):
        return None
    if not all(sources):
        return None
    known = _all_same(ctx, node, [source for source in sources if source is not None])
    if isinstance(known, Refused):
        return known
    refused = enclosed([move], node)
    if refused is not None:
        return refused
    inputs = [source.inputs[0] for source in sources if source is not None]
    inputs += move.inputs[count:]
    made = ctx.new_node(move.op_type, inputs, dict(move.attributes), before=node)
    ctx.adopt(node.outputs[0], made.outputs[0])
    ctx.remove([node])
    return f"{move.op_type} of integers"


def _cancel(ctx: PassContext, node: ir.Node, source: ir.Node) -> Outcome:
    known = _all_same(ctx, node, [source])
    if isinstance(known, Refused):
        return known
    if source.inputs[0] is None:
        return None
    ctx.bypass(node, source.inputs[0])
    return "dequantised and quantised alike: the integers as they are"


def _all_same(ctx: PassContext, node: ir.Node, sources: list[ir.Node]) -> Parameters | Refused:
    own = parameters_of(ctx, node)
    if isinstance(own, Refused):
        return own
    for source in sources:
        given = parameters_of(ctx, source)
        if isinstance(given, Refused):
            return given
        if not given.same_as(own):
            return Refused(reason="scale, zero point or type change", nodes=(source.name or "",))
    return own


def _copies(resize: ir.Node) -> bool:
    """Nearest neighbours are copies, as long as none lies outside of the image."""
    return bool(
        attribute(resize, "mode", "nearest") == "nearest"
        and attribute(resize, "coordinate_transformation_mode", "half_pixel")
        != "tf_crop_and_resize"
    )


integer_moves = Pass(name="integer_moves", run=lambda ctx: ctx.each(("QuantizeLinear",), _attempt))
