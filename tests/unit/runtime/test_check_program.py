"""A saved engine loads whatever kinds of step it has, and each kind's references are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

import tilewright as tw
from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import CorruptEngine
from tilewright.core.shape import Dim
from tilewright.runtime.check_program import check_program
from tilewright.runtime.program import (
    Bind,
    Branch,
    Interpret,
    Program,
    Refuse,
    Repeat,
    Reshape,
    Segment,
    Step,
    Sweep,
    TensorArg,
    TensorSpec,
    all_steps,
)
from unit.compiler.models import compiled, network

INNER = Program(inputs=(), outputs=(), steps=())
X = TensorSpec(name="x", dtype=FLOAT32, shape=(Dim.symbol("batch"),))


@pytest.fixture(scope="module")
def engine() -> tw.Engine:
    return compiled(network())


def reading(kind: type[Any], value: str) -> Step:
    """A step of this kind that reads one value."""
    makers: dict[type[Any], Callable[[], Step]] = {
        Segment: lambda: Segment(
            calls=(), inputs=(replace(X, name=value),), outputs=(), internal=()
        ),
        Bind: lambda: Bind(function="reshape", args=(TensorArg(value),), symbols=("r",), node="b"),
        Interpret: lambda: Interpret(
            node="i",
            domain="",
            op_type="Relu",
            opset=21,
            attributes={},
            inputs=(value,),
            outputs=(),
        ),
        Reshape: lambda: Reshape(source=value, target=replace(X, name="reshaped")),
        Refuse: lambda: Branch(
            node="if",
            condition=value,
            then=replace(INNER, steps=(Refuse(node="r", message="sizes never fit"),)),
            otherwise=INNER,
            outputs=(),
        ),
        Branch: lambda: Branch(node="if", condition=value, then=INNER, otherwise=INNER, outputs=()),
        Repeat: lambda: Repeat(
            node="l", trips=None, condition=None, carried=(value,), body=INNER, outputs=()
        ),
        Sweep: lambda: Sweep(
            node="s",
            carried=(),
            scanned=(value,),
            body=INNER,
            input_axes=(0,),
            input_reversed=(False,),
            output_axes=(),
            output_reversed=(),
            outputs=(),
        ),
    }
    assert kind in makers, f"give this test a {kind.__name__}"
    return makers[kind]()


@pytest.mark.parametrize("kind", get_args(Step))
def test_a_saved_engine_with_any_step_loads(
    engine: tw.Engine, kind: type[Any], tmp_path: Path
) -> None:
    whole = engine.program
    program = replace(whole, steps=(*whole.steps, reading(kind, "x")))
    engine.with_program(program).save(tmp_path / "net.tw")
    assert kind in map(type, all_steps(tw.load(tmp_path / "net.tw").program))


@pytest.mark.parametrize("kind", get_args(Step))
def test_a_step_that_reads_what_nothing_gives_is_refused(kind: type[Any]) -> None:
    program = Program(inputs=(X,), outputs=(), steps=(reading(kind, "nothing"),))
    with pytest.raises(CorruptEngine, match="nothing gives the value 'nothing'"):
        check_program(program, {}, {})


def test_nothing_behind_a_refusal_is_asked_for() -> None:
    refusal = Refuse(node="r", message="sizes never fit")
    check_program(Program(inputs=(), outputs=(X,), steps=(refusal,)), {}, {})
