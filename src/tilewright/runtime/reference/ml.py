"""Feature preparation and linear models of ai.onnx.ml.

A map value (ZipMap, DictVectorizer, CastMap) is a Python dict, a sequence of maps a list of them.
Not here: trees (ml_trees), support vectors (ml_svm), ArrayFeatureExtractor (gather_scatter)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.math import sigmoid
from tilewright.runtime.reference.normalization import softmax
from tilewright.runtime.reference.registry import Call, Outputs, as_text, operator
from tilewright.runtime.reference.strings import texts

DOMAIN = "ai.onnx.ml"
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _softmax_zero(scores: Array) -> Array:
    """Softmax that leaves (almost) zero scores as zero."""
    top = scores.max(axis=-1, keepdims=True)
    power = np.where(np.abs(scores) > 1e-7, np.exp(scores - top), scores * np.exp(-top))
    total = power.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total == 0, 0.5, power / np.where(total == 0, 1, total)))


def _probit(p: Array) -> Array:
    """The approximation sqrt(2) * erf_inv(2 p - 1) that ONNX runtimes use (Winitzki)."""
    x = 2 * p - 1
    logarithm = np.log((1 - x) * (1 + x))
    first = 2 / (math.pi * 0.147) + 0.5 * logarithm
    inverse = np.sqrt(np.sqrt(first * first - logarithm / 0.147) - first)
    return np.asarray(math.sqrt(2) * np.copysign(np.where(np.abs(x) == 1, 0, inverse), x))


def post_transform(call: Call, scores: Array) -> Array:
    """Apply the `post_transform` attribute to scores [N, E]."""
    kind = call.choice("post_transform", "NONE", _TRANSFORMS)
    if kind == "SOFTMAX":
        return softmax(scores)
    if kind == "LOGISTIC":
        return sigmoid(scores)
    if kind == "SOFTMAX_ZERO":
        return _softmax_zero(scores)
    return _probit(scores) if kind == "PROBIT" else scores


def labels(call: Call, integers: str, strings: str) -> Array | None:
    """The class labels as a tensor, or None when neither attribute is set."""
    names = call.texts(strings)
    if names:
        return texts(list(names), (len(names),))
    numbers = call.integers(integers)
    return None if not numbers else np.array(numbers, np.int64)


def float32(call: Call, x: Any) -> Array:
    """As float32, or float64 in wide mode."""
    return np.asarray(x).astype(call.float_dtype(np.dtype(np.float32)))


@operator("Binarizer", domain=DOMAIN)
def binarizer(call: Call, x: Array) -> Outputs:
    return ((x > call.number("threshold", 0.0)).astype(x.dtype),)


@operator("Scaler", domain=DOMAIN)
def scaler(call: Call, x: Array) -> Outputs:
    offset, scale = call.numbers("offset") or (0.0,), call.numbers("scale") or (1.0,)
    return (float32(call, (x - np.array(offset)) * np.array(scale)),)


@operator("Normalizer", domain=DOMAIN)
def normalizer(call: Call, x: Array) -> Outputs:
    norm = call.choice("norm", "MAX", ("MAX", "L1", "L2"))
    data = float32(call, x)
    divisor = {
        "MAX": lambda: np.max(data, axis=-1, keepdims=True),
        "L1": lambda: np.sum(np.abs(data), axis=-1, keepdims=True),
        "L2": lambda: np.sqrt(np.sum(np.square(data), axis=-1, keepdims=True)),
    }[norm]()
    return (data / np.where(divisor == 0, 1, divisor),)


@operator("Imputer", domain=DOMAIN)
def imputer(call: Call, x: Array) -> Outputs:
    if x.dtype.kind in "iu":
        new: Any = call.integers("imputed_value_int64s")
        found = x == call.integer("replaced_value_int64", 0)
    else:
        new = call.numbers("imputed_value_floats")
        old = call.number("replaced_value_float", 0.0)
        found = np.isnan(x) if math.isnan(old) else x == x.dtype.type(old)
    if not new:
        raise call.error("imputed values are missing")
    return (np.where(found, np.array(new, x.dtype), x),)


@operator("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(call: Call, *inputs: Array) -> Outputs:
    widths = call.integers("inputdimensions") or (None,) * len(inputs)
    rows = [x.reshape(1, -1) if x.ndim < 2 else x.reshape(x.shape[0], -1) for x in inputs]
    parts = []
    for row, width in zip(rows, widths, strict=True):
        size = row.shape[1] if width is None else width
        cut = row[:, :size]
        parts.append(np.pad(cut, [(0, 0), (0, size - cut.shape[1])]))
    return (float32(call, np.concatenate(parts, axis=1)),)


@operator("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(call: Call, x: Array) -> Outputs:
    names = call.texts("cats_strings")
    if names:
        found = texts([as_text(v) for v in x.ravel()], x.shape)[..., None] == texts(
            list(names), (len(names),)
        )
    else:
        found = x.astype(np.int64)[..., None] == np.array(call.integers("cats_int64s"), np.int64)
    if not call.integer("zeros", 1) and not np.all(np.any(found, axis=-1)):
        raise call.error("an element is in no category")
    return (float32(call, found.astype(bool)),)


@operator("CategoryMapper", domain=DOMAIN)
def category_mapper(call: Call, x: Array) -> Outputs:
    numbers, names = call.integers("cats_int64s") or (), call.texts("cats_strings") or ()
    if x.dtype == np.dtype(object):
        known = dict(zip(names, numbers, strict=True))
        default = call.integer("default_int64", -1)
        mapped = [known.get(as_text(v), default) for v in x.ravel()]
        return (np.array(mapped, np.int64).reshape(x.shape),)
    words = dict(zip(numbers, names, strict=True))
    fallback = call.text("default_string", "_Unused")
    return (texts([words.get(int(v), fallback) for v in x.ravel()], x.shape),)


def _given(call: Call, stem: str) -> tuple[str, Sequence[Any], Array | None]:
    """(kind, values, tensor) of the one `stem_*` attribute that is set."""
    tensor = call.get(f"{stem}_tensor")
    if tensor is not None:
        flat = np.asarray(tensor).ravel()
        return (
            "tensor",
            [as_text(v) if isinstance(v, str | bytes) else v.item() for v in flat],
            flat,
        )
    for kind in ("strings", "int64s", "floats"):
        values = call.texts(f"{stem}_{kind}") if kind == "strings" else call.get(f"{stem}_{kind}")
        if values is not None and len(values):
            return kind, list(values), None
    raise call.error(f"no {stem}_* attribute is set")


@operator("LabelEncoder", domain=DOMAIN)
def label_encoder(call: Call, x: Array) -> Outputs:
    _, keys, _ = _given(call, "keys")
    kind, values, tensor = _given(call, "values")
    dtype = (
        {
            "strings": np.dtype(object),
            "int64s": np.dtype(np.int64),
            "floats": np.dtype(np.float32),
        }.get(kind)
        if tensor is None
        else tensor.dtype
    )
    default: Any
    if tensor is not None and call.get("default_tensor") is not None:
        default = np.asarray(call.get("default_tensor")).reshape(-1)[0]
    elif dtype == np.dtype(object):
        default = call.text("default_string", "_Unused")
    elif dtype is not None and dtype.kind in "iu":
        default = call.integer("default_int64", -1)
    else:
        default = call.number("default_float", -0.0)
    known = {_key(key): value for key, value in zip(keys, values, strict=True)}
    mapped = [known.get(_key(_item(v)), default) for v in x.ravel()]
    result = np.empty(len(mapped), dtype)
    result[:] = mapped
    return (result.reshape(x.shape),)


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _key(value: Any) -> Any:
    if isinstance(value, bytes | str):
        return as_text(value)
    return (
        "NaN key"
        if isinstance(value, float) and math.isnan(value)
        else float(np.float32(value))
        if isinstance(value, float)
        else value
    )


@operator("LinearRegressor", domain=DOMAIN)
def linear_regressor(call: Call, x: Array) -> Outputs:
    targets = call.integer("targets", 1)
    data = float32(call, x)
    weights = np.array(call.numbers("coefficients"), data.dtype).reshape(targets, -1)
    scores = data @ weights.T
    intercepts = call.numbers("intercepts")
    if intercepts:
        scores = scores + np.array(intercepts, data.dtype)
    return (post_transform(call, scores),)


@operator("LinearClassifier", domain=DOMAIN)
def linear_classifier(call: Call, x: Array) -> Outputs:
    names = labels(call, "classlabels_ints", "classlabels_strings")
    data = float32(call, np.atleast_2d(x))
    weights = np.array(call.numbers("coefficients"), data.dtype).reshape(-1, data.shape[1])
    scores = data @ weights.T
    intercepts = call.numbers("intercepts")
    if intercepts:
        scores = scores + np.array(intercepts, data.dtype)
    count = scores.shape[1] if names is None else names.size
    if scores.shape[1] == 1 and count == 2:
        chosen = (scores[:, 0] > 0).astype(np.int64)
        plain = call.text("post_transform", "NONE") == "NONE"
        scores = np.concatenate([1 - scores if plain else -scores, scores], axis=1)
    else:
        chosen = np.argmax(scores, axis=1)
    return chosen if names is None else names[chosen], post_transform(call, scores)


@operator("ZipMap", domain=DOMAIN)
def zip_map(call: Call, x: Array) -> Outputs:
    names = labels(call, "classlabels_int64s", "classlabels_strings")
    rows = np.atleast_2d(x)
    if names is None or names.size != rows.shape[1]:
        raise call.error(f"the labels do not fit {x.shape}")
    return ([dict(zip(names.tolist(), row.tolist(), strict=True)) for row in rows],)


@operator("DictVectorizer", domain=DOMAIN)
def dict_vectorizer(call: Call, x: Any) -> Outputs:
    words: tuple[Any, ...] = (
        call.texts("string_vocabulary") or call.integers("int64_vocabulary") or ()
    )
    maps = x if isinstance(x, list) else [x]
    rows = np.array([[entry.get(word, 0) for word in words] for entry in maps])
    rows = rows.astype(np.float32) if rows.dtype.kind == "f" else rows
    return (rows if isinstance(x, list) else rows[0],)


@operator("CastMap", domain=DOMAIN)
def cast_map(call: Call, x: Any) -> Outputs:
    kind = call.choice("cast_to", "TO_FLOAT", ("TO_FLOAT", "TO_STRING", "TO_INT64"))
    values = [x[key] for key in sorted(x)]
    if call.choice("map_form", "DENSE", ("DENSE", "SPARSE")) == "SPARSE":
        blank: Any = "" if kind == "TO_STRING" else 0
        values = [x.get(key, blank) for key in range(call.integer("max_map", 1))]
    if kind == "TO_STRING":
        return (texts([str(v) for v in values], (1, len(values))),)
    whole = kind == "TO_INT64"
    return (np.array([float(v) for v in values], np.int64 if whole else np.float32)[None],)
