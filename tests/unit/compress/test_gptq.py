"""The factor that rounding with data divides errors by, on moments that are hard to factor."""

import numpy as np
import pytest

from tilewright.compress.gptq import DAMPING, factor_of


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    rows = np.random.default_rng(0).normal(size=(64, 24))
    gram = (rows.T @ rows / 64)[None]
    upper = factor_of(gram).upper[0]
    damped = gram[0] + DAMPING * np.trace(gram[0]) / 24 * np.eye(24)
    assert (np.triu(upper) == upper).all()
    assert np.allclose(upper.T @ upper @ damped, np.eye(24))


def test_moments_that_rounding_made_indefinite_are_damped_until_they_are_not() -> None:
    values = np.random.default_rng(1).normal(size=(1, 48, 48))
    gram = values + values.transpose(0, 2, 1)
    assert np.linalg.eigvalsh(gram).min() < 0 < np.linalg.eigvalsh(gram).max()
    upper = factor_of(gram).upper
    assert np.isfinite(upper).all()
    assert (np.einsum("gii->gi", upper) > 0).all()


@pytest.mark.parametrize("mean", [1e2, 1e4])
def test_samples_that_hardly_differ_have_a_factor(mean: float) -> None:
    rows = (mean + np.random.default_rng(2).normal(size=(3, 96))).astype(np.float32)
    centre = rows.mean(0)
    gram = (rows.T @ rows / np.float32(3) - np.outer(centre, centre))[None]
    upper = factor_of(gram, ordered=True).upper
    assert np.isfinite(upper).all()
    assert (np.einsum("gii->gi", upper) > 0).all()


def test_moments_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        factor_of(np.full((1, 4, 4), np.inf))
