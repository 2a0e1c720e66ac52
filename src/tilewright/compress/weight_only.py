"""Weights of few bits, activations in float: smaller models that compute the same to a few percent.

    MatMul(a, w)  ->  MatMul(a, DequantizeLinear(w', s, z))    a scale for each block of a column
Input -> Output: a model, perhaps data, and options -> ``Quantized``: ONNX that ONNX Runtime runs
too.
8 bits are symmetric (int8); 4 bits have a zero point a block (uint4).
Guarantees: deterministic; what stays in float has a reason among the decisions.
Not here: the integers of one product (block_rounding), products of integers (quantize), how such
weights are run (graph.passes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.block_rounding import rounded
from tilewright.compress.blocks import LEAST_BLOCK, block_of
from tilewright.compress.calibrate import Progress
from tilewright.compress.contract import check_quantized
from tilewright.compress.data import Batches, open_data
from tilewright.compress.gptq import squared_errors
from tilewright.compress.layers import Layer, Plan, find_layers
from tilewright.compress.moments import Moments, why_none
from tilewright.compress.options import all_quantized
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.quantized import Quantized
from tilewright.compress.walks import Walk, depth_of, walks
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.graph.insert_qdq import Affine, QuantizedLayer, Recipe
from tilewright.graph.quantizable import Quantizable, serialized
from tilewright.graph.view import GraphView
from tilewright.lower.families import LOWERINGS

Array = npt.NDArray[Any]

STAGE = "weight_only"
BLOCK = 32
_KINDS = ("int8", "int4")
_PRODUCTS = ("MatMul", "Gemm")
_SHARE_OF_8_BITS = 0.05  # of the weights of 4 bits, where a few small layers lose most


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallOptions:
    """How weights are written.

    Attributes:
        bits: 8 or 4.
        block: rows that share a scale; a layer whose rows are no whole blocks has smaller ones, or
            one a column.
        wide: names of nodes that get 8 bits; None: the last ones, with data those that lose most.
        exclude: names of nodes to leave in float.
        all_quantized: whether a layer with constant weights in float is an error.
    """

    bits: int
    block: int = BLOCK
    wide: frozenset[str] | None = None
    exclude: tuple[str, ...] = ()
    all_quantized: bool = False

    @staticmethod
    def of(
        *,
        weights: Any = "int8",
        block: Any = None,
        wide: Any = None,
        exclude: Any = None,
        require: Any = None,
    ) -> SmallOptions:
        """Validates options.

        Raises:
            BadOption: a value is unknown, or contradicts another.
        """
        bits = 8 if check.one_of("weights", weights, _KINDS) == "int8" else 4
        if wide is not None and bits == 8:
            raise BadOption("wide is given, but all weights get 8 bits", remedy="leave it out")
        rule = wide is None or (isinstance(wide, str) and wide in ("auto", "none"))
        names = frozenset() if rule else frozenset(check.names("wide", wide, '["head"]'))
        return SmallOptions(
            bits=bits,
            block=BLOCK if block is None else _block(block),
            wide=None if wide is None or wide == "auto" else names,
            exclude=tuple(check.names("exclude", exclude, '["head"]')),
            all_quantized=all_quantized(require),
        )


def _block(given: Any) -> int:
    size = check.whole("block", given, LEAST_BLOCK)
    if size & (size - 1):
        raise BadOption(f"block={size} is no power of two", remedy="use 32, 64 or 128")
    return size


def quantize_weights(
    model: Any,
    data: Any = None,
    *,
    preprocessing: Preprocessing | None = None,
    limit: Any = None,
    threads: int | None = None,
    progress: Any = None,
    **options: Any,
) -> Quantized:
    """Quantises the weights of matrix products; see ``tilewright.quantize``.

    Args:
        model: a path, the bytes of an ONNX file, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: to round with; None: to the nearest.
        preprocessing, limit, threads, progress: of the data.
        options: see ``SmallOptions.of``.

    Raises:
        InvalidModel, UnsupportedOp: the model cannot be read.
        BadOption: an option is unknown, or nothing can be quantised.
        BadData: data that tell nothing.
        ContractBreach: a layer with constant weights would stay in float.
    """
    chosen = SmallOptions.of(**options)
    limit = None if limit is None else check.whole("limit", limit, 1)
    progress = check.function("progress", progress)
    log = DecisionLog()
    if progress is not None:
        progress("import", 0, 0)
    loaded = Quantizable.load(model, log, known=lambda *op: op in LOWERINGS)
    graph = loaded.view()
    plan = _products(graph, chosen, loaded.name, log)
    choices = _choices(graph, plan, chosen, log)
    batches = None
    if data is not None:
        batches = open_data(data, graph.inputs, preprocessing=preprocessing, limit=limit)
    made, samples = _made(loaded, choices, batches, log, threads, progress)
    if chosen.bits == 4 and chosen.wide is None and batches is not None:
        made = _widened(made, log)
    recipe = Recipe(layers=tuple(one.written for one in made))
    emitted = serialized(loaded.quantized(recipe, log), loaded.infos())
    eight = sum(one.choice.bits == 8 for one in made) if chosen.bits == 4 else 0
    wide = f", {plural(eight, 'layer')} int8" if eight else ""
    return Quantized(
        model=emitted,
        decisions=tuple(log.entries),
        summary={
            "layers": len(made),
            "carriers": 0,
            "kept_in_float": [node for node, _, _ in plan.kept],
            "activations": "float",
            "weights": f"int{chosen.bits} in blocks of {chosen.block}{wide}",
            "calibration": "none" if batches is None else "second moments",
            "samples": samples,
            "size_bytes": len(emitted),
            "float_weight_bytes": sum(choice.layer.weights.nbytes for choice in choices),
        },
    )


# --- which products, and how ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """How one layer is written."""

    layer: Layer
    bits: int
    block: int

    @property
    def rows(self) -> Array:
        """Its weights, [depth, columns]."""
        return self.layer.weights.T if self.layer.transposed else self.layer.weights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """One layer as it is written, and its relative squared error."""

    choice: _Choice
    written: QuantizedLayer
    error: float


def _products(graph: GraphView, options: SmallOptions, file: str, log: DecisionLog) -> Plan:
    """Matrix products with constant weights; whatever else has some is told."""
    unknown = {*options.exclude, *(options.wide or ())} - {node.name for node in graph.nodes}
    if unknown:
        raise BadOption(
            f"exclude, wide: the model has no node {', '.join(sorted(unknown))}",
            file=file,
            remedy="name nodes as `tilewright explain` does; folded ones are gone",
        )
    found = find_layers(graph, exclude=options.exclude, carriers=False)
    others = [layer for layer in found.layers if layer.op_type not in _PRODUCTS]
    reason = "only matrix products widen weights"
    kept = (*found.kept, *((layer.node, layer.op_type, reason) for layer in others))
    for node, op_type, why in kept:
        log.add(STAGE, node, f"{op_type} kept in float", (("small weights", why),))
    plan = replace(found, layers=tuple(one for one in found.layers if one not in others), kept=kept)
    if options.all_quantized:
        check_quantized(plan, file)
    if not plan.layers:
        raise BadOption(
            "no product with constant float weights",
            file=file,
            remedy="give a model with MatMul or Gemm whose weights are float32",
        )
    return plan


def _choices(
    graph: GraphView, plan: Plan, options: SmallOptions, log: DecisionLog
) -> list[_Choice]:
    wide = options.wide or frozenset()
    if options.wide is None and options.bits == 4:
        wide = frozenset(_last(graph, plan))
        if len(wide) == len(plan.layers):
            wide = frozenset()
        for node in sorted(wide):
            log.add(
                STAGE, node, "8 bits", (("4 bits", "no other product makes up for its errors"),)
            )
    return [
        _Choice(
            layer=layer,
            bits=8 if layer.node in wide else options.bits,
            block=block_of(depth_of(layer), options.block),
        )
        for layer in plan.layers
    ]


def _last(graph: GraphView, plan: Plan) -> Iterator[str]:
    """Products whose results no other product reads, directly or through other nodes."""
    layers = {layer.node for layer in plan.layers}
    read: set[str] = set()  # by a product, sooner or later
    for node in reversed(graph.nodes):
        goes_on = any(name in read for name in node.outputs)
        if node.name in layers and not goes_on:
            yield node.name
        if goes_on or node.name in layers:
            read.update(name for name in node.inputs if name)


# --- integers -------------------------------------------------------------------------------------


def _made(
    model: Quantizable,
    choices: Sequence[_Choice],
    batches: Batches | None,
    log: DecisionLog,
    threads: int | None,
    progress: Progress | None,
) -> tuple[tuple[_Made, ...], int]:
    """All layers, and the number of samples."""
    by_node = {choice.layer.node: choice for choice in choices}
    layers = [choice.layer for choice in choices]
    made: dict[str, _Made] = {}
    samples = 0
    steps: Iterable[Walk] = [Walk(layers=layers, moments={}, samples=0)]
    if batches is not None:
        steps = walks(model, layers, batches, threads=threads, progress=progress)
    for walk in steps:
        samples = walk.samples
        for layer in walk.layers:
            if progress is not None:
                progress("weights", len(made), len(choices))
            moments = walk.moments.get(layer.source)
            made[layer.node] = _written(by_node[layer.node], moments, log)
    if batches is not None:
        log.add("calibrate", batches.name, plural(samples, "sample"))
    return tuple(made[layer.node] for layer in layers), samples


def _widened(made: Sequence[_Made], log: DecisionLog) -> tuple[_Made, ...]:
    """Gives 8 bits to the layers with the greatest error for their size, while these are few."""
    narrow = [one for one in made if one.choice.bits == 4]
    left = _SHARE_OF_8_BITS * sum(one.choice.layer.weights.size for one in narrow)
    chosen = {}
    for one in sorted(narrow, key=lambda one: -one.error / one.choice.layer.weights.size):
        left -= one.choice.layer.weights.size
        if left < 0:
            break
        node = one.choice.layer.node
        reason = f"relative squared error of results {one.error:.2e}, for few weights"
        log.add(STAGE, node, "8 bits", (("4 bits", reason),))
        chosen[node] = _written(replace(one.choice, bits=8), None, log)
    return tuple(chosen.get(one.choice.layer.node, one) for one in made)


def _written(choice: _Choice, moments: Moments | None, log: DecisionLog) -> _Made:
    layer, rows = choice.layer, choice.rows
    gram = None
    if moments is not None:
        if (reason := why_none(moments)) is None:
            gram = moments.gram(centred=False)
        else:
            log.add(STAGE, layer.node, "rounded to the nearest", (("gptq", reason),))
    grid, codes = rounded(rows, choice.block, choice.bits, gram)
    error = _error(choice, grid.floats(codes) - rows, gram, log)
    integers = codes.astype(grid.dtype)
    scale, zero, axis = grid.scale, grid.zero.astype(grid.dtype), 0
    if layer.transposed:
        integers, scale, zero = (np.ascontiguousarray(part.T) for part in (integers, scale, zero))
        axis = 1
    params = Affine(scale=scale, zero=zero, axis=axis, block=choice.block)
    written = QuantizedLayer(node=layer.node, weights=integers, params=params)
    return _Made(choice=choice, written=written, error=error)


def _error(choice: _Choice, off: Array, gram: Array | None, log: DecisionLog) -> float:
    """Of the results, and records it (of the weights where it is not known what they meet)."""
    weigh = np.eye(len(off), dtype=np.float32)[None] if gram is None else gram
    lost, power = (
        float(squared_errors(part[None], weigh).sum(dtype=np.float64))
        for part in (off, choice.rows)
    )
    error, of = lost / power if power else 0.0, "weights" if gram is None else "results"
    note = f"{choice.bits} bits, a scale for {choice.block} rows"
    log.add(STAGE, choice.layer.node, f"{note}, relative squared error of {of} {error:.2e}")
    return error
