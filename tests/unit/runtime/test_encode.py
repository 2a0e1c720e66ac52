"""Records as JSON: exact both ways, and nothing but known records comes out."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dim_table import DimTable, read_dims
from tilewright.core.dtypes import ALL, FLOAT32, STRING
from tilewright.core.errors import CorruptEngine
from tilewright.core.record import Decision
from tilewright.core.shape import Dim
from tilewright.runtime.check_program import check_program
from tilewright.runtime.encode import decode, encode
from tilewright.runtime.program import (
    Bind,
    Blocked,
    Branch,
    DimsArg,
    Interpret,
    KernelCall,
    LiteralArg,
    Program,
    Refuse,
    Repeat,
    Reshape,
    Segment,
    StageCall,
    Sweep,
    TensorArg,
    TensorSpec,
)

N = Dim.symbol("n")
SIZES = read_dims(["n", [[1, 0]]])


def encoded(value: Any) -> list[Any]:
    """A value and its sizes."""
    sizes = DimTable()
    return [encode(value, sizes), sizes.entries]


def through_json(value: Any) -> Any:
    read, entries = json.loads(json.dumps(encoded(value), allow_nan=False))
    return decode(read, read_dims(entries))


def spec(name: str, *shape: Dim) -> TensorSpec:
    return TensorSpec(name=name, dtype=FLOAT32, shape=shape)


def everything() -> Program:
    """One step of each kind."""
    x, y = spec("x", N), TensorSpec(name="y", dtype=STRING, shape=None, container="sequence")
    blocked = TensorSpec(
        name="z",
        dtype=FLOAT32,
        shape=(N // 2 + 1, N.max(3)),
        stored=Blocked(dim=0, block=16, size=3, border=((1, 0, 2),)),
    )
    stage = StageCall(symbol="stage_0", iterations=N.ceildiv(4), cost=N * N)
    call = KernelCall(
        kernel="abc",
        name="Relu",
        sources=("relu1", "relu2"),
        buffers=("x", "z"),
        dims=(N, N % 3),
        stages=(stage,),
        steps=N,
        traffic=(N * 4, N),
        flops=N,
        dtype="float32",
        tactic="scalar",
    )
    segment = Segment(
        calls=(call,), inputs=(x,), outputs=(blocked,), internal=(), aliases={"a": "x"}
    )
    bind = Bind(
        function="reshape",
        args=(TensorArg("x"), DimsArg((N,)), LiteralArg([1, None, "a", 2.5])),
        symbols=("s",),
        node="reshape1",
    )
    interpret = Interpret(
        node="n",
        domain="ai.onnx.ml",
        op_type="Scaler",
        opset=3,
        attributes={
            "scale": [1.0, math.inf, -0.0],
            "name": "text",
            "data": b"\x00\xff",
            "value": np.arange(3, dtype=np.int16),
        },
        inputs=("x", None),
        outputs=(y, None),
    )
    inner = Program(inputs=(), outputs=(x,), steps=())
    branch = Branch(node="if", condition="c", then=inner, otherwise=inner, outputs=(x,))
    repeat = Repeat(
        node="l", trips="m", condition=None, carried=("x",), body=inner, outputs=(None, x)
    )
    sweep = Sweep(
        node="s",
        carried=(),
        scanned=("x",),
        body=inner,
        input_axes=(-1,),
        input_reversed=(True,),
        output_axes=(0,),
        output_reversed=(False,),
        outputs=(x,),
    )
    steps = (
        segment,
        bind,
        interpret,
        Reshape(source="x", target=x),
        Refuse(node="r", message="no"),
        branch,
        repeat,
        sweep,
    )
    return Program(inputs=(x,), outputs=(x, y), steps=steps)


def same(left: Any, right: Any) -> bool:
    """Equal, lists and tuples alike; arrays and NaN by their bits."""
    return json.dumps(encoded(left), sort_keys=True) == json.dumps(encoded(right), sort_keys=True)


def test_a_program_with_every_step_comes_back() -> None:
    whole = everything()
    again = through_json(whole)
    assert same(again, whole)
    assert again.steps[0] == whole.steps[0]
    assert again.steps[2].attributes["value"].dtype == np.int16
    assert through_json(again) != ()


def test_decisions_come_back() -> None:
    decision = Decision(
        stage="tactic",
        subject="x",
        chosen="scalar",
        rejected=(("vector", "one element"),),
        predicted_us=math.nan,
        measured_us=1e-300,
    )
    again = through_json((decision,))[0]
    assert again.rejected == decision.rejected
    assert math.isnan(again.predicted_us)
    assert again.measured_us == 1e-300


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(ALL)
    | st.sampled_from([N, N // 3 + 1, Dim.of(-4), Dim.symbol("a`b c")]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_any_plain_value_comes_back(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_arrays_of_every_type_come_back(dtype: Any) -> None:
    if dtype is STRING:
        array: Any = np.array([["a", ""], ["é", "\x00"]], dtype=object)
    else:
        rng = np.random.default_rng(0)
        raw = rng.integers(0, 2, (2, 2 * dtype.storage_bytes), np.uint8)
        array = raw.view(dtype.numpy)[:, ::-1]
    again = through_json(array)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == np.ascontiguousarray(array).tobytes() or dtype is STRING
    assert again.tolist() == array.tolist() or dtype.is_float


def test_numbers_of_numpy_become_plain() -> None:
    assert through_json([np.int64(3), np.float32(0.5), np.bool_(True)]) == (3, 0.5, True)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, lambda: None])
def test_what_has_no_encoding_is_a_fault(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot encode"):
        encode(value)


# --- hostile --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"$record": "Popen"},
        {"$record": "Program"},
        {"$record": ["Program"]},
        {"$record": "Program", "inputs": [], "outputs": [], "steps": [], "more": 1},
        {"$record": "Program", "inputs": 3, "outputs": [], "steps": []},
        {"$record": "Program", "inputs": [], "outputs": [], "steps": [1]},
        {"$record": "Refuse", "node": None, "message": "text"},
        {"$record": "Blocked", "dim": 1.5, "block": 2, "size": 3},
        {"$record": "Blocked", "dim": True, "block": 2, "size": 3},
        {"$record": "Blocked", "dim": 1, "block": 2, "size": 3, "border": [[1, 2]]},
        {"$record": "TensorArg", "name": {"$dim": 1}},
        {"$record": "DimsArg", "dims": [1]},
        {"$record": "TensorSpec", "name": "x", "dtype": "float32", "shape": None},
        {
            "$record": "Segment",
            "calls": [],
            "inputs": [],
            "outputs": [],
            "internal": [],
            "aliases": {"$map": {"a": 1}},
        },
        {"$unknown": 1},
        {"a": 1},
        {},
        {"$map": 3},
        {"$map": [1]},
        {"$dim": "n"},
        {"$dim": 0},
        {"$dim": 2},
        {"$dim": -1},
        {"$dim": True},
        {"$dim": None},
        {"$dtype": "float33"},
        {"$dtype": []},
        {"$float": "abc"},
        {"$float": [1]},
        {"$bytes": "é"},
        {"$bytes": "a"},
        {"$bytes": 3},
        {"$array": []},
        {"$array": ["float32", [2], ""]},
        {"$array": ["float32", [-1], ""]},
        {"$array": ["float32", [-1, -1], "AAAAAA=="]},
        {"$array": ["float32", [2**40], ""]},
        {"$array": ["float32", ["2"], ""]},
        {"$array": ["float32", [1.5], ""]},
        {"$array": ["float32", "ab", ""]},
        {"$array": ["float32", [0] * 100, ""]},
        {"$array": ["string", [2], ["a"]]},
        {"$array": ["string", [1], 3]},
        {"$array": ["object", [1], ""]},
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_what_encode_does_not_write_is_refused(value: Any) -> None:
    with pytest.raises(CorruptEngine, match="unreadable record"):
        decode(value, SIZES)


def test_deep_values_are_refused() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(CorruptEngine, match="nested too deeply"):
        decode(value)
    value = {"$dim": 1}
    for _ in range(199):
        value = [value]
    decode(value, SIZES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text("$ndim()", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                "$record $map $dim $dtype $float $bytes $array name shape steps".split()
            ),
            inner | st.sampled_from(["Program", "TensorSpec", "Bind", "float32", "AAAA"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(value=JSON)
def test_any_json_gives_values_or_is_refused(value: Any) -> None:
    try:
        decode(value, SIZES)
    except CorruptEngine:
        return


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: its container and the key in it."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    inner = [part for _, part in pairs if isinstance(part, dict | list)]
    return [(value, key) for key, _ in pairs] + [leaf for part in inner for leaf in _leaves(part)]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_forged_program_is_refused_or_well_formed(data: st.DataObject) -> None:
    """What passes can be looked through by the checker, which may refuse it."""
    document = encoded(everything())
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(_leaves(document)))
        container[key] = data.draw(
            st.none() | st.integers(-2, 2) | st.sampled_from(["x", "n", "", [], {}, [None], 1.5])
        )
    try:
        program = decode(document[0], read_dims(document[1]))
        if isinstance(program, Program):
            check_program(program, {}, {"abc": ["stage_0"]})
    except (CorruptEngine, ValueError):  # ValueError: of read_dims alone
        return
