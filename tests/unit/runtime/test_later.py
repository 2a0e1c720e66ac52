"""Items that are made when someone looks at them."""

from __future__ import annotations

import pytest

from tilewright.runtime.later import LaterMapping, LaterSequence


def test_a_sequence_is_made_once_and_only_when_it_is_asked() -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return [3, 4, 5]

    found = LaterSequence(make)
    assert not made
    assert (list(found), len(found), found[1], found[1:]) == ([3, 4, 5], 3, 4, [4, 5])
    assert made == [1]


def test_values_of_a_mapping_are_made_of_their_names() -> None:
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return name.upper()

    found = LaterMapping(["a", "b"], make)
    assert (list(found), len(found), "b" in found, made) == (["a", "b"], 2, True, [])
    assert (found["b"], made) == ("B", ["b"])
    assert dict(found) == {"a": "A", "b": "B"}
    with pytest.raises(KeyError):
        found["c"]
