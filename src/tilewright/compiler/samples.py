"""Random inputs for verification.

Input -> Output: specs and declared ranges of dims -> several sets of inputs, likely ones first.
Guarantees: the same specs and seed give the same arrays; sizes lie inside the declared ranges.
Not here: inputs from files (compiler.feeds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.core.dtypes import STRING
from tilewright.core.errors import BadOption
from tilewright.runtime.example_feeds import assumed_sizes, make_feeds
from tilewright.runtime.feeds import Range
from tilewright.runtime.program import TensorSpec

# (size of a leading dim, size of any other): networks often need multiples of 32 or a least size.
_SIZES = ((2, 64), (1, 64), (1, 16), (2, 3), (1, 1), (1, 128), (1, 576), (3, 224), (2, 2), (5, 4))


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
                remedy="give inputs (verify_feeds=, or --npz), or do without (verify=False, or "
                "--no-verify)",
            )
    seen: set[tuple[int, ...]] = set()
    for batch_first in (True, False):
        for leading, other in _SIZES:
            sizes = assumed_sizes(specs, ranges, leading, other, batch_first)
            key = tuple(sizes.values())
            if key not in seen:
                seen.add(key)
                yield make_feeds(specs, sizes, seed)
