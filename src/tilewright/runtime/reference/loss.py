"""Negative log likelihood and softmax cross entropy.

Guarantees: class weights, ignore_index and all three reductions; a mean is weighted."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.normalization import log_softmax
from tilewright.runtime.reference.registry import Call, Outputs, operator


def _loss(call: Call, log_prob: Array, target: Array, weight: Array | None) -> Array:
    classes = log_prob.shape[1]
    if target.shape != (log_prob.shape[0], *log_prob.shape[2:]):
        raise call.error(f"target {target.shape} does not fit scores {log_prob.shape}")
    ignored = call.get("ignore_index")
    used = np.ones(target.shape, bool) if ignored is None else target != int(ignored)
    if np.any(used & ((target < 0) | (target >= classes))):
        raise call.error(f"a target class is outside [0, {classes})")
    safe = np.where(used, target, 0).astype(np.int64)
    picked = np.take_along_axis(log_prob, safe[:, None], axis=1)[:, 0]
    per_class = np.ones(classes, log_prob.dtype) if weight is None else weight
    factor = np.where(used, per_class[safe], 0).astype(log_prob.dtype)
    losses = np.where(used, -picked * factor, 0).astype(log_prob.dtype)
    reduction = call.choice("reduction", "mean", ("none", "mean", "sum"))
    if reduction == "none":
        return losses
    total = losses.sum()
    return np.asarray(total if reduction == "sum" else total / factor.sum())


@operator("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    call: Call, log_prob: Array, target: Array, weight: Array | None = None
) -> Outputs:
    return (_loss(call, log_prob, target, weight),)


@operator("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    call: Call, scores: Array, labels: Array, weight: Array | None = None
) -> Outputs:
    log_prob = log_softmax(scores, 1)
    return _loss(call, log_prob, labels, weight), log_prob
