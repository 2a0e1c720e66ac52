"""Square matrix products of cuBLAS through ctypes, for measuring peaks.

Input -> Output: ``open_cublas()`` -> the library, or the reason why there is none.
Requires: a current CUDA context; device addresses of matrices of up to 8 bytes an element.
Not here: choosing kernels for models (codegen.library).
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.core.errors import BadTarget

_NAMES = ("libcublas.so.13", "libcublas.so.12")
_TRANSPOSE, _AS_IS = 1, 0
_DEFAULT_ALGORITHM = -1

# cudaDataType of library_types.h, and cublasComputeType of cublas_api.h.
_R_32F, _R_64F, _R_16F, _R_8I, _R_32I, _R_16BF = 0, 1, 2, 3, 10, 14
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32I, _COMPUTE_TF32 = 68, 70, 72, 77


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One kind of matrix product: types of factors and sums, and how it is computed."""

    dtype: str
    factor: int
    total: int
    compute: int
    scale: type[Any]


PRODUCTS = (
    Product(
        dtype="float64", factor=_R_64F, total=_R_64F, compute=_COMPUTE_64F, scale=ctypes.c_double
    ),
    Product(
        dtype="float32", factor=_R_32F, total=_R_32F, compute=_COMPUTE_32F, scale=ctypes.c_float
    ),
    Product(dtype="tf32", factor=_R_32F, total=_R_32F, compute=_COMPUTE_TF32, scale=ctypes.c_float),
    Product(
        dtype="float16", factor=_R_16F, total=_R_16F, compute=_COMPUTE_32F, scale=ctypes.c_float
    ),
    Product(
        dtype="bfloat16", factor=_R_16BF, total=_R_16BF, compute=_COMPUTE_32F, scale=ctypes.c_float
    ),
    Product(dtype="int8", factor=_R_8I, total=_R_32I, compute=_COMPUTE_32I, scale=ctypes.c_int32),
)


class Cublas:
    """The library."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @contextmanager
    def handle(self) -> Iterator[ctypes.c_void_p]:
        """A handle on the current context.

        Raises:
            BadTarget: cuBLAS cannot start.
        """
        made = ctypes.c_void_p()
        status = int(self._library.cublasCreate_v2(ctypes.byref(made)))
        if status:
            raise BadTarget(
                f"cublasCreate failed with status {status}",
                remedy="see whether enough GPU memory is free",
            )
        try:
            yield made
        finally:
            self._library.cublasDestroy_v2(made)

    def multiply(
        self, handle: ctypes.c_void_p, product: Product, size: int, a: int, b: int, c: int
    ) -> int:
        """Starts ``c = aᵀ b`` of square matrices and returns cuBLAS's status; 0 is success."""
        one, zero = product.scale(1), product.scale(0)
        shape = (ctypes.c_int(size),) * 3
        first = (ctypes.c_void_p(a), product.factor, size)
        second = (ctypes.c_void_p(b), product.factor, size)
        result = (ctypes.c_void_p(c), product.total, size)
        status = self._library.cublasGemmEx(
            handle,
            _TRANSPOSE,
            _AS_IS,
            *shape,
            ctypes.byref(one),
            *first,
            *second,
            ctypes.byref(zero),
            *result,
            product.compute,
            _DEFAULT_ALGORITHM,
        )
        return int(status)


def open_cublas() -> Cublas | str:
    """The library of the system or of NVIDIA's packages, or why there is none."""
    for name in (*_packaged(), *_NAMES):
        try:
            return Cublas(ctypes.CDLL(name))
        except OSError:
            continue
    return "cuBLAS cannot be loaded (package nvidia-cublas)"


def _packaged() -> list[str]:
    """Files of the packages, whose folder differs between versions."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return [
        str(file)
        for folder in folders
        for name in _NAMES
        for file in sorted(folder.glob(f"*/lib/{name}"))
    ]
