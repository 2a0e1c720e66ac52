"""Branches that stay on the host for reasons that models seldom have; the rest is in
integration/test_native_branches.py.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.merge_segments import merge
from tilewright.compiler.native_branches import native_branches
from tilewright.core.dtypes import BOOL, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.lower.reindex import Refusal
from tilewright.runtime.program import Branch, KernelCall, Program, Segment, TensorSpec

N = Dim.symbol("n")
X = TensorSpec(name="x", dtype=FLOAT32, shape=(N,))
Y = TensorSpec(name="y", dtype=FLOAT32, shape=(N,))
C = TensorSpec(name="c", dtype=BOOL, shape=())


def segment(output: str, dims: tuple[Dim, ...] = (), internal: tuple[str, ...] = ()) -> Segment:
    call = KernelCall(
        kernel="k", name="k", sources=(output,), buffers=("x", output), dims=dims, stages=()
    )
    return Segment(
        calls=(call,),
        inputs=(X,),
        outputs=(replace(Y, name=output),),
        internal=tuple(replace(Y, name=name) for name in internal),
    )


def side(*steps: Segment, output: str) -> Program:
    return Program(inputs=(), outputs=(replace(Y, name=output),), steps=steps)


def branching(then: Segment, inputs: tuple[TensorSpec, ...] = (X, C)) -> Program:
    step = Branch(
        node="if",
        condition="c",
        then=side(then, output="a"),
        otherwise=side(segment("b"), output="b"),
        outputs=(Y,),
    )
    return Program(inputs=inputs, outputs=(Y,), steps=(step,))


def reason_of(program: Program) -> str:
    log = DecisionLog()
    assert native_branches(program, log) == program
    ((_, reason),) = log.entries[-1].rejected
    return reason


def test_both_sides_are_taken_in() -> None:
    log = DecisionLog()
    (step,) = native_branches(branching(segment("a")), log).steps
    assert isinstance(step, Segment)
    assert [(call.buffers[1], call.guards[0].value) for call in step.calls] == [
        ("y", True),
        ("y", False),
    ]


def test_a_condition_that_nothing_computes() -> None:
    assert reason_of(branching(segment("a"), inputs=(X,))) == "the condition is a constant"


def test_sizes_that_only_a_side_knows() -> None:
    found = segment("a", dims=(Dim.symbol("found"),))
    assert "only known inside" in reason_of(branching(found))


def test_buffers_of_one_name_are_not_joined() -> None:
    first, second = segment("a", internal=("t",)), segment("b", internal=("t",))
    refused = merge(first, [], second, {"a", "b"})
    assert isinstance(refused, Refusal)
    assert refused.reason == "two segments have buffers of the same name: t"
