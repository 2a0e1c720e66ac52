"""ONNX's own node conformance cases against the reference operators.

Every case is run by a small graph walker; the pass count may not fall."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tilewright.runtime.reference import Value, evaluate

# Cases that cannot or should not pass; each with its reason.
_RANDOM = "ONNX fixes the distribution, not the values"
_HALF = "the expected values round every intermediate of softmax to float16"
KNOWN: dict[str, str] = {
    "test_bernoulli": _RANDOM,
    "test_bernoulli_expanded": _RANDOM,
    "test_bernoulli_double": _RANDOM,
    "test_bernoulli_double_expanded": _RANDOM,
    "test_bernoulli_seed": _RANDOM,
    "test_bernoulli_seed_expanded": _RANDOM,
    "test_attention_4d_causal_fp16": _HALF,
    "test_attention_4d_causal_fp16_expanded": _HALF,
}
LEAST_PASSES = 1876
HAS_PILLOW = importlib.util.find_spec("PIL") is not None


def _attribute(
    attribute: onnx.AttributeProto, scope: dict[str, Value], opsets: dict[str, int]
) -> object:
    if attribute.type == onnx.AttributeProto.GRAPH:
        return _closure(attribute.g, scope, opsets)
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(attribute.t)
    if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
        sparse = attribute.sparse_tensor
        dense = np.zeros(tuple(sparse.dims), numpy_helper.to_array(sparse.values).dtype)
        dense.reshape(-1)[numpy_helper.to_array(sparse.indices)] = numpy_helper.to_array(
            sparse.values
        )
        return dense
    return onnx.helper.get_attribute_value(attribute)


def _closure(
    graph: onnx.GraphProto, outer: dict[str, Value], opsets: dict[str, int]
) -> Callable[..., tuple[Value, ...]]:
    def call(*inputs: Value) -> tuple[Value, ...]:
        scope = dict(outer)
        scope.update((value.name, item) for value, item in zip(graph.input, inputs, strict=True))
        return _walk(graph, scope, opsets)

    return call


def _walk(
    graph: onnx.GraphProto, scope: dict[str, Value], opsets: dict[str, int]
) -> tuple[Value, ...]:
    for tensor in graph.initializer:
        scope.setdefault(tensor.name, numpy_helper.to_array(tensor))
    for node in graph.node:
        attributes = {item.name: _attribute(item, scope, opsets) for item in node.attribute}
        domain = "" if node.domain == "ai.onnx" else node.domain
        outputs = evaluate(
            domain,
            node.op_type,
            [scope[name] if name else None for name in node.input],
            attributes,
            opset=opsets[domain],
            num_outputs=len(node.output),
        )
        scope.update((n, v) for n, v in zip(node.output, outputs, strict=True) if n)
    return tuple(scope[value.name] for value in graph.output)


def _value(value: Any) -> Value:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return _value(numpy_helper.to_optional(value))
    if isinstance(value, list):
        return [_value(item) for item in value]
    return None if value is None else np.asarray(value)


def _compare(actual: Value, expected: Value, rtol: float, atol: float) -> None:
    if expected is None or isinstance(expected, list):
        assert type(actual) is type(expected)
        if isinstance(expected, list) and isinstance(actual, list):
            assert len(actual) == len(expected)
            for item, wanted in zip(actual, expected, strict=True):
                _compare(item, wanted, rtol, atol)
        return
    assert isinstance(actual, np.ndarray)
    assert actual.shape == expected.shape
    if expected.dtype.kind in "OUS":
        assert actual.dtype == np.dtype(object)
        assert actual.astype(str).tolist() == expected.astype(str).tolist()
        return
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    if actual.dtype.kind == "V" or actual.dtype.name not in np.sctypeDict:
        rtol = max(rtol, 2**-6) if actual.dtype.name == "bfloat16" else rtol
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def _run_case(case: Any) -> None:
    model: onnx.ModelProto = case.model
    assert not model.functions
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    opsets.setdefault("", 28)
    for inputs, expected in case.data_sets:
        scope = {v.name: _value(x) for v, x in zip(model.graph.input, inputs, strict=False)}
        outputs = _walk(model.graph, scope, opsets)
        for actual, wanted in zip(outputs, expected, strict=True):
            _compare(actual, _value(wanted), case.rtol, case.atol)


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the way onnx computes its expected values
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


@pytest.mark.slow
def test_node_cases(cases: list[Any]) -> None:
    failures: dict[str, str] = {}
    if not HAS_PILLOW:
        cases = [case for case in cases if not case.name.startswith("test_image_decoder")]
    missing = 1884 - len(cases)
    for case in cases:
        try:
            _run_case(case)
        except (AssertionError, ValueError, TypeError, KeyError) as error:
            failures[case.name] = str(error).strip().split("\n")[0]
    assert len(cases) - len(failures) >= LEAST_PASSES - missing, failures
    assert set(failures) <= set(KNOWN), {k: v for k, v in failures.items() if k not in KNOWN}
