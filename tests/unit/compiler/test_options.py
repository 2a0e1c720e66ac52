"""Options: everything is read or refused, nothing ignored."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.options import CompileOptions, Require, make_options
from tilewright.core.errors import BadOption, BadTarget


def options(**given: Any) -> CompileOptions:
    defaults: dict[str, Any] = {
        "target": "cpu",
        "cpu": None,
        "precision": "fp32",
        "threads": None,
        "dims": None,
        "require": None,
    }
    return make_options(**{**defaults, **given})


def test_defaults() -> None:
    made = options()
    assert made.threads == len(os.sched_getaffinity(0))
    assert made.ranges == {}
    assert made.require == Require()
    assert made.disable == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Require()),
        ([], Require()),
        ("compiled", Require(compiled=True)),
        ("compiled, device=cpu", Require(compiled=True, device="cpu")),
        (["compiled"], Require(compiled=True)),
        (("compiled=false",), Require()),
        ({"compiled": True, "max_error": 1e-5}, Require(compiled=True, max_error=1e-5)),
        (["max_error = 1e-5", " deterministic "], Require(max_error=1e-5, deterministic=True)),
        (["dtypes=float32+int8"], Require(dtypes=("float32", "int8"))),
        ({"dtypes": ["int8", "int8"]}, Require(dtypes=("int8",))),
        (Require(device="cpu"), Require(device="cpu")),
    ],
)
def test_contracts_that_are_read(value: Any, expected: Require) -> None:
    assert Require.of(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fast", "unknown contract 'fast'"),
        (["compiled", ""], "unknown contract ''"),
        (["compiled=perhaps"], "compiled='perhaps'"),
        (["compiled", "compiled=false"], "compiled is given twice"),
        (["max_error"], "max_error='' is no number"),
        (["max_error=0"], "max_error='0'"),
        (["max_error=-1"], "max_error='-1'"),
        (["max_error=nan"], "max_error='nan'"),
        ({"max_error": float("inf")}, "max_error=inf"),
        ({"max_error": None}, "is no number"),
        (["device"], "device without a name"),
        ({"device": 5}, "device without a name: 5"),
        (["dtypes="], "no dtypes"),
        (["dtypes=float31"], "unknown types float31"),
        (7, "require is 7"),
        (0, "require is 0"),
        (b"compiled", "require is b'compiled'"),
        ([7], r"require is \[7\]"),
        ({7: True}, "require is {7: True}"),
        ({"dtypes": 5}, "dtypes is 5"),
        ({"max_error": True}, "max_error=True"),
        ({"max_error": 10**400}, "is no number"),
        (Require(max_error=-1.0), "max_error=-1.0"),
        ("", "unknown contract ''"),
    ],
)
def test_contracts_that_are_refused(value: Any, message: str) -> None:
    with pytest.raises(BadOption, match=message) as error:
        Require.of(value)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 8), (1, 8)),
        ([1, None], (1, None)),
        ((None, 8), (None, 8)),
        (4, (4, 4)),
        (np.int64(4), (4, 4)),
        ((np.int32(1), 2), (1, 2)),
        ((0, 0), (0, 0)),
    ],
)
def test_ranges_that_are_read(value: Any, expected: tuple[int | None, int | None]) -> None:
    assert options(dims={"batch": value}).ranges == {"batch": expected}


@pytest.mark.parametrize(
    "value",
    [
        *("18", "8", 5.0, None, True, (1,), (1, 2, 3), (2, 1), (-1, 4), (1.5, 2), ("1", "8")),
        *((True, 2), 2**63, (0, 2**63), {1, 2}, np.array([1, 2])),
    ],
    ids=str,
)
def test_ranges_that_are_refused(value: Any) -> None:
    with pytest.raises(BadOption, match="range of batch"):
        options(dims={"batch": value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: options(threads=0), "threads is 0"),
        (lambda: options(threads=1025), "threads is 1025"),
        (lambda: options(threads=True), "threads is True"),
        (lambda: options(threads=2.0), "threads is 2.0"),
        (lambda: options(threads="2"), "threads is '2'"),
        (lambda: options(threads="abc"), "threads is 'abc'"),
        (lambda: options(threads=float("nan")), "threads is nan"),
        (lambda: options(threads=[1]), r"threads is \[1\]"),
        (lambda: options(threads=1 << 5000), "threads is a number of 5001 bits"),
        (lambda: options(precision="auto"), "precision auto takes data to calibrate with"),
        (lambda: options(precision="fp8"), "precision fp8 takes data to calibrate with"),
        (lambda: options(precision=np.ones(2)), "unknown precision"),
        (lambda: options(dims=[("batch", 1)]), "dims is"),
        (lambda: options(dims=5), "dims is 5"),
        (lambda: options(dims=0), "dims is 0"),
        (lambda: options(dims={5: 1}), "dims is {5: 1}"),
        (lambda: options(disable=["everything"]), "cannot be disabled"),
        (lambda: options(disable="everything"), "cannot be disabled"),
        (lambda: options(disable=""), "cannot be disabled"),
        (lambda: options(disable=5), "disable is 5"),
        (lambda: options(disable=[None, "pack"]), "disable is"),
        (lambda: options(disable=[[]]), "disable is"),
    ],
)
def test_other_options_that_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadOption, match=message) as error:
        make()
    assert error.value.remedy


@pytest.mark.parametrize("target", ["tpu", "", 5, None, np.ones(2)], ids=str)
def test_unknown_targets_are_refused(target: Any) -> None:
    with pytest.raises(BadTarget, match="unknown target"):
        options(target=target)


@pytest.mark.parametrize("cpu", ["", "haswell ", "unknown", 5, b"haswell", []], ids=str)
def test_unknown_processors_are_refused(cpu: Any) -> None:
    with pytest.raises(BadTarget, match="unknown processor") as caught:
        options(cpu=cpu)
    assert "haswell" in str(caught.value.remedy)


def test_names_may_be_one_text_or_several() -> None:
    assert options(disable=None).disable == ()
    assert options(disable="winograd, pack").disable == ("pack", "winograd")
    assert options(disable={"pack", "winograd"}).disable == ("pack", "winograd")


def test_whole_numbers_of_numpy_are_numbers() -> None:
    made = options(threads=np.int64(2))
    assert (made.threads, type(made.threads)) == (2, int)
