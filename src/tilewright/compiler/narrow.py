"""Keep values inside of segments as float16: half the bytes, and tensor cores for contractions.

    y = relu(x) : float32   ->   y = float16(relu(float32(x)))
Input -> Output: a fused draft, edited in place; weights of rank 2 and more join the constants again
as float16.
Guarantees: inputs, outputs and what steps of the host read keep their types, as do loops over steps
and weights beyond the range of float16; arithmetic and sums stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.retype import Narrowing, copy_of, narrowable, pins, reading
from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    Kernel,
    Reduce,
    walk,
)
from tilewright.lower.context import View

Array = npt.NDArray[Any]
_LARGEST = 65504.0
_SUFFIX = "$float16"


def narrow_program(program: DraftProgram, constants: dict[str, Array], log: DecisionLog) -> None:
    """Narrows every segment, those of sub-programs too."""
    for segment in program.segments():
        _narrow_segment(segment, constants, log)


def _narrow_segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    _narrow_inputs(step, constants)
    values = frozenset[str]().union(*narrowable(step.items, step.keep))
    weights = _weights(step, constants, log)
    for name in weights:
        constants[name + _SUFFIX] = constants[name].astype(np.float16)
    renamed = {name: name + _SUFFIX for name in weights}
    narrowing = Narrowing(dtype=FLOAT16, values=values, weights=renamed)
    step.items = [narrowing.item(item) for item in step.items]
    if values or weights:
        subject = f"segment of {len(step.items)} kernels and views"
        chosen = f"{len(values)} values and {len(weights)} weights are float16, sums are float32"
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


def _weights(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> frozenset[str]:
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
        if finite.size and float(np.abs(finite).max()) > _LARGEST:
            reason = f"a weight is {float(np.abs(finite).max()):.3g}, float16 ends at {_LARGEST:g}"
            log.add("precision", name, "float32", (("float16", reason),))
            continue
        found.append(name)
    return frozenset(found)
