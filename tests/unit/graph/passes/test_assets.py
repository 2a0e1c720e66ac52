"""The passes on models outside of the repository: small ones after bug reports, and real ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from conftest import find_assets
from tilewright.graph.build_view import view
from tilewright.graph.load import load_model
from tilewright.graph.normalize import normalize
from tilewright.graph.passes.compare import same
from tilewright.graph.passes.standard import run_passes
from tilewright.graph.reference import evaluate_graph

pytestmark = pytest.mark.assets


def _cases() -> list[Path]:
    assets = find_assets()
    files = sorted(assets.glob("cases/*/case.json")) if assets is not None else []
    return [file.parent for file in files if json.loads(file.read_text())["expects"] == "values"]


@pytest.mark.parametrize("folder", _cases(), ids=lambda folder: folder.name)
def test_values_stay_the_same(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    model = load_model(folder / case["model"])
    normalize(model)
    before = view(model)
    run_passes(model)
    after = view(model)
    for run in range(case["runs"]):
        with np.load(folder / f"in_{run}.npz") as data:
            feeds = {name: data[name] for name in data.files}
        for wide in (True, False):
            expected = evaluate_graph(before, feeds, wide=wide)
            found = evaluate_graph(after, feeds, wide=wide)
            tolerance = 1e-6 if wide else 1e-5
            assert all(same(expected[name], found[name], tolerance) for name in expected)
