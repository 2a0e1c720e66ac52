"""Ways to run a kernel: the formulas' first, no two alike."""

from __future__ import annotations

import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.variants import variants
from unit.codegen.cuda.contractions import CONTRACTIONS, product


def test_the_formulas_choice_is_first_and_none_is_repeated() -> None:
    kernel = product(128, 768, 768)
    found = variants(kernel, (), 8)
    assert found[0].text == generate(kernel).text
    assert len({made.text for made in found}) == len(found) > 1
    assert found == variants(kernel, (), 8)
    assert variants(kernel, (), 1) == found[:1]
    assert {made.buffers for made in found} == {found[0].buffers}


def test_what_is_switched_off_stays_off() -> None:
    found = variants(product(128, 768, 768), ("tensor_core",), 8)
    assert not any("tensor_core" in stage.tactic for made in found for stage in made.stages)


@pytest.mark.parametrize("name", list(CONTRACTIONS)[:6])
def test_tactics_tell_them_apart(name: str) -> None:
    found = variants(CONTRACTIONS[name], (), 8)
    tactics = [tuple(stage.tactic for stage in made.stages) for made in found]
    assert len(set(tactics)) == len(tactics)
