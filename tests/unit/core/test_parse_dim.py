"""Text of dims: what is read, and what is refused at once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core import parse_dim
from tilewright.core.parse_dim import parse
from tilewright.core.shape import Dim

N, M = Dim.symbol("n"), Dim.symbol("m")


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("n", N),
        (" 2 * n + 3 ", 2 * N + 3),
        ("n - m - 1", N - M - 1),
        ("n*(m+1)", N * M + N),
        ("-n*-2", 2 * N),
        ("---n", -N),
        ("n//2%3", N // 2 % 3),
        ("floor(n/2)", N // 2),
        ("floor((n+1)/(m+2))", (N + 1) // (M + 2)),
        ("ceil(n/-2)", N.ceildiv(-2)),
        ("floor(n)", N),
        ("floordiv(n, 2)", N // 2),
        ("mod(n, m)", N % M),
        ("max(n, m, 3)", N.max(M).max(3)),
        ("min(n)", N),
        ("max+min", Dim.symbol("max") + Dim.symbol("min")),
        ("`two words`", Dim.symbol("two words")),
        ("`a``b`+1", Dim.symbol("a`b") + 1),
    ],
)
def test_forms_that_are_read(text: str, dim: Dim) -> None:
    assert parse(text) == dim


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "n m",
        "n+",
        "*n",
        "n/2",
        "floor(n/2",
        "floor(n/2/2)",
        "max(n, )",
        "max()",
        "(n, m)",
        "foo(n)",
        "n)",
        "`n",
        "n.m",
        "2n",
        "n[0]",
        "n ** 2",
        "é",
        "\x00",
    ],
)
def test_forms_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a dimension"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5_000 + "n" + ")" * 5_000,
        "floor(" * 500 + "n" + "/2)" * 500,
        "max(" * 1_000,
        "9" * 5_000,
        "*".join(["9" * 60] * 100),
        "*".join(["(a+b)"] * 300),
        "*".join([f"(a{k}+b{k})" for k in range(300)]),
        "+".join(f"s{k}" for k in range(3_000)),
        "*".join(f"s{k}" for k in range(3_000)),
        "max(" + ",".join(f"s{k}" for k in range(3_000)) + ")",
        "`" * 15_999,
        "n" * 1_000_000,
        "-" * 15_000,
    ],
    ids=lambda text: f"{text[:12]}...{len(text)}",
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"dimension|size|digits"):
        parse(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="nm0129+-*/%(), `floormaxi", max_size=40))
def test_any_text_gives_a_dim_or_a_value_error(text: str) -> None:
    try:
        dim = parse(text)
    except ValueError:
        return
    assert parse(str(dim)) == dim


def test_parts_that_texts_share_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of a deep network contain those of all layers before it."""
    text = "size_of_this_test"
    texts, read = list[str](), list[str]()
    for _ in range(20):
        text = f"floor(({text}+1)/2)"
        texts += [text, f"8*{text}+1"]
    arguments = parse_dim._Parser._arguments

    def counted(parser: Any, name: str) -> list[Dim]:
        if name:
            read.append(name)
        return arguments(parser, name)

    monkeypatch.setattr(parse_dim._Parser, "_arguments", counted)
    values = [parse(text).evaluate({"size_of_this_test": 5}) for text in texts]
    assert values[:4] == [3, 25, 2, 17]
    assert len(read) == 20


def test_what_was_read_before_changes_nothing() -> None:
    assert str(parse("floor(ab/2)")) == "floor(ab/2)"
    for text in ("floor(a b/2)", "3*floor(a b/2)", "*(2)", "2*%(3)", "`", "floor(`a/2)"):
        with pytest.raises(ValueError, match="not a dimension"):
            parse(text)
