"""Pixels that a convolution with steps reads, side by side.

Input -> Output: fused items -> the same, some 1x1 convolutions with steps as two kernels
    y[n, m, h, w] = sum_c x[n, c, 2 h, 2 w] * k[m, c]
    ->  p[n, c, h, w] = x[n, c, 2 h, 2 w];  y[n, m, h, w] = sum_c p[n, c, h, w] * k[m, c]
Why: where a block of channels is half a line of the cache, every other half is read for nothing,
again for each few filters.
Guarantees: values are unchanged; only convolutions with many filters, which read all pixels often.
Not here: layouts (lower.layout), which come after.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    load,
    products,
    transform,
    walk,
)
from tilewright.lower.context import Item, View

_LINE_BYTES = 64
_MANY_FILTERS = 256


def pixels_side_by_side(
    items: Sequence[Item], constants: Collection[str], block: int, log: DecisionLog
) -> list[Item]:
    """Copies the pixels of every convolution that gains by it.

    Args:
        block: channels that will lie beside each other.
    """
    if block * FLOAT32.storage_bytes >= _LINE_BYTES:
        return list(items)
    result: list[Item] = []
    for item in items:
        data = None if isinstance(item, View) else _strided(item, constants)
        if data is None or isinstance(item, View):
            result.append(item)
            continue
        log.add("layout", "+".join(item.sources), "pixels copied side by side before the sum")
        result.extend(_in_two(item, data))
    return result


def _strided(kernel: Kernel, constants: Collection[str]) -> Load | None:
    """The load of pixels with steps of a 1x1 convolution with many constant filters."""
    if not kernel.is_pure or len(kernel.stages[0].axes) != 4:
        return None
    n, m, h, w = kernel.stages[0].axes
    sums = [node for node in walk(*kernel.roots) if isinstance(node, Reduce)]
    if len(sums) != 1 or len(sums[0].axes) != 1 or sums[0].dtype is not FLOAT32:
        return None
    factors = products(sums[0].body)
    if len(factors) != 1 or not (m.extent.is_const and m.extent.const >= _MANY_FILTERS):
        return None
    loads = [part for part in factors[0].args if isinstance(part, Load)]
    varying = [part for part in loads if part.buffer not in constants]
    if len(loads) != 2 or len(varying) != 1 or len(varying[0].index) != 4:
        return None
    data = varying[0]
    (c,) = sums[0].axes
    if data.index[:2] != (n.var, c.var) or not c.extent.is_const:
        return None
    forms = [affine(place) for place in data.index[2:]]
    names = [(h.name,), (w.name,)]
    if any(form.rest for form in forms) or [tuple(form.terms) for form in forms] != names:
        return None
    steps = forms[1].terms[w.name]
    return data if steps.is_const and steps.const > 1 else None


def _in_two(kernel: Kernel, data: Load) -> tuple[Kernel, Kernel]:
    n, _, h, w = kernel.stages[0].axes
    (total,) = (node for node in walk(*kernel.roots) if isinstance(node, Reduce))
    (c,) = total.axes
    axes = (n, Axis(c.name, c.extent), h, w)
    index = tuple(axis.var for axis in axes)
    source = next(buffer for buffer in kernel.inputs if buffer.name == data.buffer)
    shape: tuple[Dim, ...] = tuple(axis.extent for axis in axes)
    pixels = Buffer(f"{kernel.outputs[0].name}/pixels", FLOAT32, shape)
    copy = Kernel(
        name=f"{kernel.name}: pixels",
        inputs=(source,),
        outputs=(pixels,),
        stages=(Stage(axes, (Store(pixels.name, index, data),)),),
        sources=kernel.sources,
    )

    def rule(node: Expr) -> Expr | None:
        return load(pixels.name, FLOAT32, index) if node is data else None

    stage = kernel.stages[0]
    stores = tuple(store.mapped(lambda root: transform(root, rule)) for store in stage.stores)
    read = {
        node.buffer for store in stores for node in walk(*store.roots) if isinstance(node, Load)
    }
    inputs = (*(buffer for buffer in kernel.inputs if buffer.name in read), pixels)
    return copy, replace(kernel, inputs=inputs, stages=(replace(stage, stores=stores),))
