"""Options are parsed or refused with what is wrong."""

import pytest
import typer

from tilewright.cli import options


def test_dims_are_ranges_or_sizes() -> None:
    parsed = options.parse_dims(["batch=1..8", "unk__1=77", "a=b=2", "n=0", "m=0..3"])
    assert parsed == {
        "batch": (1, 8), "unk__1": (77, 77), "a=b": (2, 2), "n": (0, 0), "m": (0, 3),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["batch", "batch=", "=3", "batch=-1", "batch=4..2", "batch=1..x"])
def test_bad_dims_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not|must satisfy"):
        options.parse_dims([text])


def test_a_size_is_no_range() -> None:
    assert options.parse_sizes(["batch=2"]) == {"batch": 2}
    with pytest.raises(typer.BadParameter, match="batch: give one size"):
        options.parse_sizes(["batch=1..2"])


def test_counts_are_positive() -> None:
    assert options.parse_counts("1, 2") == [1, 2]
    for text in ("", "0", "1,two", "-1"):
        with pytest.raises(typer.BadParameter):
            options.parse_counts(text)


@pytest.mark.parametrize("text", ["x", "x=", "=f.npy"])
def test_bad_files_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        options.parse_files([text])


def test_what_is_given_twice_is_refused() -> None:
    """None of both would be silently left out, be they equal or not."""
    with pytest.raises(typer.BadParameter, match="--dim n is given twice"):
        options.parse_dims(["n=1..4", "m=2", "n=2..8"])
    with pytest.raises(typer.BadParameter, match="--input x is given twice"):
        options.parse_files(["x=a.npy", "x=b.npy"])
