"""Random inputs for verification: sizes that networks take, inside the declared ranges."""

import numpy as np

from tilewright.compiler.samples import sample_feeds
from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.shape import Dim
from tilewright.runtime.program import TensorSpec

N, LENGTH, UNITS = Dim.symbol("n"), Dim.symbol("length"), Dim.of(8)


def _shapes(*specs: TensorSpec, **ranges: tuple[int | None, int | None]) -> list[list[list[int]]]:
    return [
        [list(array.shape) for array in feeds.values()] for feeds in sample_feeds(specs, ranges)
    ]


def test_the_batch_may_follow_a_fixed_dim() -> None:
    x = TensorSpec(name="x", dtype=FLOAT32, shape=(N, LENGTH))
    state = TensorSpec(name="state", dtype=FLOAT32, shape=(Dim.of(2), Dim.symbol("m"), UNITS))
    sizes = [(x[0], x[1], state[1]) for x, state in _shapes(x, state)]
    assert any(batch == other and length > batch for batch, length, other in sizes)
    assert len(set(sizes)) == len(sizes)


def test_sizes_stay_in_their_ranges() -> None:
    x = TensorSpec(name="x", dtype=FLOAT32, shape=(N, LENGTH))
    for (shape,) in _shapes(x, n=(4, 6), length=(None, 32)):
        assert 4 <= shape[0] <= 6
        assert shape[1] <= 32


def test_integers_are_valid_ids() -> None:
    ids = TensorSpec(name="ids", dtype=INT64, shape=(N, LENGTH))
    feeds = next(sample_feeds([ids], {}))
    assert set(np.unique(feeds["ids"])) == {0, 1}
