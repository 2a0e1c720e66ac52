"""Inputs for timing and verification where nobody gave any.

Input -> Output: specs, sizes of symbolic dims -> arrays by name; specs, ranges -> sizes to assume.
Guarantees: the same specs, sizes and seed give the same arrays; sizes lie in the declared ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.core.dtypes import BOOL, STRING, Kind
from tilewright.runtime.cpu.allocator import check_fits
from tilewright.runtime.feeds import Range
from tilewright.runtime.program import TensorSpec

_MAX_RANDOM_INTEGER = 2  # exclusive: 0 and 1 are valid as ids, masks and flags alike
LEADING, OTHER = 1, 64  # what is assumed of a leading dim, and of any other


def can_be_random(specs: Sequence[TensorSpec]) -> bool:
    """False where an input is a sequence, of unknown rank or text."""
    return all(
        spec.shape is not None and spec.container == "tensor" and spec.dtype is not STRING
        for spec in specs
    )


def make_feeds(
    specs: Sequence[TensorSpec], sizes: Mapping[str, int], seed: int = 0
) -> dict[str, Any]:
    """Standard normal numbers; 0 and 1 where the dtype is no float.

    Raises:
        OutOfMemory: an input of these sizes does not fit into this machine.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for spec in specs:
        shape = [max(0, dim.evaluate(sizes)) for dim in spec.shape or ()]
        check_fits(math.prod(shape) * spec.dtype.storage_bytes, f"a random input {spec.name}")
        if spec.dtype.is_float:
            array: Any = rng.standard_normal(shape, np.float32)
        elif spec.dtype.kind is Kind.COMPLEX:
            array = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        else:
            array = rng.integers(0, _MAX_RANDOM_INTEGER, shape)
        if spec.dtype is BOOL:
            array = np.asarray(array, dtype=bool)
        feeds[spec.name] = np.asarray(array).astype(spec.dtype.numpy)
    return feeds


def assumed_sizes(
    specs: Sequence[TensorSpec],
    ranges: Mapping[str, Range],
    leading: int = LEADING,
    other: int = OTHER,
    batch_first: bool = True,
) -> dict[str, int]:
    """A size for every symbolic dim: one for leading dims, another for the rest.

    Args:
        batch_first: False lets the leading dim follow a fixed one, as in a state [layers, batch,
            units].
    """
    sizes: dict[str, int] = {}
    for spec in specs:
        shape = spec.shape or ()
        fixed = bool(shape) and shape[0].is_const and not batch_first
        for axis, dim in enumerate(shape):
            for name in sorted(dim.symbols):
                low, high = ranges.get(name, (None, None))
                size = leading if axis == int(fixed) and dim.as_symbol() == name else other
                size = size if low is None else max(size, low)
                sizes.setdefault(name, size if high is None else min(size, high))
    return sizes
