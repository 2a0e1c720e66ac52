"""What each node of a model takes, in float and on integers, by the clock.

Input -> Output: an engine's profile and where its nodes went -> microseconds by node of the model.
Guarantees: the times of all nodes and the rest add up to a run; a kernel that computes several
nodes is shared out evenly.
Not here: which precision a node gets (search).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimes:
    """Of one run.

    Attributes:
        by_node: microseconds of the nodes that were asked for.
        total_us: of all kernels and host steps.
    """

    by_node: Mapping[str, float]
    total_us: float


def node_times(engine: Engine, feeds: Mapping[str, Any], nodes: Collection[str]) -> NodeTimes:
    """Profiles an engine.

    Args:
        engine: of a model that has the nodes, perhaps among others.
        feeds: of one run.
        nodes: names in that model.
    """
    profile = engine.profile(feeds)
    owners: dict[str, list[str]] = {}
    for placement in engine.placements:
        owner = _owner(placement.node, nodes)
        if owner is not None:
            for source in placement.computed_by:
                owners.setdefault(source, []).append(owner)
    found = dict.fromkeys(nodes, 0.0)
    for step in (*profile.kernels, *profile.host):
        sharing = list(dict.fromkeys(n for source in step.sources for n in owners.get(source, ())))
        for node in sharing:
            found[node] += step.best_us / len(sharing)
    best_us = sum(step.best_us for step in (*profile.kernels, *profile.host))
    return NodeTimes(by_node=found, total_us=best_us)


def _owner(name: str, nodes: Collection[str]) -> str | None:
    """The node itself, or the one that an inserted quantiser is for (``{node}/QuantizeLinear``)."""
    if name in nodes:
        return name
    reader = name.rpartition("/")[0]
    return reader if reader in nodes else None
