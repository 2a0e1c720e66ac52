"""Small models as text, compiled and run, for the tests of known kinds of faults.

Input -> Output: ONNX's textual form of a graph, weights, feeds -> an engine, or its results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.runtime.engine import Engine

Array = npt.NDArray[Any]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The driver is compiled once; nothing comes from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def model_of(graph: str, weights: Mapping[str, Any] | None = None, opset: int = 21) -> bytes:
    """A model file from the text of a graph: ``g (float[n] x) => (float[n] y) { y = Relu(x) }``."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> {graph}'
    model = onnx.parser.parse_model(text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return bytes(model.SerializeToString())


def engine_of(
    graph: str,
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    verify: bool = False,
    threads: int = 1,
) -> Engine:
    """The compiled engine of the text of a graph."""
    return tw.compile(model_of(graph, weights, opset), verify=verify, threads=threads)


def run(graph: str, weights: Any = None, opset: Any = 21, **feeds: Any) -> Any:
    """The only result of a graph, or all of them in order."""
    results = list(engine_of(graph, weights, opset=opset).run(feeds).values())
    return results[0] if len(results) == 1 else results


def f32(*values: Any) -> Array:
    """A float32 array: of one list, or of these numbers."""
    return np.asarray(values[0] if len(values) == 1 else values, np.float32)


def i64(*values: Any) -> Array:
    """An int64 array: of one list, or of these numbers."""
    return np.asarray(values[0] if len(values) == 1 else values, np.int64)


def same_bits(left: Array, right: Array) -> None:
    """Equal with the sign of zeros; NaN is NaN whatever its bits."""
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    np.testing.assert_array_equal(np.isnan(left), np.isnan(right))
    number = ~np.isnan(right)
    np.testing.assert_array_equal(left[number], right[number])
    np.testing.assert_array_equal(np.signbit(left[number]), np.signbit(right[number]))
