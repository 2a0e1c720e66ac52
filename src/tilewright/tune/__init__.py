"""Schedules chosen by timing: search space, predictions, timing store, choice."""
