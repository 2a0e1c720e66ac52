"""A model with 2.4 GB of weights in a file of their own: compiled, run, saved and loaded.

Input -> Output: a table that is a hole in its file but for a few rows -> the right rows; memory of
the process itself (not pages of mapped files) stays below ``MAX_OWN_MB`` throughout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from conftest import REPOSITORY

pytestmark = pytest.mark.slow

ROWS, WIDTH, CLASSES = 600_000, 1_024, 64
TABLE_BYTES = 4 * ROWS * WIDTH
MAX_OWN_MB = 500
ROWS_WITH_NUMBERS = (0, 1, ROWS // 2, ROWS - 1)

# Runs in a process of its own, so that its memory can be limited and measured.
_WORKER = """
import json, resource, sys
import numpy as np
import tilewright as tw

limit = int(sys.argv[3]) << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # private memory, mapped files excepted
model, engine_file = sys.argv[1:3]
ids = np.array(json.loads(sys.argv[4]))
engine = tw.compile(model, threads=1, cache=None)
first = engine.run(ids=ids)["y"]
engine.save(engine_file)
again = tw.load(engine_file)
print(json.dumps([first.tolist(), again.run(ids=ids)["y"].tolist()]))
"""


def _external(name: str, dims: list[int], offset: int, length: int) -> TensorProto:
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "weights.bin"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _row(number: int) -> Any:
    return ((np.arange(WIDTH, dtype=np.float32) + number) % 13 - 6) / 8


def _build(folder: Path) -> tuple[Path, Any]:
    """Writes the model; returns its path and the small matrix behind the table."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, CLASSES), np.float32)
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(TABLE_BYTES)
        for number in ROWS_WITH_NUMBERS:
            file.seek(4 * number * WIDTH)
            file.write(_row(number).tobytes())
        file.seek(TABLE_BYTES)
        file.write(weights.tobytes())
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "w"], ["p"]),
            helper.make_node("Tanh", ["p"], ["y"]),
        ],
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
        [
            _external("table", [ROWS, WIDTH], 0, TABLE_BYTES),
            _external("w", [WIDTH, CLASSES], TABLE_BYTES, weights.nbytes),
        ],
    )
    path = folder / "large.onnx"
    imports = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path, weights


def test_weights_of_more_than_two_gigabytes_stay_on_disk(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    if free.f_bavail * free.f_frsize < 2 * TABLE_BYTES:
        pytest.skip("needs 5 GB of disk")
    path, weights = _build(tmp_path)
    ids = [*ROWS_WITH_NUMBERS, 5]
    result = subprocess.run(
        [sys.executable, "-c", _WORKER, path, tmp_path / "large.tw", str(MAX_OWN_MB), str(ids)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    )
    assert result.returncode == 0, result.stderr
    (tmp_path / "large.tw").unlink()
    first, again = (np.array(values) for values in json.loads(result.stdout))
    rows = np.stack([*(_row(number) for number in ROWS_WITH_NUMBERS), np.zeros(WIDTH)])
    np.testing.assert_allclose(first, np.tanh(rows.astype(np.float64) @ weights), atol=1e-5)
    np.testing.assert_array_equal(first, again)
