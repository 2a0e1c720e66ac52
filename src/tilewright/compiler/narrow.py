"""Keep values inside of segments in 16 bits: half the bytes, and tensor cores for contractions.

    y = relu(x) : float32   ->   y = float16(relu(float32(x))), or bfloat16
Input -> Output: a fused draft, edited in place; weights of rank 2 and more join the constants again
in that type.
Guarantees: inputs, outputs and what steps of the host read keep their types, as do loops over steps
and weights beyond the range of the type; arithmetic and sums stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.retype import Narrowing, copy_of, narrowable, pins, reading
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    Kernel,
    Reduce,
    walk,
)
from tilewright.lower.context import View

Array = npt.NDArray[Any]
_LARGEST = {FLOAT16: 65504.0, BFLOAT16: 3.3895313892515355e38}


def narrow_program(
    program: DraftProgram, constants: dict[str, Array], log: DecisionLog, dtype: DType = FLOAT16
) -> None:
    """Narrows every segment to float16 or bfloat16, those of sub-programs too."""
    for segment in program.segments():
        _narrow_segment(segment, constants, log, dtype)


def _narrow_segment(
    step: DraftSegment, constants: dict[str, Array], log: DecisionLog, dtype: DType
) -> None:
    _narrow_inputs(step, constants)
    values = frozenset[str]().union(*narrowable(step.items, step.keep))
    renamed = {name: f"{name}${dtype}" for name in _weights(step, constants, log, dtype)}
    for name, narrow in renamed.items():
        constants[narrow] = constants[name].astype(dtype.numpy)
    narrowing = Narrowing(dtype=dtype, values=values, weights=renamed)
    step.items = [narrowing.item(item) for item in step.items]
    if values or renamed:
        subject = f"segment of {len(step.items)} kernels and views"
        chosen = f"{len(values)} values and {len(renamed)} weights are {dtype}, sums are float32"
        log.add("precision", subject, chosen)


def _narrow_inputs(step: DraftSegment, constants: Mapping[str, Array]) -> None:
    """Puts a copy before the kernels of what a contraction reads from outside, to be narrowed."""
    kernels = [item for item in step.items if isinstance(item, Kernel) and not pins(item)]
    made = step.written()
    outside = {
        buffer.name: buffer
        for kernel in kernels
        if any(isinstance(n, Reduce) and n.combiner == "sum" for n in walk(*kernel.roots))
        for buffer in kernel.inputs
        if buffer.name not in constants and buffer.name not in made
        if buffer.dtype is FLOAT32 and len(buffer.shape) > 1
    }
    copies = {name: replace(own, name=f"{name}$copy") for name, own in outside.items()}
    step.items = [reading(i, copies) if isinstance(i, Kernel) else i for i in step.items]
    step.items[:0] = [copy_of(own, copies[name]) for name, own in outside.items()]


def _weights(
    step: DraftSegment, constants: dict[str, Array], log: DecisionLog, dtype: DType
) -> list[str]:
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    read = dict.fromkeys(b.name for k in kernels if not pins(k) for b in k.inputs)
    pinned = {b.name for k in kernels if pins(k) for b in k.inputs}
    found = []
    for name in read:
        array = constants.get(name)
        if array is None or array.dtype != np.float32 or array.ndim < 2:
            continue
        if name in viewed or name in pinned:
            continue
        finite = array[np.isfinite(array)]
        limit = _LARGEST[dtype]
        if finite.size and float(np.abs(finite).max()) > limit:
            reason = f"a weight is {float(np.abs(finite).max()):.3g}, {dtype} ends at {limit:g}"
            log.add("precision", name, "float32", ((str(dtype), reason),))
            continue
        found.append(name)
    return found
