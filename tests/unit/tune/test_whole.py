"""Changes that are faster together are kept, found by halving."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.tune import whole


def _timer(worth: dict[str, float], tried: list[str]) -> Callable[[Sequence[str]], float]:
    def ratio(changes: Sequence[str]) -> float:
        tried.append("".join(changes))
        return 1.0 + sum(worth[name] for name in changes)

    return ratio


def faster_together(
    changes: Sequence[str], ratio: Callable[[Sequence[str]], float], trials: int = 16
) -> tuple[str, ...]:
    return whole.faster_together(changes, ratio, lambda _: 0.9, trials)


def test_what_is_kept_has_to_be_faster_when_timed_afresh() -> None:
    afresh: list[Sequence[str]] = []

    def again(changes: Sequence[str]) -> float:
        afresh.append(changes)
        return 0.996

    assert whole.faster_together("ab", _timer({"a": -0.1, "b": 0.2}, []), again) == ()
    assert afresh == [("a",)]
    assert whole.faster_together("ab", _timer({"a": 0.1, "b": 0.2}, []), again) == ()
    assert afresh == [("a",)]


def test_all_are_kept_where_they_are_faster_together() -> None:
    tried: list[str] = []
    assert faster_together("abc", _timer({"a": -0.1, "b": 0.05, "c": 0}, tried)) == tuple("abc")
    assert tried == ["abc"]


def test_what_makes_a_run_slower_is_found_by_halving() -> None:
    tried: list[str] = []
    worth = {"a": -0.1, "b": -0.1, "c": 0.9, "d": -0.1}
    assert faster_together("abcd", _timer(worth, tried)) == tuple("abd")
    assert tried == ["abcd", "ab", "abcd", "abc", "abd"]


def test_nothing_is_kept_where_nothing_helps() -> None:
    assert faster_together("ab", _timer({"a": 0.1, "b": 0.0}, [])) == ()
    assert faster_together("", _timer({}, [])) == ()


def test_what_only_noise_makes_faster_is_not_kept() -> None:
    noise = iter([-0.003, 0.002, -0.004, -0.001, -0.0045, 0.003] * 3)
    assert faster_together("abcdefgh", lambda _: 1.0 + next(noise)) == ()
    # Upon what was kept, too: c saves 0.3 % of the rest.
    worth = {"a": -0.1, "b": 0.2, "c": -0.003, "d": 0.2}
    assert faster_together("abcd", _timer(worth, [])) == ("a",)


def test_trials_are_bounded() -> None:
    tried: list[str] = []
    worth = dict.fromkeys("abcdefgh", 0.1) | {"h": -0.1}
    assert faster_together("abcdefgh", _timer(worth, tried), trials=5) == ()
    assert len(tried) == 5
