"""Element types against ONNX and NumPy."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tilewright.core.dtypes import ALL, BY_CODE, BY_NAME, STRING, DType, Kind, from_numpy

_RENAMED = {"double": "float64", "float": "float32", "float8e4m3fn": "float8_e4m3fn"}


def test_codes_and_names_are_those_of_onnx() -> None:
    for dtype in ALL:
        name = TensorProto.DataType.Name(dtype.code).lower().replace("_", "")
        own = dtype.name.replace("_", "")
        assert _RENAMED.get(name, name).replace("_", "") == own


def test_every_type_of_onnx_is_here_but_six_bit_floats() -> None:
    """Those two came with ONNX 1.23; no operator of opset 26 takes them."""
    missing = ("UNDEFINED", "FLOAT6E2M3", "FLOAT6E3M2")
    known = {code for name, code in TensorProto.DataType.items() if name not in missing}
    assert known == set(BY_CODE)
    assert len(BY_NAME) == len(BY_CODE) == len(ALL)


@pytest.mark.parametrize("dtype", [d for d in ALL if d is not STRING], ids=str)
def test_numpy_types_are_those_of_onnx_and_lead_back(dtype: DType) -> None:
    assert from_numpy(dtype.numpy) is dtype
    assert dtype.numpy == onnx.helper.tensor_dtype_to_np_dtype(dtype.code)
    assert dtype.numpy.itemsize == dtype.storage_bytes


def test_strings_have_no_numpy_type_of_their_own() -> None:
    for array in (np.array(["a"]), np.array([b"a"]), np.array(["a"], dtype=object)):
        assert from_numpy(array.dtype) is STRING


def test_byte_order_does_not_matter() -> None:
    assert from_numpy(np.dtype(">f4")).name == "float32"


@pytest.mark.parametrize("dtype", ["datetime64[s]", "V3", [("a", "f4")]])
def test_types_that_onnx_lacks_are_refused(dtype: object) -> None:
    with pytest.raises(KeyError):
        from_numpy(np.dtype(dtype))  # type: ignore[call-overload]


def test_kinds() -> None:
    signed = {d.name for d in ALL if d.is_signed}
    assert {"int8", "float32", "complex64", "int4"} <= signed
    assert not {"uint8", "bool", "string"} & signed
    assert BY_NAME["bfloat16"].is_float
    assert BY_NAME["uint2"].is_integer
    assert BY_NAME["bool"].kind is Kind.BOOL
    assert not BY_NAME["bool"].is_integer
    assert np.dtype(ml_dtypes.bfloat16) == BY_NAME["bfloat16"].numpy
