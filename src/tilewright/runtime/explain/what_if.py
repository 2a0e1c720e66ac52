"""Would another precision be faster? An answer from the roofline, before anything is quantised.

Input -> Output: kernels with their floors and times, a precision -> ``WhatIf``.
Method: a kernel's float32 bytes shrink, and products run at the device's peak of the narrow type;
what a run takes then is what it takes now, times the quotient of the floors.
Guarantees: a lower bound of the time, up to the accuracy of the roofs; kernels that have no form in
the precision stay as they are, with a reason.
Not here: accuracy, and conversions between precisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.core.check_option import one_of
from tilewright.core.errors import BadOption
from tilewright.hw.roofline import peak_flops
from tilewright.report.explanation import KernelReport
from tilewright.report.what_if import KernelWhatIf, WhatIf
from tilewright.runtime.explain.floors import Floors, Traffic
from tilewright.runtime.explain.traffic import CallTraffic, traffic_of


@dataclass(frozen=True, slots=True)
class _Precision:
    dtype: str
    bits: int
    is_integer: bool = False


PRECISIONS = {
    "int8": _Precision("int8", 8, is_integer=True),
    "bf16": _Precision("bfloat16", 16),
    "fp16": _Precision("float16", 16),
}
_PRODUCTS = frozenset(
    "Conv ConvTranspose Gemm MatMul FusedConv FusedMatMul FusedGemm Einsum".split()
)
_FLOAT_PRODUCTS = _PRODUCTS | {"Attention", "LSTM", "GRU", "RNN"}
# Operators of bytes: by comparison, by integer arithmetic, or by a table of 256 entries.
_BYTEWISE = frozenset(
    "Relu LeakyRelu Clip Sigmoid HardSigmoid HardSwish Tanh Erf Gelu Elu Add Sub Mul Div Max Min "
    "Neg MaxPool AveragePool GlobalMaxPool GlobalAveragePool Concat Split Slice Pad Transpose "
    "Reshape Flatten Squeeze Unsqueeze Expand Tile Gather Resize Upsample DepthToSpace "
    "SpaceToDepth Identity BatchNormalization".split()
)


def check_precision(name: str) -> str:
    """The name, if it is one to ask for.

    Raises:
        BadOption: it is unknown.
    """
    return one_of("what_if", name, tuple(PRECISIONS))


def what_if(
    name: str,
    kernels: Sequence[KernelReport],
    calls: Sequence[CallTraffic],
    sizes: Mapping[str, int],
    floors: Floors | None,
) -> WhatIf:
    """Answers for one precision.

    Args:
        name: ``int8``, ``bf16`` or ``fp16``.
        kernels: as they are.
        calls: of the same kernels.
        sizes: of symbolic dims.
        floors: the device.

    Raises:
        BadOption: the precision is unknown, or so is the device's peak of it.
    """
    precision = PRECISIONS[check_precision(name)]
    if floors is None:
        raise BadOption(
            "what_if needs a device",
            remedy="name a GPU (--on H200), or ask on its own machine",
        )
    try:
        peak_flops(floors.roofs, precision.dtype)
    except BadOption as error:
        raise BadOption(
            f"{floors.roofs.device} has no known peak of {precision.dtype}",
            remedy="measure it (tilewright device --probe), or ask for another precision or device",
        ) from error
    narrow = replace(floors, footprint_bytes=floors.footprint_bytes * precision.bits / 32)
    rows = []
    for kernel, call in zip(kernels, calls, strict=True):
        traffic = traffic_of(call, sizes)
        if traffic is not None and kernel.floor_us and kernel.flops is not None:
            rows.append(_row(kernel, traffic, precision, narrow))
    return WhatIf(precision=name, kernels=tuple(rows), num_unknown=len(kernels) - len(rows))


def _row(
    kernel: KernelReport, traffic: Traffic, precision: _Precision, floors: Floors
) -> KernelWhatIf:
    now = kernel.floor_us or 0.0
    reason = _why_not(kernel, precision)
    then = now
    if not reason:
        products = _PRODUCTS if precision.is_integer else _FLOAT_PRODUCTS
        is_product = not products.isdisjoint(kernel.operators)
        found = floors.bound(
            kernel.flops or 0,
            precision.dtype if is_product else kernel.dtype,
            traffic.scaled(precision.bits / 32),
            widen=False,
        )
        then = now if found is None else min(now, found.time_s * kernel.calls * 1e6)
    time_us = kernel.time_us
    return KernelWhatIf(
        index=kernel.index,
        name=kernel.name,
        reason=reason,
        floor_us=now,
        then_floor_us=then,
        time_us=time_us,
        then_us=None if time_us is None else time_us * then / now,
    )


def _why_not(kernel: KernelReport, precision: _Precision) -> str:
    """Why a kernel stays as it is; empty if it changes."""
    if kernel.dtype != "float32":
        return f"it computes in {kernel.dtype}"
    if not precision.is_integer:
        return ""
    others = sorted(set(kernel.operators) - _PRODUCTS - _BYTEWISE)
    return f"no {precision.dtype} form of {', '.join(others)}" if others else ""
