"""Shape rules of convolution and pooling windows.

Input -> Output: data and kernel shapes -> result shape and the params ``kernel``, ``strides``,
``dilations``, ``pads`` (begins then ends, auto_pad resolved) and ``output_padding``.
Source of the formulas: ONNX Conv-22, ConvTranspose-22, AveragePool-22.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.dtypes import INT32, INT64
from tilewright.core.shape import Dim, product, shape_text
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, like, shape_rule

_ZERO = Dim.of(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A sliding window: one entry a spatial axis, ``pads`` begins then ends."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: Shape

    def params(self) -> dict[str, Shape]:
        """The node parameters."""
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
        }

    @property
    def reach(self) -> Shape:
        """The extent of a dilated window."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def window(ctx: RuleContext, spatial: Shape, kernel: Shape, *, crop: bool = False) -> Window:
    """Reads strides, dilations, pads and auto_pad for windows over these spatial sizes.

    Where strides exceed the kernel, SAME padding can come out negative: pooling then cuts the data
    (``crop``), as its specified formula says, while convolution pads nothing.
    """
    count = len(spatial)
    if len(kernel) != count:
        ctx.mismatch(f"a kernel {shape_text(kernel)} for {shape_text(spatial)}")
    strides = _listed(ctx, "strides", count, 1, least=1)
    dilations = _listed(ctx, "dilations", count, 1, least=1)
    auto = ctx.text("auto_pad", "NOTSET")
    pads = _listed(ctx, "pads", 2 * count, 0, least=0)
    if auto == "VALID":
        pads = (_ZERO,) * (2 * count)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        plain = Window(kernel=kernel, strides=strides, dilations=dilations, pads=pads)
        pads = _same_pads(ctx, spatial, plain, upper=auto == "SAME_UPPER", crop=crop)
    elif auto != "NOTSET":
        ctx.fail(f"auto_pad {auto!r} is unknown")
    return Window(kernel=kernel, strides=strides, dilations=dilations, pads=pads)


def _listed(ctx: RuleContext, name: str, count: int, default: int, *, least: int) -> Shape:
    given = ctx.integers(name)
    if given is None or not given:
        return (Dim.of(default),) * count
    if len(given) != count:
        ctx.mismatch(f"{len(given)} {name} where {count} are needed")
    ctx.require_least(name, given, least)
    return tuple(Dim.of(value) for value in given)


def _same_pads(
    ctx: RuleContext, spatial: Shape, plain: Window, *, upper: bool, crop: bool
) -> Shape:
    begins: list[Dim] = []
    ends: list[Dim] = []
    for size, stride, reach in zip(spatial, plain.strides, plain.reach, strict=True):
        exact = (size.ceildiv(stride) - 1) * stride + reach - size
        total = ctx.facts.larger(exact, _ZERO)
        if crop and stride.const > reach.const:
            first = _half_towards_zero(exact if upper else exact + 1)
            begins.append(first)
            ends.append(exact - first)
            continue
        small = total // 2
        begins.append(small if upper else total - small)
        ends.append(total - small if upper else small)
    return (*begins, *ends)


def _half_towards_zero(value: Dim) -> Dim:
    return value.max(0) // 2 - (value * -1).max(0) // 2


def slide(ctx: RuleContext, spatial: Shape, windows: Window, *, ceil: bool = False) -> Shape:
    """The number of window positions on each axis."""
    count = len(spatial)
    result: list[Dim] = []
    for axis, size in enumerate(spatial):
        begin, end = windows.pads[axis], windows.pads[count + axis]
        stride = windows.strides[axis]
        room = size + begin + end - windows.reach[axis]
        steps = room.ceildiv(stride) + 1 if ceil else room // stride + 1
        if ceil and stride != ONE:
            # A window that would start in the end padding is left out.
            steps = ctx.facts.smaller(steps, (size + begin).ceildiv(stride))
        if steps.is_const and steps.const < 0:
            ctx.mismatch(f"a window of {windows.reach[axis]} is larger than axis {axis} of {size}")
        result.append(steps)
    return tuple(result)


def _kernel_shape(ctx: RuleContext) -> Shape:
    """The attribute of pooling, which has no weights to say it."""
    given = ctx.integers("kernel_shape")
    if given is None:
        ctx.fail("kernel_shape is required")
    ctx.require_least("kernel_shape", given)
    return tuple(map(Dim.of, given))


def _kernel_of(ctx: RuleContext, weights: Shape) -> Shape:
    given = ctx.integers("kernel_shape")
    ctx.require_least("kernel_shape", given or [dim.const for dim in weights[2:] if dim.is_const])
    if given is None:
        return weights[2:]
    if len(given) != len(weights) - 2:
        ctx.mismatch(f"kernel_shape {list(given)} for weights {shape_text(weights)}")
    return tuple(
        ctx.equal(Dim.of(size), own, "kernel_shape")
        for size, own in zip(given, weights[2:], strict=True)
    )


def _group(ctx: RuleContext, name: str = "group") -> int:
    group = ctx.integer(name, 1)
    ctx.require_least(name, [group])
    return group


def convolution(ctx: RuleContext, weights_at: int, bias_at: int | None) -> NodeInfo:
    """Any forward convolution: data first, weights and bias at the given positions."""
    data, weights = ctx.shape(0), ctx.shape(weights_at)
    if len(data) < 3 or len(weights) != len(data):
        ctx.mismatch(f"data {shape_text(data)} and weights {shape_text(weights)}")
    group = _group(ctx)
    ctx.equal(data[1], weights[1] * group, "channels of data and weights")
    if weights[0].is_const and weights[0].const % group:
        ctx.mismatch(f"{weights[0]} maps in {group} groups")
    if bias_at is not None and ctx.has(bias_at):
        ctx.equal(ctx.shape_of_rank(bias_at, 1)[0], weights[0], "one bias a map")
    windows = window(ctx, data[2:], _kernel_of(ctx, weights))
    shape = (data[0], weights[0], *slide(ctx, data[2:], windows))
    return ctx.result(shape, params=windows.params())


@shape_rule("Conv")
def conv(ctx: RuleContext) -> NodeInfo:
    """A convolution of one float type."""
    ctx.same_dtype(0, 1, 2)
    return convolution(ctx, 1, 2)


@shape_rule("ConvInteger", dtypes=(INT32,))
def conv_integer(ctx: RuleContext) -> NodeInfo:
    """A convolution of 8-bit data."""
    return convolution(ctx, 1, None)


@shape_rule("QLinearConv", dtypes=(like(7),))
def quantized_conv(ctx: RuleContext) -> NodeInfo:
    """A convolution of quantised data in the result's zero point's type."""
    return convolution(ctx, 3, 8)


@shape_rule("DeformConv")
def deform_conv(ctx: RuleContext) -> NodeInfo:
    """A convolution whose taps are moved by offsets."""
    found = convolution(ctx, 1, 3)
    output = found.outputs[0]
    offsets = ctx.shape(2)
    if output is not None and output.shape is not None:
        groups = _group(ctx, "offset_group")
        taps = product(found.params["kernel"]) * groups
        spatial = output.shape[2:]
        expected = (output.shape[0], taps * len(spatial), *spatial)
        if len(offsets) != len(expected):
            ctx.mismatch(f"offsets are {shape_text(offsets)}")
        for own, size in zip(offsets, expected, strict=True):
            ctx.equal(size, own, "offsets")
    params = found.params
    return ctx.result(output.shape if output is not None else None, params=params)


@shape_rule("ConvTranspose")
def conv_transpose(ctx: RuleContext) -> NodeInfo:
    """The adjoint of a convolution; ``output_shape`` or auto_pad decide the pads."""
    ctx.same_dtype(0, 1, 2)
    data, weights = ctx.shape(0), ctx.shape(1)
    if len(data) < 3 or len(weights) != len(data):
        ctx.mismatch(f"data {shape_text(data)} and weights {shape_text(weights)}")
    ctx.equal(data[1], weights[0], "channels of data and weights")
    group = _group(ctx)
    if data[1].is_const and data[1].const % group:
        ctx.mismatch(f"{data[1]} channels in {group} groups")
    count = len(data) - 2
    kernel = _kernel_of(ctx, weights)
    plain = Window(
        kernel=kernel,
        strides=_listed(ctx, "strides", count, 1, least=1),
        dilations=_listed(ctx, "dilations", count, 1, least=1),
        pads=_listed(ctx, "pads", 2 * count, 0, least=0),
    )
    extra = _listed(ctx, "output_padding", count, 0, least=0)
    full = tuple(
        (size - 1) * stride + padding + reach
        for size, stride, padding, reach in zip(
            data[2:], plain.strides, extra, plain.reach, strict=True
        )
    )
    pads, spatial = _transposed_pads(ctx, data[2:], plain, full)
    params = {**plain.params(), "pads": pads, "output_padding": extra}
    return ctx.result((data[0], weights[1] * group, *spatial), params=params)


def _transposed_pads(
    ctx: RuleContext, spatial: Shape, plain: Window, full: Shape
) -> tuple[Shape, Shape]:
    """Pads and result sizes: given pads, or pads that give the wanted sizes."""
    count = len(spatial)
    auto = ctx.text("auto_pad", "NOTSET")
    given = ctx.integers("output_shape")
    pads = (_ZERO,) * (2 * count) if auto == "VALID" else plain.pads
    wanted: Shape
    if given is not None:
        if len(given) < count:
            ctx.mismatch(f"output_shape {list(given)} for {count} spatial axes")
        wanted = tuple(Dim.of(size) for size in given[-count:])
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(size * stride for size, stride in zip(spatial, plain.strides, strict=True))
    else:
        sizes = tuple(full[k] - pads[k] - pads[count + k] for k in range(count))
        return pads, sizes
    totals = tuple((have - want).max(0) for have, want in zip(full, wanted, strict=True))
    halves = tuple(total // 2 for total in totals)
    rests = tuple(total - half for total, half in zip(totals, halves, strict=True))
    return (*halves, *rests) if auto == "SAME_UPPER" else (*rests, *halves), wanted


@shape_rule("MaxPool", "AveragePool", "LpPool", dtypes=(like(0), INT64))
def pool(ctx: RuleContext) -> NodeInfo:
    """Windows over the spatial axes."""
    data = ctx.shape(0)
    if len(data) < 3:
        ctx.fail("spatial axes are required")
    if ctx.node.op_type == "LpPool":
        ctx.require_least("p", [ctx.integer("p", 2)])
    windows = window(ctx, data[2:], _kernel_shape(ctx), crop=True)
    spatial = slide(ctx, data[2:], windows, ceil=bool(ctx.integer("ceil_mode", 0)))
    return ctx.result((*data[:2], *spatial), params=windows.params())


@shape_rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(ctx: RuleContext) -> NodeInfo:
    """One value a channel."""
    data = ctx.shape(0)
    if len(data) < 2:
        ctx.mismatch("batch and channels are needed")
    if ctx.node.op_type == "GlobalLpPool":
        ctx.require_least("p", [ctx.integer("p", 2)])
    return ctx.result((*data[:2], *(ONE,) * (len(data) - 2)))


@shape_rule("MaxUnpool")
def max_unpool(ctx: RuleContext) -> NodeInfo:
    """The pooled data put back; the third input may state the result's shape."""
    data = ctx.shape(0)
    for own, other in zip(ctx.shape_of_rank(1, len(data)), data, strict=True):
        ctx.equal(other, own, "indices")
    count = len(data) - 2
    windows = window(ctx, data[2:], _kernel_shape(ctx))
    if ctx.has(2):
        stated = ctx.dims(2)
        if stated is None:
            stated = ctx.bind_shape("sizes", [ctx.argument(2), len(data)], len(data))
        if len(stated) != len(data):
            ctx.mismatch(f"output_shape has {len(stated)} entries")
        return ctx.result(stated, params=windows.params())
    spatial = tuple(
        (data[2 + k] - 1) * windows.strides[k]
        + windows.kernel[k]
        - windows.pads[k]
        - windows.pads[count + k]
        for k in range(count)
    )
    return ctx.result((*data[:2], *spatial), params=windows.params())


@shape_rule("Col2Im")
def col2im(ctx: RuleContext) -> NodeInfo:
    """Columns of blocks put back into an image."""
    batch, columns, blocks = ctx.shape_of_rank(0, 3)
    image, kernel = ctx.dims(1), ctx.dims(2)
    count = ctx.length(1) if image is None else len(image)
    if count is None:
        return ctx.result(None)
    if image is None:
        image = ctx.bind_shape("sizes", [ctx.argument(1), count], count, "image")
    if kernel is None:
        kernel = ctx.bind_shape("sizes", [ctx.argument(2), count], count, "block")
    windows = window(ctx, image, kernel)
    ctx.equal(product(slide(ctx, image, windows)), blocks, "the number of blocks")
    channels = columns // product(kernel)
    ctx.equal(channels * product(kernel), columns, "channels times the block's size")
    return ctx.result((batch, channels, *image), params=windows.params())
