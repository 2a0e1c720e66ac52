"""The size that -1 stands for in a reshape.

Input -> Output: the data's sizes, the wanted sizes without the -1 -> its size, or None.
Guarantees: equal sizes cancel first, so that an empty tensor has an answer: [0, 16] as [0, -1] is
[0, 16], as it is for any other batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def inferred_size(own: Sequence[int], known: Sequence[int]) -> int | None:
    """What is left of ``own`` beside ``known``; None where it is no whole number or any number."""
    rest, divisors = list(own), []
    for size in known:
        if size in rest:
            rest.remove(size)
        else:
            divisors.append(size)
    divisor = math.prod(divisors)
    if divisor == 0 or math.prod(rest) % divisor:
        return None
    return math.prod(rest) // divisor
