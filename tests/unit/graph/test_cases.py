"""Malformed models from outside the repository are all refused at import or by the reference."""

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.errors import UserError
from tilewright.graph.load import load_model, view
from tilewright.graph.normalize import normalize
from tilewright.graph.reference import evaluate_graph

# Feeds and the memory of results are checked by the engine, not by the reference.
_RUNTIME_CHECKS = ("feed_of_the_wrong_shape", "resize_to_an_impossible_size")


@pytest.mark.assets
def test_cases_give_their_values_or_are_refused(assets: Path) -> None:
    folders = sorted(path.parent for path in (assets / "cases").glob("*/case.json"))
    folders = [folder for folder in folders if folder.name not in _RUNTIME_CHECKS]
    assert folders
    wrong: list[str] = []
    for folder in folders:
        case = json.loads((folder / "case.json").read_text())
        try:
            agrees = _agrees(folder, case)
        except UserError:
            agrees = case["expects"] != "values"
        if not agrees:
            wrong.append(folder.name)
    assert not wrong


def _agrees(folder: Path, case: dict[str, object]) -> bool:
    model = load_model(folder / str(case["model"]))
    normalize(model)
    for run in range(int(str(case["runs"]))):
        result = evaluate_graph(view(model), dict(np.load(folder / f"in_{run}.npz")))
        if case["expects"] != "values":
            return case["expects"] == "survive"
        for name, expected in np.load(folder / f"out_{run}.npz").items():
            given = result[name]
            if not isinstance(given, np.ndarray) or given.shape != expected.shape:
                return False
            tolerance = {"rtol": float(str(case["rtol"])), "atol": float(str(case["atol"]))}
            if not np.allclose(given, expected, equal_nan=True, **tolerance):
                return False
    return True
