"""Decisions are appended in order."""

import dataclasses

import pytest

from tilewright.core.record import Decision, DecisionLog, Measurement


def test_decisions_keep_their_order() -> None:
    log = DecisionLog()
    log.add("fuse", "a -> b", "one kernel")
    log.add("tactic", "a", "scalar", (("vector", "one element"),))
    assert [entry.stage for entry in log.entries] == ["fuse", "tactic"]
    assert log.entries[1].rejected == (("vector", "one element"),)
    assert log.entries[0].predicted_us is None


def test_records_do_not_change() -> None:
    decision = Decision(stage="s", subject="x", chosen="y")
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.chosen = "z"  # type: ignore[misc]
    assert Measurement(subject="x", quantity="time", value=1.0, unit="us").samples == 1


def test_logs_do_not_share_entries() -> None:
    DecisionLog().add("s", "x", "y")
    assert DecisionLog().entries == []
