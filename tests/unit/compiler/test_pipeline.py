"""The stages in order, and what of the model reaches the engine."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.target import known_targets, named_target
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import make_options
from tilewright.compiler.pipeline import Build, needs_expansion, support_texts
from tilewright.core.errors import BadOption
from tilewright.lower.families import LOWERINGS
from unit.compiler.models import compiled, network, normal
from unit.graph.models import model_of, node, tensor_info


def test_only_constants_that_are_read_reach_the_engine() -> None:
    model = model_of(
        [
            node("Add", ["x", "used"], ["a"], name="add"),
            node("Reshape", ["a", "shape"], ["y"], name="reshape"),
        ],
        inputs=[tensor_info("x", ("n", 4))],
        weights={"used": normal(4), "unused": normal(1000), "shape": np.array([-1])},
        opset=21,
    )
    engine = compiled(model)
    assert set(engine._parts.constants) == {"used"}


def test_stages_are_timed_and_reported_in_order() -> None:
    told: list[str] = []
    engine = compiled(network(), progress=lambda stage, *_: told.append(stage))
    order = list(dict.fromkeys(told))
    wanted = ["import", "graph passes", "shapes", "lower", "fuse", "layout", "generate code"]
    assert [stage for stage in order if stage in wanted] == wanted
    assert order[-2:] == ["compile kernels", "verify"]
    assert set(order) <= set(engine.summary["seconds"])
    assert all(seconds >= 0 for seconds in engine.summary["seconds"].values())


def test_a_stage_is_timed_even_when_it_runs_twice() -> None:
    options = make_options(
        target="cpu", cpu=None, precision="fp32", threads=1, dims=None, require=None
    )
    build = Build(options=options, cache=ObjectCache(None))
    for _ in range(2):
        with build.stage("again"):
            pass
    assert list(build.times_s) == ["again"]


def test_operators_with_a_kernel_or_a_host_step_are_not_expanded() -> None:
    assert not any(needs_expansion(*key) for key in LOWERINGS)
    assert not needs_expansion("", "Loop")
    assert not needs_expansion("", "Unique")
    assert needs_expansion("", "NoSuchOperator")


def test_ranges_of_dims_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(BadOption, match="unknown dims btch") as error:
        compiled(network(), dims={"btch": (1, 8)})
    assert "batch, height" in str(error.value)


def test_drivers_differ_by_processor_only() -> None:
    texts = {name: support_texts(named_target(name)) for name in known_targets()}
    assert all(text == support_texts(named_target(name)) for name, text in texts.items())
    assert texts["haswell"] != texts["neoverse-v1"]
