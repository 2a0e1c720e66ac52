"""Runs small models after public bug reports, whose folder lies outside of the repository.

Input -> Output: folders with a model, feeds of each run of one engine, and what is expected
(``values``, ``refuse`` or ``survive``) -> passed or a failed assertion.
Not here: our own graphs of the same kinds of fault (test_fault_kinds).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tilewright as tw
from conftest import find_assets
from tilewright.core.dtypes import BY_CODE
from tilewright.core.errors import UserError

pytestmark = pytest.mark.assets

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One folder of the collection."""

    folder: Path
    expects: str
    kind: str
    rtol: float
    atol: float
    bit_exact: bool
    model: Path
    runs: int

    def arrays(self, role: str, run: int) -> dict[str, Array]:
        """Inputs (``in``) or expected outputs (``out``) of one run."""
        path = self.folder / f"{role}_{run}.npz"
        if not path.exists():
            return {}
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}


def _read(folder: Path) -> Case:
    fields = json.loads((folder / "case.json").read_text())
    return Case(
        folder=folder,
        expects=fields["expects"],
        kind=fields["kind"],
        rtol=fields["rtol"],
        atol=fields["atol"],
        bit_exact=fields["bit_exact"],
        model=folder / fields["model"],
        runs=fields["runs"],
    )


def _cases() -> list[Any]:
    assets = find_assets()
    root = assets / "cases" if assets is not None else None
    if root is None or not root.is_dir():
        return [pytest.param(None, id="none")]
    folders = sorted(path.parent for path in root.glob("*/case.json"))
    return [pytest.param(_read(folder), id=folder.name) for folder in folders]


def _run_all(case: Case, verify: bool) -> list[tuple[dict[str, Array], dict[str, Array]]]:
    """Runs one engine on all feeds; pairs of expected and given outputs, and inputs unchanged."""
    engine = tw.compile(str(case.model), verify=verify, threads=2, cache=None)
    feeds = [case.arrays("in", run) for run in range(case.runs)]
    before = [{name: array.copy() for name, array in feed.items()} for feed in feeds]
    results = [engine.run(_typed(engine, feed)) for feed in feeds]
    for feed, copy in zip(feeds, before, strict=True):
        for name, array in feed.items():
            np.testing.assert_array_equal(_bits(array), _bits(copy[name]), f"input {name} changed")
    return [(case.arrays("out", run), results[run]) for run in range(case.runs)]


def _typed(engine: Any, feed: dict[str, Array]) -> dict[str, Array]:
    """npz files hold small floats as raw bytes; the engine's declaration says what they are."""
    kinds = {spec.name: spec.dtype.numpy for spec in engine.inputs}
    return {
        name: array.view(kinds[name]) if array.dtype.kind == "V" and name in kinds else array
        for name, array in feed.items()
    }


def _bits(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat if flat.dtype == object else flat.view(np.uint8)


def _declared(case: Case) -> dict[str, Any]:
    """The element type of each output, as the model file states it."""
    graph = onnx.load(str(case.model), load_external_data=False).graph
    return {value.name: BY_CODE[value.type.tensor_type.elem_type].numpy for value in graph.output}


def _compare(case: Case, expected: dict[str, Array], given: dict[str, Array]) -> None:
    """Expected floats are float64; their type is the one that the model declares."""
    declared = _declared(case)
    assert set(expected) == set(given) == set(declared)
    for name, want in expected.items():
        got = np.asarray(given[name])
        assert got.dtype == declared[name], name
        assert got.shape == want.shape, name
        if case.bit_exact:
            want = want.astype(got.dtype)
            # IEEE 754 leaves the sign and payload of a computed NaN open.
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want), name)
            number = ~np.isnan(want)
            np.testing.assert_array_equal(_bits(got[number]), _bits(want[number]), name)
        elif want.dtype.kind in "biuOUS":
            np.testing.assert_array_equal(got, want, name)
        else:
            kind = np.complex128 if want.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                got.astype(kind), want.astype(kind), rtol=case.rtol, atol=case.atol, err_msg=name
            )


@pytest.mark.parametrize("verify", [False, True], ids=["plain", "verified"])
@pytest.mark.parametrize("case", _cases())
def test_a_reported_fault_is_not_ours(case: Case | None, verify: bool) -> None:
    """Values, a refusal, or survival, as the case says."""
    if case is None:
        pytest.skip("the assets hold no cases")
    if case.expects == "refuse":
        with pytest.raises(UserError):
            _run_all(case, verify)
        return
    try:
        pairs = _run_all(case, verify)
    except UserError:
        if case.expects != "survive":
            raise
        return
    for expected, given in pairs if case.expects == "values" else ():
        _compare(case, expected, given)
