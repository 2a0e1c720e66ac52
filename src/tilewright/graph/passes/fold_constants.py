"""Compute what does not depend on the inputs.

    Add(c1, c2)            ->  initialiser
    Gather(Shape(x), 1)    ->  initialiser, where that size is static
Requires: deterministic operators without sub-graphs whose inputs are constants, or integers that
    shape inference knows in full.
Guarantees: values in the operator's own types, as the reference computes them; what raises, turns
    finite numbers into NaN or Inf that reach a result or a computed value, grows by more than 16 MB
    or takes more than 2**33 multiplications is left for run time.
Not here: DequantizeLinear of weights, which integer kernels want as they are.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import BOOL, from_numpy
from tilewright.core.errors import UserError
from tilewright.graph.build_view import view_node
from tilewright.graph.info import TensorInfo
from tilewright.graph.passes.base import RANDOM, Array, Pass, PassContext, Refused, attribute
from tilewright.graph.passes.match import all_finite
from tilewright.graph.walk import node_label, subgraphs
from tilewright.runtime import reference

MAX_GROWTH_BYTES = 16 * 2**20
MAX_MULTIPLICATIONS = 2**33  # a few seconds of NumPy
# Their results can be far larger than their inputs.
_EXPANDING = frozenset(
    "ConstantOfShape EyeLike Expand Tile Range Resize Pad OneHot CenterCropPad "
    "HannWindow HammingWindow BlackmanWindow MelWeightMatrix".split()
)
_INFINITE = Refused(reason="finite numbers become NaN or Inf, which is left for run time")
_KEPT_QUANTISED = Refused(reason="quantised weights stay quantised for integer kernels")


def _run(ctx: PassContext) -> None:
    ctx.info(fresh=True)
    passing: dict[int, Array] = {}  # by id of a value: what has become NaN or Inf somewhere
    waiting: list[ir.Node] = []  # that compute it
    for graph in ctx.graphs():
        for node in list(graph):
            if node.graph is not graph or (node.op_type == "Identity" and _returns(ctx, node)):
                continue
            found = _evaluate(ctx, node, passing)
            if found is None:
                found = _known_integers(ctx, node)
            if found is _INFINITE:
                waiting.append(node)
            elif isinstance(found, Refused):
                ctx.refuse(node_label(node), found)
            elif found is not None:
                _replace(ctx, node, found)
                sizes = ", ".join("x".join(map(str, array.shape)) or "scalar" for array in found)
                ctx.did(node_label(node), f"computed ahead ({sizes})")
    for node in reversed(waiting):
        if any(value.uses() or value.is_graph_output() for value in node.outputs):
            ctx.refuse(node_label(node), _INFINITE)
        else:
            ctx.remove([node])


fold_constants = Pass(name="fold_constants", run=_run)


def _returns(ctx: PassContext, node: ir.Node) -> bool:
    """A sub-graph returns a constant through an Identity of its own, which stays."""
    return node.graph is not ctx.model.graph and node.outputs[0].is_graph_output()


def _evaluate(
    ctx: PassContext, node: ir.Node, passing: dict[int, Array]
) -> list[Array] | Refused | None:
    if node.op_type in RANDOM or any(subgraphs(node)):
        return None
    inputs = [passing.get(id(value), ctx.constant(value)) for value in node.inputs]
    if any(
        array is None and value is not None
        for array, value in zip(inputs, node.inputs, strict=True)
    ):
        return None
    if node.op_type == "Dropout" or (not inputs and node.op_type != "Constant"):
        return None
    if node.op_type == "DequantizeLinear":
        return _KEPT_QUANTISED
    opset = node.version or 1
    if not reference.supported(node.domain, node.op_type, opset):
        return Refused(reason="the operator has no reference")
    refused = (
        _too_large(ctx, node, inputs)
        or _too_long(ctx, node, inputs)
        or _divides_by_zero(node, inputs)
    )
    if refused is not None:
        return refused
    plain = view_node(node, ctx.model.opset_imports)
    try:
        results = reference.evaluate(
            node.domain,
            node.op_type,
            inputs,
            plain.attributes,
            opset=opset,
            num_outputs=len(node.outputs),
        )
    except (reference.OperatorError, UserError) as error:
        return Refused(reason=f"it fails, which is left for run time: {error}")
    found = _checked(ctx, node, inputs, results)
    if isinstance(found, list) and _becomes_infinite(node, inputs, found, passing):
        passing.update((id(value), array) for value, array in zip(node.outputs, found, strict=True))
        return _INFINITE
    return found


def _becomes_infinite(
    node: ir.Node, inputs: list[Array | None], found: list[Array], passing: dict[int, Array]
) -> bool:
    """True for NaN and Inf that no constant of the model has."""
    if all(map(all_finite, found)):
        return False
    given = [array for array in inputs if array is not None]
    given += [v for v in view_node(node, {}).attributes.values() if isinstance(v, np.ndarray)]
    return any(id(value) in passing for value in node.inputs) or all(map(all_finite, given))


def _checked(
    ctx: PassContext, node: ir.Node, inputs: list[Array | None], results: reference.Outputs
) -> list[Array] | Refused | None:
    arrays: list[Array] = []
    for value, result in zip(node.outputs, results, strict=True):
        if not isinstance(result, np.ndarray):
            return None  # a sequence, an optional or a map
        info = ctx.tensor(value)
        if info is not None and from_numpy(result.dtype) is not info.dtype:
            return Refused(reason=f"the result is {result.dtype}, not {info.dtype}")
        arrays.append(result)
    if _growth(inputs, sum(array.nbytes for array in arrays)) > MAX_GROWTH_BYTES:
        return _growth_refused(sum(array.nbytes for array in arrays))
    return arrays


def _growth(inputs: list[Array | None], result_bytes: int) -> int:
    return result_bytes - sum(array.nbytes for array in inputs if array is not None)


def _growth_refused(size: int) -> Refused:
    return Refused(reason=f"the result of {size / 2**20:.0f} MB is larger than its inputs")


def _too_large(ctx: PassContext, node: ir.Node, inputs: list[Array | None]) -> Refused | None:
    total = 0
    for value in node.outputs:
        size = _size_bytes(ctx.tensor(value)) if value.name else 0
        if size is None:
            if node.op_type in _EXPANDING:
                return Refused(reason="the size of the result is not known")
            size = 0
        total += size
    return _growth_refused(total) if _growth(inputs, total) > MAX_GROWTH_BYTES else None


def _too_long(ctx: PassContext, node: ir.Node, inputs: list[Array | None]) -> Refused | None:
    shape = ctx.shape(node.outputs[0])
    given = [np.shape(array) if array is not None else () for array in inputs]
    if shape is None or not all(dim.is_const for dim in shape):
        return None
    count = _multiplications(node, given, math.prod(dim.const for dim in shape))
    if count <= MAX_MULTIPLICATIONS:
        return None
    return Refused(reason=f"it takes {count:.0e} multiplications, which is left for run time")


def _multiplications(node: ir.Node, given: list[tuple[int, ...]], result: int) -> int:
    """How many there are in products of tensors; other operators take a few an element."""
    op = node.op_type
    if op in ("MatMul", "MatMulInteger", "QLinearMatMul"):
        return result * (given[0][-1] if given[0] else 1)
    if op == "Gemm":
        return result * given[0][0 if attribute(node, "transA", 0) else 1]
    if op in ("Conv", "ConvInteger", "QLinearConv", "DeformConv"):
        return result * math.prod(given[3 if op == "QLinearConv" else 1][1:])
    if op == "ConvTranspose":
        return math.prod(given[0]) * math.prod(given[1][1:])
    if op == "Einsum":
        terms = str(attribute(node, "equation", "")).partition("->")[0].replace(" ", "").split(",")
        sizes: dict[str, int] = {}
        for term, shape in zip(terms, given, strict=False):
            letters = term.replace("...", "")
            own = shape if letters == term else ()  # hidden axes count in the result
            sizes.update({k: max(n, sizes.get(k, 1)) for k, n in zip(letters, own, strict=False)})
        return max(result, math.prod(sizes.values()))
    return result


def _size_bytes(info: TensorInfo | None) -> int | None:
    if info is None or info.shape is None or not all(dim.is_const for dim in info.shape):
        return None
    return math.prod(dim.const for dim in info.shape) * info.dtype.storage_bytes


def _divides_by_zero(node: ir.Node, inputs: list[Array | None]) -> Refused | None:
    if node.op_type not in ("Div", "Mod") or len(inputs) < 2:
        return None
    divisor = inputs[1]
    if divisor is None or divisor.dtype.kind not in "iu" or divisor.all():
        return None
    return Refused(reason="an integer is divided by zero, which is left for run time")


def _known_integers(ctx: PassContext, node: ir.Node) -> list[Array] | None:
    """Contents that shape inference knows, of nodes that check nothing at run time."""
    found = ctx.info().nodes.get(node.name or "")
    if found is None or found.bindings or node.op_type in RANDOM or any(subgraphs(node)):
        return None
    if all(value is None or ctx.constant(value) is not None for value in node.inputs):
        return None  # a refused fold
    arrays: list[Array] = []
    for value, info in zip(node.outputs, found.outputs, strict=False):
        known = info.content if info is not None else None
        if not value.name or known is None or known.dtype == object:
            return None
        if info is None or from_numpy(known.dtype) is not info.dtype:
            return None
        if not info.dtype.is_integer and info.dtype is not BOOL:
            return None
        arrays.append(known)
    return arrays if len(arrays) == len(node.outputs) else None


def _replace(ctx: PassContext, node: ir.Node, arrays: list[Array]) -> None:
    for value, array in zip(node.outputs, arrays, strict=True):
        if not value.name or not (value.uses() or value.is_graph_output()):
            continue
        # An array of its own: results may share memory with inputs or be read-only views.
        constant = ctx.new_constant(np.array(array), f"{value.name}/folded")
        if value.is_graph_output() and node.graph is not ctx.model.graph:
            inner = ctx.new_node("Identity", [constant], before=node)
            ctx.adopt(value, inner.outputs[0])
            continue
        ctx.adopt(value, constant)
    ctx.remove([node])
