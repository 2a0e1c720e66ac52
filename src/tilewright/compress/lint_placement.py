"""Places of Q and DQ that keep operators from being one integer kernel, with their price.

    Conv -> Q -> DQ -> Relu -> Q        the Q in between: Relu is a kernel of its own
    Add(Conv, Conv) -> Q                one sum too many in float32
    Conv(float, DQ(weights))            the product runs in float32 although weights are integers
    Conv -> MaxPool -> Q                float32 goes through memory instead of int8
    DQ -> Q                             integers become other integers, or the same
Input -> Output: ``QuantView``, ``Prices`` -> ``Finding``s, a rule a function.
Requires: a graph of Q and DQ; where no operator reads integers, weights are meant to be small only.
Not here: faults in the numbers (lint_numbers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.compress.finding import Finding
from tilewright.compress.quant_view import (
    Contraction,
    QuantView,
    is_dequantize,
    is_quantize,
    label,
    operand,
)
from tilewright.core.errors import BadOption
from tilewright.graph.view import NodeView
from tilewright.hw.roofline import peak_flops
from tilewright.runtime.explain.floors import Floors

_ACTIVATIONS = frozenset(
    "Relu LeakyRelu Clip PRelu Sigmoid HardSigmoid HardSwish Tanh Gelu Elu Selu Swish".split()
)
_KEEP_SCALE = frozenset("MaxPool AveragePool GlobalAveragePool Concat Resize Pad".split())
_FLOAT_BYTES, _CODE_BYTES = 4, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What moves and products cost.

    Attributes:
        elements: number of elements of values by name, where it is known.
        floors: of the device that the model is to run on.
    """

    elements: Mapping[str, int]
    floors: Floors

    def moved(self, name: str | None, bytes_each: int) -> float | None:
        """Microseconds for a value to be written and read once with so many bytes an element."""
        count = self.elements.get(name or "")
        return None if count is None else self.floors.move_us(count * bytes_each, written=True)

    def in_float(self, name: str | None, depth: int) -> float | None:
        """Microseconds that sums of ``depth`` products take longer in float32 than in int8."""
        count = self.elements.get(name or "")
        if count is None:
            return None
        try:
            slow, fast = (peak_flops(self.floors.roofs, kind) for kind in ("float32", "int8"))
        except BadOption:
            return None
        return max(0.0, 2.0 * count * depth * (1 / slow - 1 / fast) * 1e6)


def q_before_activation(view: QuantView, prices: Prices) -> Iterator[Finding]:
    """A sum that is quantised before its activation, and once more after it."""
    for one in _in_integers(view):
        quantize = _only_reader(view, one.node.outputs[0])
        dequantize = _only_reader(view, quantize.outputs[0]) if quantize else None
        activation = _only_reader(view, dequantize.outputs[0]) if dequantize else None
        if quantize is None or dequantize is None or activation is None:
            continue
        if not is_quantize(quantize) or not is_dequantize(dequantize):
            continue
        if activation.op_type in _ACTIVATIONS and _all_quantised(view, activation.outputs[0]):
            yield Finding(
                rule="q-before-activation",
                severity="warning",
                node=label(quantize),
                message=f"stands between {label(one.node)} and {label(activation)}, which could "
                "be one kernel; the activation rounds twice",
                remedy=f"remove it and its DequantizeLinear: quantise after {activation.name}",
                price_us=prices.moved(one.node.outputs[0], _CODE_BYTES),
            )


def residual_in_float(view: QuantView, prices: Prices) -> Iterator[Finding]:
    """An Add whose result is quantised and of whose operands more than one is float32."""
    sums = {one.node.outputs[0] for one in _in_integers(view)}
    for node in view.graph.nodes:
        if node.op_type != "Add" or node.domain or not _ends_quantised(view, node.outputs[0]):
            continue
        names = [name for name in node.inputs if name is not None and view.constant(name) is None]
        floats = [name for name in names if view.coded(name) is None]
        if len(floats) < 2 or not sums & set(floats):
            continue
        other = next((name for name in floats[::-1] if name in sums), floats[-1])
        yield Finding(
            rule="residual-in-float",
            severity="warning",
            node=label(node),
            message=f"adds {' and '.join(floats)} in float32: only one of them can be the sum "
            "that the kernel still holds",
            remedy=f"put QuantizeLinear and DequantizeLinear on {other}",
            price_us=prices.moved(other, _FLOAT_BYTES - _CODE_BYTES),
        )


def float_contraction(view: QuantView, prices: Prices) -> Iterator[Finding]:
    """A product with integer weights whose data is float32, among others whose data is not."""
    if not any(True for _ in _in_integers(view)):
        return
    for one in view.contractions():
        codes = view.constant(one.weight.codes) if one.weight is not None else None
        if one.weight is None or one.data is not None or one.float_data is None or codes is None:
            continue
        channels = max(1, codes.shape[-1] if one.node.op_type == "MatMul" else codes.shape[0])
        yield Finding(
            rule="float-contraction",
            severity="warning",
            node=label(one.node),
            message=f"its weights are integers but {one.float_data} is float32: the product "
            "cannot run in integers",
            remedy=f"put QuantizeLinear and DequantizeLinear on {one.float_data}, or leave the "
            "weights as floats",
            price_us=prices.in_float(one.node.outputs[0], codes.size // channels),
        )


def float_gap(view: QuantView, prices: Prices) -> Iterator[Finding]:
    """A sum that goes through memory as float32 to an operator that would keep its integers."""
    for one in _in_integers(view):
        name = one.node.outputs[0]
        for reader in view.readers.get(name or "", ()):
            result = reader.outputs[0]
            if reader.op_type in _KEEP_SCALE and _ends_quantised(view, result):
                yield Finding(
                    rule="float-gap",
                    severity="warning",
                    node=label(reader),
                    message=f"reads {name} as float32 between two integer operators",
                    remedy=f"put QuantizeLinear and DequantizeLinear on {name}",
                    price_us=prices.moved(name, _FLOAT_BYTES - _CODE_BYTES),
                )


def requantised(view: QuantView, prices: Prices) -> Iterator[Finding]:
    """Integers that become floats and integers again, with nothing in between."""
    for node in view.graph.nodes:
        if not is_quantize(node):
            continue
        coded = view.coded(operand(node, 0))
        if coded is None or coded.moves or view.constant(coded.codes) is not None:
            continue
        pairs = [(operand(node, index), operand(coded.node, index)) for index in (1, 2)]
        same = all(_equal(view, own, other) for own, other in pairs)
        yield Finding(
            rule="requantised",
            severity="warning",
            node=label(node),
            message=f"quantises what {label(coded.node)} has just read"
            + (" with the same scale: it does nothing" if same else " with another scale"),
            remedy="remove both" if same else "give both sides one scale, and remove both",
            price_us=prices.moved(node.outputs[0], _CODE_BYTES),
        )


def _equal(view: QuantView, name: str | None, other: str | None) -> bool:
    if name == other:
        return True
    one, two = view.constant(name), view.constant(other)
    return one is not None and two is not None and one.tobytes() == two.tobytes()


def _in_integers(view: QuantView) -> Iterator[Contraction]:
    """Products of floats that are read from integers, which can be integer kernels."""
    for one in view.contractions():
        if one.float_data is not None and one.data is not None and one.weight is not None:
            yield one


def _only_reader(view: QuantView, name: str | None) -> NodeView | None:
    if name is None or name in view.outputs:
        return None
    readers = view.readers.get(name, [])
    return readers[0] if len(readers) == 1 else None


def _all_quantised(view: QuantView, name: str | None) -> bool:
    readers = view.readers.get(name or "", [])
    return bool(readers) and name not in view.outputs and all(map(is_quantize, readers))


def _ends_quantised(view: QuantView, name: str | None) -> bool:
    """Quantised, perhaps after an activation."""
    reader = _only_reader(view, name)
    if reader is not None and reader.op_type in _ACTIVATIONS:
        name = reader.outputs[0]
    return _all_quantised(view, name)
