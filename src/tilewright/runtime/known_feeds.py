"""Checked inputs, remembered by their shapes: a small network runs in less time than the checks.

Input -> Output: arrays by name -> what ``check_feeds`` gives for them.
Guarantees: only plain, row-major arrays of exactly the declared types, here or on a GPU, take the
short way, and only in shapes that the long way has accepted; everything else goes the long way each
time.
Not here: the checks (runtime.feeds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.core.dtypes import STRING
from tilewright.runtime.cuda.arrays import DeviceArray
from tilewright.runtime.feeds import Range, check_feeds
from tilewright.runtime.program import TensorSpec

_MAX_KNOWN = 256

Signature = tuple[tuple[int, ...], ...]


class KnownFeeds:
    """The inputs of one engine.

    Args:
        specs: name, dtype and shape of each.
        ranges: declared ranges of dims.
    """

    def __init__(self, specs: Sequence[TensorSpec], ranges: Mapping[str, Range]) -> None:
        self._specs = specs
        self._ranges = ranges
        self._known: dict[Signature, dict[str, int]] = {}
        is_plain = all(s.container == "tensor" and s.dtype is not STRING for s in specs)
        self._plain = [(spec.name, spec.dtype.numpy) for spec in specs] if is_plain else None

    def check(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Values by name, and the value of each symbol in the declared shapes.

        Raises:
            UserError: see ``check_feeds``.
        """
        signature = self._signature(feeds)
        if signature is None:
            return check_feeds(feeds, self._specs, self._ranges)
        known = self._known.get(signature)
        if known is not None:
            return dict(feeds), known.copy()
        values, symbols = check_feeds(feeds, self._specs, self._ranges)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[signature] = symbols.copy()
        return values, symbols

    def _signature(self, feeds: Mapping[str, Any]) -> Signature | None:
        """The shapes; None where the long way has more to do than to look at them."""
        if self._plain is None or len(feeds) != len(self._plain):
            return None
        shapes = []
        for name, dtype in self._plain:
            array: Any = feeds.get(name)
            kind = type(array)
            if kind is np.ndarray:
                flags = array.flags
                if not (flags.c_contiguous and flags.aligned):
                    return None
            elif kind is not DeviceArray:
                return None
            if array.dtype != dtype:
                return None
            shapes.append(array.shape)
        return tuple(shapes)
