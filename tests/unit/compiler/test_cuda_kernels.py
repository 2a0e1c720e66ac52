"""Calls of kernels for GPUs: the type that bounds them."""

from __future__ import annotations

import pytest

from tilewright.compiler.cuda_kernels import CudaStore
from tilewright.core.dtypes import FLOAT16, FLOAT32, DType
from tilewright.core.record import DecisionLog
from tilewright.hw.lookup import find_board
from tilewright.runtime.explain.floors import Traffic, board_floors
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda.contractions import product


def test_products_on_tensor_cores_are_bound_by_their_peak() -> None:
    store = CudaStore(DecisionLog())
    call = store.call(product(256, 256, 256))
    assert call.tactic.startswith("tensor_core")
    assert call.dtype == "float16"
    traffic = Traffic(weights=0, reads=0, writes=0)
    bound = board_floors(find_board("H200"), 0).bound(2e15, call.dtype, traffic)
    assert bound is not None
    assert bound.flops_per_s > 9e14  # 989 TFLOP/s by the datasheet; those of float32 are 67


def test_products_without_tensor_cores_are_not() -> None:
    store = CudaStore(DecisionLog(), disabled=("tensor_core",))
    assert store.call(product(256, 256, 256)).dtype == "float32"


@pytest.mark.parametrize("inner", [FLOAT16, FLOAT32])
def test_half_precision_outside_of_tensor_cores_counts_as_float32(inner: DType) -> None:
    x = buffer("x", 4096, dtype=FLOAT16)
    kernel = pure(
        buffer("out", 4096, dtype=FLOAT16),
        (x,),
        lambda i: (x[i].cast(inner) * x[i].cast(inner)).cast(FLOAT16),
    )
    call = CudaStore(DecisionLog()).call(kernel)
    assert not call.tactic.startswith("tensor_core")
    assert call.dtype == "float32"
