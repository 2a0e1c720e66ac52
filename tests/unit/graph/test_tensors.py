"""Weights: sizes are checked before allocation, external files stay in the model's folder."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.core.errors import InvalidModel
from tilewright.graph.load import load_model, view
from unit.graph.models import model_of, node, tensor_info


def model_with(tensor: onnx.TensorProto) -> onnx.ModelProto:
    tensor.name = "w"
    model = model_of([node("Identity", ["w"], ["y"])])
    model.graph.initializer.append(tensor)
    return model


def loaded(tensor: onnx.TensorProto) -> np.ndarray:
    return view(load_model(model_with(tensor))).initializers["w"]


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (TensorProto(data_type=1, dims=[-1], raw_data=b"1234"), "negative dimension"),
        (TensorProto(data_type=1, dims=[2], raw_data=b"1234"), "should hold 8 bytes"),
        (TensorProto(data_type=1, dims=[1], raw_data=b"12345678"), "should hold 4 bytes"),
        (TensorProto(data_type=1, dims=[2**40, 2**40], raw_data=b""), "impossible shape"),
        (TensorProto(data_type=1, dims=[0, 2**60], raw_data=b""), "impossible shape"),
        (TensorProto(data_type=1, dims=[2**33]), "float_data"),
        (TensorProto(data_type=1, dims=[2], float_data=[1.0]), "should hold 2 elements"),
        (TensorProto(data_type=7, dims=[1], float_data=[1.0]), "int64_data"),
        (TensorProto(data_type=0, dims=[1], raw_data=b"1"), "element type"),
        (TensorProto(data_type=99, dims=[1], raw_data=b"1"), "element type"),
        (TensorProto(data_type=8, dims=[2], string_data=[b"a"]), "should hold 2 strings"),
        (TensorProto(data_type=8, dims=[1], string_data=[b"\xff"]), "not UTF-8"),
        (TensorProto(data_type=22, dims=[3], raw_data=b"1"), "should hold 2 bytes"),
    ],
)
def test_weights_that_contradict_themselves_are_refused(
    tensor: onnx.TensorProto, says: str
) -> None:
    with pytest.raises(InvalidModel, match=says):
        load_model(model_with(tensor))


@pytest.mark.parametrize(
    "array",
    [
        np.asarray([[1.5, -2.0]], dtype=np.float32),
        np.asarray(3, dtype=np.int64),
        np.zeros((0, 3), dtype=np.float16),
        np.asarray([True, False]),
        np.asarray([1 + 2j], dtype=np.complex64),
        np.asarray([-8, 7, 3], dtype=ml_dtypes.int4),
        np.asarray([0, 15, 3], dtype=ml_dtypes.uint4),
        np.asarray([1.5, -6.0, 0.5], dtype=ml_dtypes.float4_e2m1fn),
        np.asarray([1.5, -3.0], dtype=ml_dtypes.bfloat16),
        np.asarray([1.5, -3.0], dtype=ml_dtypes.float8_e4m3fn),
    ],
)
def test_every_storage_gives_the_same_elements(array: np.ndarray, tmp_path: Path) -> None:
    raw = numpy_helper.from_array(array)
    np.testing.assert_array_equal(loaded(raw), array)
    data = raw.raw_data
    (tmp_path / "w.bin").write_bytes(b"skip" + data)
    raw.ClearField("raw_data")
    raw.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "4"), ("length", str(len(data)))):
        raw.external_data.add(key=key, value=value)
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with(raw).SerializeToString())
    result = view(load_model(path)).initializers["w"]
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


def test_typed_fields_are_read() -> None:
    tensor = helper.make_tensor("w", TensorProto.INT4, [3], [-8, 7, 3])
    np.testing.assert_array_equal(loaded(tensor).astype(np.int8), [-8, 7, 3])
    tensor = helper.make_tensor("w", TensorProto.FLOAT16, [2], [1.5, -2.0])
    np.testing.assert_array_equal(loaded(tensor), np.asarray([1.5, -2.0], dtype=np.float16))
    tensor = TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=["é".encode()])
    assert loaded(tensor).tolist() == ["é"]


def test_bool_bytes_become_zero_or_one() -> None:
    array = loaded(TensorProto(data_type=9, dims=[3], raw_data=b"\x00\x02\xff"))
    assert array.view(np.uint8).tolist() == [0, 1, 1]


# --- external data --------------------------------------------------------------------------------


def external(tmp_path: Path, **entries: str) -> Path:
    tensor = TensorProto(data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "sub").mkdir(exist_ok=True)
    data = np.asarray([1, 2], dtype=np.float32).tobytes()
    for place in (folder / "w.bin", folder / "sub" / "w.bin", tmp_path / "secret.bin"):
        place.write_bytes(data)
    path = folder / "m.onnx"
    path.write_bytes(model_with(tensor).SerializeToString())
    return path


@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "sub/w.bin"])
def test_files_in_the_folder_are_read(tmp_path: Path, location: str) -> None:
    seen = view(load_model(external(tmp_path, location=location)))
    np.testing.assert_array_equal(seen.initializers["w"], [1, 2])


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "", ".", "sub"])
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    with pytest.raises(InvalidModel):
        load_model(external(tmp_path, location=location))


def test_absolute_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="outside"):
        load_model(external(tmp_path, location=str(tmp_path / "model" / "w.bin")))


def test_links_are_refused(tmp_path: Path) -> None:
    path = external(tmp_path, location="link.bin")
    (path.parent / "link.bin").symlink_to("../secret.bin")
    with pytest.raises(InvalidModel, match="link"):
        load_model(path)
    path = external(tmp_path, location="linked/secret.bin")
    (path.parent / "linked").symlink_to(tmp_path)
    with pytest.raises(InvalidModel, match="link"):
        load_model(path)


def test_the_text_of_a_link_is_not_taken_for_weights(tmp_path: Path) -> None:
    path = external(tmp_path, location="stub.bin", length="8")
    (path.parent / "stub.bin").write_text("../secret.bin")
    with pytest.raises(InvalidModel, match="text of a link"):
        load_model(path)


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "w.bin", "offset": "4"},
        {"location": "w.bin", "length": "4"},
        {"location": "w.bin", "offset": "-4"},
        {"location": "w.bin", "offset": "9" * 30},
        {"location": "w.bin", "length": "eight"},
        {"location": "absent.bin"},
    ],
)
def test_ranges_beyond_the_file_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    with pytest.raises(InvalidModel):
        load_model(external(tmp_path, **entries))


def test_a_model_in_memory_has_no_external_data(tmp_path: Path) -> None:
    data = external(tmp_path, location="w.bin").read_bytes()
    with pytest.raises(InvalidModel, match="no folder"):
        load_model(data)


# --- sparse ---------------------------------------------------------------------------------------


def sparse(indices: list[int] | list[list[int]], dims: list[int]) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.asarray([5, 7], dtype=np.float32), "w")
    places = numpy_helper.from_array(np.asarray(indices, dtype=np.int64), "i")
    return helper.make_sparse_tensor(values, places, dims)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_weights_become_dense(indices: list[int]) -> None:
    model = model_of([node("Identity", ["w"], ["y"])])
    model.graph.sparse_initializer.append(sparse(indices, [2, 3]))
    seen = view(load_model(model))
    np.testing.assert_array_equal(seen.initializers["w"], [[0, 5, 0], [0, 0, 7]])
    assert len(model.graph.sparse_initializer) == 1


@pytest.mark.parametrize(
    ("indices", "dims"),
    [([1, 6], [2, 3]), ([-1, 2], [2, 3]), ([[0, 3], [1, 1]], [2, 3]), ([1, 5], [2**20, 2**20])],
)
def test_sparse_weights_that_do_not_fit_are_refused(indices: list[int], dims: list[int]) -> None:
    model = model_of([node("Identity", ["w"], ["y"])], inputs=[tensor_info("x")])
    model.graph.sparse_initializer.append(sparse(indices, dims))
    with pytest.raises(InvalidModel, match="sparse"):
        load_model(model)
