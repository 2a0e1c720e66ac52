"""Random inputs for verification.

Input -> Output: specs and declared ranges of dims -> several sets of inputs, likely ones first.
Guarantees: the same specs and seed give the same arrays; sizes lie inside the declared ranges.
Not here: inputs from files (compiler.feeds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.core.dtypes import BOOL, STRING, Kind
from tilewright.core.errors import BadOption
from tilewright.runtime.feeds import Range
from tilewright.runtime.program import TensorSpec

# (size of a leading dim, size of any other): networks often need multiples of 32 or a least size.
_SIZES = ((2, 64), (1, 64), (1, 16), (2, 3), (1, 1), (1, 128), (1, 576), (3, 224), (2, 2), (5, 4))
_MAX_RANDOM_INTEGER = 2  # exclusive: 0 and 1 are valid as ids, masks and flags alike


def sample_feeds(
    specs: Sequence[TensorSpec], ranges: Mapping[str, Range], seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yields candidate inputs.

    Raises:
        BadOption: an input cannot be random (a sequence, an unknown rank, strings).
    """
    for spec in specs:
        if spec.shape is None or spec.container != "tensor" or spec.dtype is STRING:
            raise BadOption(
                f"input {spec.name} ({spec.container} of {spec.dtype.name}) cannot be random",
                remedy="give verify_feeds=, or pass verify=False",
            )
    seen: set[tuple[int, ...]] = set()
    for batch_first in (True, False):
        for leading, other in _SIZES:
            sizes = _sizes(specs, ranges, leading, other, batch_first)
            key = tuple(sizes.values())
            if key not in seen:
                seen.add(key)
                yield make_feeds(specs, sizes, seed)


def _sizes(
    specs: Sequence[TensorSpec],
    ranges: Mapping[str, Range],
    leading: int,
    other: int,
    batch_first: bool,
) -> dict[str, int]:
    """One choice; the batch may also follow a fixed dim, as in a state [layers, batch, units]."""
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


def make_feeds(
    specs: Sequence[TensorSpec], sizes: Mapping[str, int], seed: int = 0
) -> dict[str, Any]:
    """Standard normal numbers; 0 and 1 where the dtype is no float."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for spec in specs:
        shape = [max(0, dim.evaluate(sizes)) for dim in spec.shape or ()]
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
