"""Random models: the compiled engine equals the reference, at several sizes with one engine.

A failure prints the seed with the model's nodes; ``python tests/property/graphs.py SEED`` repeats
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright as tw
from property.check import check, report
from property.strategies import generate

_BATCHES = 40
_SIZE = 52  # 2,080 models
_VERIFIED, _LARGE = 4, 4
_FIRST_SEED = 1_000_000
_SAVED = 10  # one of so many engines is saved and loaded before it runs


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The driver is compiled once a session, and nothing is taken from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(_LARGE))
def test_random_models_of_large_tensors_on_several_threads(batch: int) -> None:
    first = _FIRST_SEED + 700_000 + batch * _SIZE
    failures = []
    for seed in range(first, first + _SIZE):
        sample = generate(seed, large=True)
        problems = check(sample, threads=3)
        if problems:
            failures.append(report(sample, problems))
    assert not failures, f"{len(failures)} of {_SIZE}:\n" + "\n\n".join(failures[:3])


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(_VERIFIED))
def test_random_models_pass_their_own_verification(batch: int) -> None:
    """Every pass by value, then the engine, on the feeds of one run."""
    first = _FIRST_SEED + 500_000 + batch * _SIZE
    for seed in range(first, first + _SIZE):
        sample = generate(seed)
        feeds = sample.feeds[seed % len(sample.feeds)]
        tw.compile(sample.model, verify_passes=True, verify_feeds=feeds, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(_BATCHES))
def test_random_models(batch: int, tmp_path: Path) -> None:
    first = _FIRST_SEED + batch * _SIZE
    failures = []
    for seed in range(first, first + _SIZE):
        sample = generate(seed)
        problems = check(sample, tmp_path if seed % _SAVED == 0 else None)
        if problems:
            failures.append(report(sample, problems))
    assert not failures, f"{len(failures)} of {_SIZE}:\n" + "\n\n".join(failures[:3])
