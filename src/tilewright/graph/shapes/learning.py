"""Shape rules of classical machine learning, text features and training steps.

Input -> Output: shapes and attributes -> result shapes; sizes found in strings are late symbols.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.core.dtypes import FLOAT32, INT64, STRING, DType, from_numpy
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import ONE, RuleContext, like, shape_rule

ML = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"


def _listed(ctx: RuleContext, *names: str) -> list[Any]:
    """The first of these list attributes that is present."""
    for name in names:
        value = ctx.node.attribute(name)
        if value is not None and len(value):
            return list(value)
    return []


# --- text ---------------------------------------------------------------------------------------


@shape_rule("StringNormalizer")
def string_normalizer(ctx: RuleContext) -> NodeInfo:
    """Stop words drop out of the last axis, so its size is known only afterwards."""
    shape = ctx.shape(0)
    if not _listed(ctx, "stopwords"):
        return ctx.result(shape)
    return ctx.result((*shape[:-1], ctx.late_dim(0, len(shape) - 1)))


@shape_rule("StringSplit", dtypes=(STRING, INT64))
def string_split(ctx: RuleContext) -> NodeInfo:
    """A new last axis as long as the most parts."""
    shape = ctx.shape(0)
    return ctx.result((*shape, ctx.late_dim(0, len(shape))), shape)


@shape_rule("TfIdfVectorizer", dtypes=(FLOAT32,))
def tf_idf(ctx: RuleContext) -> NodeInfo:
    """One column for each n-gram."""
    shape = ctx.shape(0)
    columns = ctx.integers("ngram_indexes")
    if not columns:
        ctx.fail("ngram_indexes is required")
    return ctx.result((*shape[:-1], Dim.of(max(columns) + 1)))


# --- ai.onnx.ml ---------------------------------------------------------------------------------


@shape_rule("Binarizer", domain=ML)
def binarizer(ctx: RuleContext) -> NodeInfo:
    """The same shape and type."""
    return ctx.result(ctx.shape(0))


@shape_rule("Imputer", domain=ML)
def imputer(ctx: RuleContext) -> NodeInfo:
    """The same shape and type."""
    return ctx.result(ctx.shape(0))


@shape_rule("Normalizer", "Scaler", domain=ML, dtypes=(FLOAT32,))
def scaler(ctx: RuleContext) -> NodeInfo:
    """The same shape in float32."""
    return ctx.result(ctx.shape(0))


@shape_rule("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(ctx: RuleContext) -> NodeInfo:
    """Picked columns of the last axis."""
    shape = ctx.shape(0)
    indices = ctx.shape(1)
    rows = shape[:-1] if len(shape) > 1 else (ONE,)
    return ctx.result((*rows, indices[-1] if indices else ONE))


@shape_rule("FeatureVectorizer", domain=ML, dtypes=(FLOAT32,))
def feature_vectorizer(ctx: RuleContext) -> NodeInfo:
    """Features side by side."""
    widths = ctx.integers("inputdimensions")
    shape = ctx.shape(0)
    rows = shape[0] if len(shape) > 1 else ONE
    if widths is not None:
        return ctx.result((rows, Dim.of(sum(widths))))
    columns = [ctx.shape(position)[-1] for position in range(len(ctx.inputs))]
    return ctx.result((rows, sum(columns, Dim.of(0))))


@shape_rule("OneHotEncoder", domain=ML, dtypes=(FLOAT32,))
def one_hot_encoder(ctx: RuleContext) -> NodeInfo:
    """A new last axis, one entry a category."""
    return ctx.result((*ctx.shape(0), Dim.of(len(_listed(ctx, "cats_int64s", "cats_strings")))))


def _label_dtype(ctx: RuleContext) -> DType:
    tensor = ctx.node.attribute("values_tensor")
    if tensor is not None:
        return from_numpy(np.asarray(tensor).dtype)
    for name, dtype in (
        ("values_strings", STRING),
        ("values_int64s", INT64),
        ("values_floats", FLOAT32),
    ):
        if ctx.node.attribute(name) is not None:
            return dtype
    return ctx.fail("values are required")


@shape_rule("LabelEncoder", domain=ML, dtypes=(_label_dtype,))
def label_encoder(ctx: RuleContext) -> NodeInfo:
    """The same shape in the type of the values."""
    return ctx.result(ctx.shape(0))


def _category_dtype(ctx: RuleContext) -> DType:
    return INT64 if ctx.dtype(0) is STRING else STRING


@shape_rule("CategoryMapper", domain=ML, dtypes=(_category_dtype,))
def category_mapper(ctx: RuleContext) -> NodeInfo:
    """Strings become numbers, numbers strings."""
    return ctx.result(ctx.shape(0))


def _rows(ctx: RuleContext) -> Dim:
    shape = ctx.shape(0)
    return shape[0] if len(shape) > 1 else ONE


@shape_rule("TreeEnsemble", domain=ML)
def tree_ensemble(ctx: RuleContext) -> NodeInfo:
    """[rows, targets] in the input's type."""
    return ctx.result((_rows(ctx), Dim.of(ctx.integer("n_targets", 1))))


@shape_rule("TreeEnsembleRegressor", domain=ML, dtypes=(FLOAT32,))
def tree_regressor(ctx: RuleContext) -> NodeInfo:
    """[rows, targets]."""
    return ctx.result((_rows(ctx), Dim.of(ctx.integer("n_targets", 1))))


@shape_rule("LinearRegressor", domain=ML, dtypes=(FLOAT32,))
def linear_regressor(ctx: RuleContext) -> NodeInfo:
    """[rows, targets]."""
    return ctx.result((_rows(ctx), Dim.of(ctx.integer("targets", 1))))


@shape_rule("SVMRegressor", domain=ML, dtypes=(FLOAT32,))
def svm_regressor(ctx: RuleContext) -> NodeInfo:
    """[rows, 1]."""
    return ctx.result((_rows(ctx), ONE))


def _class_dtype(ctx: RuleContext) -> DType:
    return STRING if _listed(ctx, "classlabels_strings") else INT64


@shape_rule(
    "LinearClassifier",
    "SVMClassifier",
    "TreeEnsembleClassifier",
    domain=ML,
    dtypes=(_class_dtype, FLOAT32),
)
def classifier(ctx: RuleContext) -> NodeInfo:
    """A label a row, and scores whose number depends on the kind of model."""
    names = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
    classes = len(_listed(ctx, *names))
    rows = _rows(ctx)
    scores = Dim.of(classes) if classes > 2 else ctx.late_dim(1, 1)
    return ctx.result((rows,), (rows, scores))


# --- training steps -----------------------------------------------------------------------------


@shape_rule(
    "Adagrad",
    "Adam",
    "Momentum",
    domain=TRAINING,
    dtypes=(like(2),),
)
def optimizer_step(ctx: RuleContext) -> NodeInfo:
    """New values and states look like the old ones; inputs are all X, all gradients, all states."""
    states = {"Adagrad": 1, "Adam": 2, "Momentum": 1}[ctx.node.op_type]
    count, rest = divmod(len(ctx.inputs) - 2, 2 + states)
    if rest or count < 1:
        ctx.fail(f"{len(ctx.inputs)} inputs")
    values = [ctx.shape(2 + k) for k in range(count)]
    for k, shape in enumerate(values):
        for group in range(1, 2 + states):
            other = ctx.shape_of_rank(2 + group * count + k, len(shape))
            for own, size in zip(other, shape, strict=True):
                ctx.equal(size, own, f"input {2 + group * count + k}")
    return ctx.result(*values * (1 + states))
