"""Text tensors (dtype object): normalising, joining, splitting, matching, n-gram counts.

Source of regular expressions: Python's `re`, a near superset of the RE2 syntax that ONNX names."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, as_text, operator


def texts(values: list[str], shape: tuple[int, ...]) -> Array:
    """A text tensor from a flat list."""
    result = np.empty(len(values), object)
    result[:] = values
    return result.reshape(shape)


def _flat(x: Array) -> list[str]:
    return [as_text(value) for value in x.ravel()]


@operator("StringNormalizer", since=10)
def string_normalizer(call: Call, x: Array) -> Outputs:
    if x.ndim == 0 or x.ndim > 2 or (x.ndim == 2 and x.shape[0] != 1):
        raise call.error(f"input {x.shape} is neither [C] nor [1, C]")
    action = call.choice("case_change_action", "NONE", ("NONE", "LOWER", "UPPER"))
    sensitive = bool(call.integer("is_case_sensitive", 0))
    stops = call.texts("stopwords") or ()
    if sensitive:
        kept = [text for text in _flat(x) if text not in stops]
    else:
        lowered = {stop.lower() for stop in stops}
        kept = [text for text in _flat(x) if text.lower() not in lowered]
    if action != "NONE":
        kept = [text.lower() if action == "LOWER" else text.upper() for text in kept]
    kept = kept or [""]
    return (texts(kept, (len(kept),) if x.ndim == 1 else (1, len(kept))),)


@operator("StringConcat", since=20)
def string_concat(_call: Call, x: Array, y: Array) -> Outputs:
    a, b = np.broadcast_arrays(x, y)
    joined = [left + right for left, right in zip(_flat(a), _flat(b), strict=True)]
    return (texts(joined, a.shape),)


@operator("StringSplit", since=20)
def string_split(call: Call, x: Array) -> Outputs:
    delimiter = call.text("delimiter", "") or None
    limit = call.get("maxsplit")
    parts = [text.split(delimiter, -1 if limit is None else int(limit)) for text in _flat(x)]
    counts = [len(part) for part in parts]
    width = max(counts, default=0)
    flat = [text for part in parts for text in [*part, *[""] * (width - len(part))]]
    return texts(flat, (*x.shape, width)), np.array(counts, np.int64).reshape(x.shape)


@operator("RegexFullMatch", since=20)
def regex_full_match(call: Call, x: Array) -> Outputs:
    try:
        pattern = re.compile(call.text("pattern"))
    except re.error as error:
        raise call.error(f"bad pattern: {error}") from error
    found = [pattern.fullmatch(text) is not None for text in _flat(x)]
    return (np.array(found, bool).reshape(x.shape),)


def _pool(call: Call) -> dict[tuple[Any, ...], int]:
    """Every n-gram of the pool -> its place in the pool."""
    pool: tuple[Any, ...] = call.texts("pool_strings") or call.integers("pool_int64s") or ()
    starts = [*(call.integers("ngram_counts") or ()), len(pool)]
    grams: dict[tuple[Any, ...], int] = {}
    for length, (first, last) in enumerate(pairwise(starts), start=1):
        for at in range(first, last - length + 1, length):
            grams[pool[at : at + length]] = len(grams)
    return grams


def _grams(row: list[Any], call: Call) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    skips = call.integer("max_skip_count")
    for length in range(call.integer("min_gram_length"), call.integer("max_gram_length") + 1):
        for step in range(1, 2 if length == 1 else skips + 2):
            for at in range(len(row) - step * (length - 1)):
                counts[tuple(row[at : at + step * (length - 1) + 1 : step])] += 1
    return counts


@operator("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(call: Call, x: Array) -> Outputs:
    mode = call.choice("mode", "", ("TF", "IDF", "TFIDF"))
    places = call.integers("ngram_indexes") or ()
    weights = call.numbers("weights") or (1.0,) * len(places)
    grams = _pool(call)
    if len(grams) != len(places) or len(weights) != len(places) or x.ndim > 2:
        raise call.error(f"{len(grams)} n-grams, {len(places)} indexes, {len(weights)} weights")
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    result = np.zeros((rows.shape[0], max(places, default=-1) + 1), np.float32)
    for number, row in enumerate(rows):
        for gram, count in _grams(
            [as_text(v) if isinstance(v, str | bytes) else int(v) for v in row], call
        ).items():
            if gram in grams:
                place = grams[gram]
                frequency = 1 if mode == "IDF" else count
                scale = 1.0 if mode == "TF" else weights[place]
                result[number, places[place]] += frequency * scale
    return (result if x.ndim == 2 else result[0],)
