"""The operator families: importing this module fills ``LOWERINGS``."""

from __future__ import annotations

from tilewright.lower import (  # noqa: F401 - each import registers its operators
    activation,
    attention,
    causal_conv,
    channel_normalize,
    concat_split,
    conv,
    conv_transpose,
    convert,
    cumulative,
    deform,
    det,
    detection,
    einsum,
    elementwise,
    gather,
    generate,
    host_only,
    integer_conv,
    integer_matmul,
    integer_only,
    linear_attention,
    loss,
    matmul,
    movement,
    nonzero,
    normalize,
    optimizer,
    pool,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    rotary,
    scatter,
    signal,
    slice_pad,
    softmax,
    spatial,
    topk,
)
from tilewright.lower.registry import LOWERINGS

__all__ = ["LOWERINGS"]
