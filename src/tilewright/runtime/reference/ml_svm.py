"""Support vector machines of ai.onnx.ml.

Source: LIBSVM (one-against-one voting, pairwise coupling of probabilities)."""

from __future__ import annotations

import itertools

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.math import sigmoid
from tilewright.runtime.reference.ml import DOMAIN, float32, labels, post_transform
from tilewright.runtime.reference.registry import Call, Outputs, operator

_COUPLING_STEPS = 100


def _kernel(call: Call, x: Array, vectors: Array) -> Array:
    """Kernel values [rows of x, vectors]."""
    kind = call.choice("kernel_type", "LINEAR", ("LINEAR", "POLY", "RBF", "SIGMOID"))
    gamma, coef0, degree = call.numbers("kernel_params") or (0.0, 0.0, 0.0)
    if kind == "RBF":
        squares = np.sum(np.square(x[:, None, :] - vectors[None]), axis=2)
        return np.asarray(np.exp(-gamma * squares))
    dots = x @ vectors.T
    if kind == "LINEAR":
        return dots
    dots = gamma * dots + coef0
    return np.asarray(dots**degree if kind == "POLY" else np.tanh(dots))


def _array(call: Call, name: str) -> Array:
    return np.array(call.numbers(name) or (), np.float64)


@operator("SVMRegressor", domain=DOMAIN)
def svm_regressor(call: Call, x: Array) -> Outputs:
    data, count = x.astype(np.float64), call.integer("n_supports", 0)
    weights, rho = _array(call, "coefficients"), _array(call, "rho")
    if count:
        vectors = _array(call, "support_vectors").reshape(count, -1)
        scores = _kernel(call, data, vectors) @ weights + rho[0]
    else:
        scores = data @ weights + rho[0]
    if call.integer("one_class", 0):
        scores = np.where(scores > 0, 1.0, -1.0)
    return (float32(call, post_transform(call, scores[:, None])),)


def _pairs(call: Call, x: Array, sizes: tuple[int, ...]) -> Array:
    """Decision values of every pair of classes, [N, pairs]."""
    total, classes = sum(sizes), len(sizes)
    kernel = _kernel(call, x, _array(call, "support_vectors").reshape(total, -1))
    weights, rho = _array(call, "coefficients").reshape(classes - 1, total), _array(call, "rho")
    first = np.cumsum((0, *sizes))
    columns = []
    for pair, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        at_i, at_j = slice(first[i], first[i + 1]), slice(first[j], first[j + 1])
        value = kernel[:, at_i] @ weights[j - 1, at_i] + kernel[:, at_j] @ weights[i, at_j]
        columns.append(value + rho[pair])
    return np.stack(columns, axis=1)


def _coupled(pairwise: Array) -> Array:
    """Class probabilities from pairwise ones r[i, j] (Wu, Lin and Weng 2004, method 2)."""
    count = pairwise.shape[0]
    off = pairwise * (1 - np.eye(count))
    q = -off.T * off
    np.fill_diagonal(q, np.sum(off.T**2, axis=1))
    p = np.full(count, 1 / count)
    for _ in range(max(_COUPLING_STEPS, count)):
        qp = q @ p
        total = p @ qp
        if np.max(np.abs(qp - total)) < 0.005 / count:
            break
        for t in range(count):
            change = (total - qp[t]) / q[t, t]
            p[t] += change
            total = (total + change * (change * q[t, t] + 2 * qp[t])) / (1 + change) ** 2
            qp = (qp + change * q[t]) / (1 + change)
            p /= 1 + change
    return p


def _probabilities(call: Call, decisions: Array, classes: int) -> Array:
    slopes, shifts = _array(call, "prob_a"), _array(call, "prob_b")
    likely = np.clip(sigmoid(-(decisions * slopes + shifts)), 1e-7, 1 - 1e-7)
    result = np.empty((decisions.shape[0], classes))
    upper = np.triu_indices(classes, 1)
    for row, values in enumerate(likely):
        pairwise = np.zeros((classes, classes))
        pairwise[upper] = values
        pairwise.T[upper] = 1 - values
        result[row] = _coupled(pairwise)
    return result


@operator("SVMClassifier", domain=DOMAIN)
def svm_classifier(call: Call, x: Array) -> Outputs:
    names = labels(call, "classlabels_ints", "classlabels_strings")
    if names is None:
        raise call.error("class labels are missing")
    data, sizes = x.astype(np.float64), call.integers("vectors_per_class") or ()
    if not sum(sizes):
        weights = _array(call, "coefficients").reshape(names.size, -1)
        scores = data @ weights.T + _array(call, "rho")[:1]
        chosen = np.argmax(scores, axis=1)
        return names[chosen], float32(call, post_transform(call, scores))
    decisions = _pairs(call, data, sizes)
    votes = np.zeros((x.shape[0], len(sizes)), np.int64)
    for pair, (i, j) in enumerate(itertools.combinations(range(len(sizes)), 2)):
        votes[:, i] += decisions[:, pair] > 0
        votes[:, j] += decisions[:, pair] <= 0
    chosen = np.argmax(votes, axis=1)
    if call.numbers("prob_a"):
        scores = _probabilities(call, decisions, len(sizes))
        return names[chosen], float32(call, scores)
    scores = np.concatenate([-decisions, decisions], axis=1) if len(sizes) == 2 else decisions
    return names[chosen], float32(call, post_transform(call, scores))
