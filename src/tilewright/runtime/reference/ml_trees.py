"""Tree ensembles of ai.onnx.ml.

Guarantees: all rows walk a tree together, one level a step; a missing value (NaN) follows the
node's flag; a malformed tree (a cycle, a missing node) is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.ml import DOMAIN, float32, labels, post_transform
from tilewright.runtime.reference.registry import Call, Outputs, operator

_RULES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_COMPARE: tuple[Callable[[Any, Any], Any], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
_MEMBER = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forest:
    """Nodes of all trees; a negative child is leaf number -child - 1."""

    feature: Array
    split: Array
    mode: Array
    yes: Array
    no: Array
    missing: Array
    members: dict[int, Array]
    roots: tuple[int, ...]


def _walk(call: Call, forest: _Forest, x: Array, root: int) -> Array:
    """The leaf that every row of x reaches."""
    at = np.full(x.shape[0], root, np.int64)
    for _ in range(forest.feature.size + 1):
        active = np.flatnonzero(at >= 0)
        if not active.size:
            return -at - 1
        node = at[active]
        value = x[active, forest.feature[node]]
        taken = np.zeros(active.size, bool)
        for mode in np.unique(forest.mode[node]).tolist():
            here = forest.mode[node] == mode
            if mode == _MEMBER:
                taken[here] = [
                    bool(np.any(forest.members[n] == v))
                    for n, v in zip(node[here].tolist(), value[here], strict=True)
                ]
            else:
                taken[here] = _COMPARE[mode](value[here], forest.split[node[here]])
        taken |= np.isnan(value) & forest.missing[node]
        at[active] = np.where(taken, forest.yes[node], forest.no[node])
    raise call.error("a tree contains a cycle")


def _integers(call: Call, name: str) -> Array:
    value = call.integers(name)
    if value is None:
        raise call.error(f"attribute {name!r} is required")
    return np.array(value, np.int64)


def _missing(call: Call, count: int) -> Array:
    flags = call.integers("nodes_missing_value_tracks_true")
    return np.zeros(count, bool) if not flags else np.array(flags, bool)


@operator("TreeEnsemble", domain=DOMAIN, since=5)
def tree_ensemble(call: Call, x: Array) -> Outputs:
    modes = np.asarray(call.get("nodes_modes"), np.int64).ravel()
    branches = []
    for side in ("true", "false"):
        target = _integers(call, f"nodes_{side}nodeids")
        leaf = _integers(call, f"nodes_{side}leafs").astype(bool)
        branches.append(np.where(leaf, -target - 1, target))
    members: dict[int, Array] = {}
    listed = call.get("membership_values")
    if listed is not None:
        values = np.asarray(listed).ravel()
        ends = np.flatnonzero(np.isnan(values))
        groups = np.split(values, ends + 1)
        nodes = np.flatnonzero(modes == _MEMBER).tolist()
        members = {n: g[~np.isnan(g)] for n, g in zip(nodes, groups, strict=False)}
    forest = _Forest(
        feature=_integers(call, "nodes_featureids"),
        mode=modes,
        yes=branches[0],
        no=branches[1],
        split=np.asarray(call.get("nodes_splits")).ravel(),
        missing=_missing(call, modes.size),
        members=members,
        roots=tuple(_integers(call, "tree_roots").tolist()),
    )
    targets, weights = (
        _integers(call, "leaf_targetids"),
        np.asarray(call.get("leaf_weights")).ravel(),
    )
    votes = [_walk(call, forest, x, root) for root in forest.roots]
    how = ("AVERAGE", "SUM", "MIN", "MAX")[call.integer("aggregate_function", 1)]
    places = [[(targets[leaf], weights[leaf])] for leaf in votes]
    names = call.integer("post_transform", 0)
    kinds = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    scores = _aggregate(x.shape[0], call.integer("n_targets"), places, how, x.dtype)
    renamed = Call(
        domain=call.domain,
        op_type=call.op_type,
        opset=call.opset,
        attributes={"post_transform": kinds[names]},
    )
    return (post_transform(renamed, scores).astype(x.dtype),)


def _aggregate(
    rows: int, targets: int, trees: list[list[tuple[Array, Array]]], how: str, dtype: np.dtype[Any]
) -> Array:
    """Combine (target, weight) votes, one list of vote arrays a tree, into [rows, targets]."""
    function = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
    start = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
    result = np.full((rows, targets), start, np.float64)
    every = np.arange(rows)
    for votes in trees:
        for target, weight in votes:
            valid = target >= 0
            function.at(result, (every[valid], target[valid]), weight[valid].astype(np.float64))
    result = np.where(np.isinf(result), 0, result)
    return (result / max(1, len(trees)) if how == "AVERAGE" else result).astype(dtype)


def _classic(call: Call, x: Array, prefix: str, targets: int) -> Array:
    """Scores [N, targets] of the older operators, whose leaves are nodes."""
    tree, node = _integers(call, "nodes_treeids"), _integers(call, "nodes_nodeids")
    place = {key: i for i, key in enumerate(zip(tree.tolist(), node.tolist(), strict=True))}
    modes = call.texts("nodes_modes") or ()
    leaf = np.array([mode == "LEAF" for mode in modes])
    children = []
    for side in ("true", "false"):
        ids = _integers(call, f"nodes_{side}nodeids").tolist()
        target = [
            -1 if end else place[t, i] for t, i, end in zip(tree.tolist(), ids, leaf, strict=True)
        ]
        children.append(np.array([-t - 1 if t >= 0 and leaf[t] else t for t in target], np.int64))
    values = _either(call, "nodes_values")
    forest = _Forest(
        feature=_integers(call, "nodes_featureids"),
        split=values,
        mode=np.array([0 if mode == "LEAF" else _RULES.index(mode) for mode in modes]),
        yes=children[0],
        no=children[1],
        missing=_missing(call, len(modes)),
        members={},
        roots=tuple(int(np.flatnonzero(tree == t)[0]) for t in np.unique(tree)),
    )
    weights, ids = _either(call, f"{prefix}_weights"), _integers(call, f"{prefix}_ids").tolist()
    owners = zip(
        _integers(call, f"{prefix}_treeids").tolist(),
        _integers(call, f"{prefix}_nodeids").tolist(),
        strict=True,
    )
    votes_of: dict[int, list[int]] = {}
    for vote, owner in enumerate(owners):
        votes_of.setdefault(place[owner], []).append(vote)
    trees = []
    for root in forest.roots:
        start = -root - 1 if leaf[root] else root
        reached = _walk(call, forest, x, start).tolist()
        most = max((len(votes_of.get(at, ())) for at in reached), default=0)
        votes = []
        for turn in range(most):
            chosen = [votes_of.get(at, [])[turn : turn + 1] for at in reached]
            votes.append(
                (
                    np.array([ids[c[0]] if c else -1 for c in chosen], np.int64),
                    np.array([weights[c[0]] if c else 0 for c in chosen]),
                )
            )
        trees.append(votes)
    how = call.text("aggregate_function", "SUM")
    scores = _aggregate(x.shape[0], targets, trees, how, np.dtype(np.float64))
    base = _either(call, "base_values", required=False)
    return scores + base if base.size else scores


def _either(call: Call, name: str, *, required: bool = True) -> Array:
    """A FLOATS attribute or its double-precision `_as_tensor` form, as float64."""
    tensor = call.get(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(tensor, np.float64).ravel()
    values = call.numbers(name)
    if values is None and required:
        raise call.error(f"attribute {name!r} is required")
    return np.array(values or (), np.float64)


@operator("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(call: Call, x: Array) -> Outputs:
    scores = _classic(call, x, "target", call.integer("n_targets"))
    return (float32(call, post_transform(call, scores)),)


@operator("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(call: Call, x: Array) -> Outputs:
    names = labels(call, "classlabels_int64s", "classlabels_strings")
    if names is None:
        raise call.error("class labels are missing")
    scores = _classic(call, x, "class", max(names.size, 1))
    used = set(call.integers("class_ids") or ())
    if len(used) == 1 and names.size <= 2:
        # One set of votes for two classes: the votes speak for the second class.
        positive = scores[:, min(used)]
        plain = call.text("post_transform", "NONE") in ("NONE", "PROBIT")
        negative = 1 - positive if plain else -positive
        scores = np.stack([negative, positive], axis=1)
        weights = _either(call, "class_weights")
        limit = 0.5 if plain and np.all(weights >= 0) else 0.0
        chosen = (positive > limit).astype(np.int64)
        if names.size == 1:
            names = np.array([0, names[0]], names.dtype)
    else:
        chosen = np.argmax(scores, axis=1)
    return names[chosen], float32(call, post_transform(call, scores))
