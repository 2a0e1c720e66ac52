"""A random ONNX model while it grows: every node is evaluated when it is added.

Input -> Output: an operator, values of the draft, attributes -> new values, or ``Rejected``.
Guarantees: a finished draft is valid for every run; each dim is known in every run; a value is
``noisy`` unless its arithmetic was exact, so that steps (Floor, ArgMax ...) can avoid it.
Not here: which operators exist (families, families_tensor ...), comparing with engines (check).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tilewright.core.dtypes import BOOL, DType, from_numpy
from tilewright.core.errors import UserError
from tilewright.graph.load import load_model, view
from tilewright.graph.reference import evaluate_graph
from tilewright.runtime.reference import OperatorError, evaluate

Array = npt.NDArray[Any]
Dim = tuple[int, ...]  # the size in each run
MAX_ELEMENTS, MANY_ELEMENTS = 4096, 200_000
LIMITS = {"float16": 500.0, "bfloat16": 500.0}
MAX_MAGNITUDE = 20_000.0
# Inexact even where the reference happens to give the same bits in both precisions.
NOISY = frozenset(
    """Sqrt Sigmoid Tanh Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Softplus
    Softsign Elu Selu Celu Gelu Mish Swish HardSwish HardSigmoid Pow Reciprocal Div Mean ReduceMean
    ReduceL2 ReduceLogSum ReduceLogSumExp LayerNormalization RMSNormalization BatchNormalization
    InstanceNormalization GroupNormalization LpNormalization MeanVarianceNormalization LRN Softmax
    LogSoftmax LSTM GRU RNN Resize AveragePool GlobalAveragePool LpPool GlobalLpPool Attention
    RotaryEmbedding Det DFT""".split()
)


class Rejected(Exception):
    """The node does not fit; the generator draws another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor of the model, with its contents in each run.

    Attributes:
        narrow, wide: contents by the reference in the model's own types, and in float64.
        noisy: rounding may have happened.
        constant: it is the same in each run because it is an initialiser or made of some.
    """

    name: str
    dtype: DType
    narrow: tuple[Array, ...]
    wide: tuple[Array, ...]
    noisy: bool = False
    constant: bool = False

    @property
    def rank(self) -> int:
        return self.narrow[0].ndim

    @property
    def dims(self) -> tuple[Dim, ...]:
        """For each axis its size in each run."""
        return tuple(zip(*(array.shape for array in self.narrow), strict=True))

    @property
    def finite(self) -> bool:
        return all(bool(np.isfinite(array).all()) for array in self.wide)


@dataclass(slots=True)
class Draft:
    """The model so far.

    Attributes:
        rng: the only source of chance.
        opset: version of ai.onnx.
        symbols: the sizes that differ between runs.
        special: feeds hold NaN, infinities and negative zeros.
        large: tensors are large enough to be split over threads.
        values: what later nodes may read.
    """

    rng: random.Random
    opset: int
    symbols: list[Dim]
    special: bool = False
    large: bool = False
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, Value] = field(default_factory=dict)
    count: int = 0

    @property
    def max_elements(self) -> int:
        return MANY_ELEMENTS if self.large else MAX_ELEMENTS

    @property
    def num_runs(self) -> int:
        return len(self.symbols[0])

    # --- chance ----------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def one(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Rejected("nothing to choose from")
        return options[self.rng.randrange(len(options))]

    def same(self, size: int) -> Dim:
        """A dim of one size in each run."""
        return (size,) * self.num_runs

    def dim(self) -> Dim:
        """A random dim: often a symbol, sometimes 1, rarely 0."""
        if self.chance(0.4):
            return self.symbols[self.rng.randrange(len(self.symbols))]
        if self.large and self.chance(0.5):
            return self.same(self.one((64, 100, 129, 33)))
        return self.same(
            self.one((1, 2, 3, 4, 5, 7, 8, 1, 2, 3, 4, 16, 17, 0 if self.chance(0.3) else 6))
        )

    def shape(self, low: int, high: int) -> list[Dim]:
        return [self.dim() for _ in range(self.rng.randint(low, high))]

    # --- values ----------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """A value that fits, recent ones preferred.

        Raises:
            Rejected: there is none.
        """
        found = [value for value in self.values if fits(value)]
        if not found:
            raise Rejected("no value fits")
        return found[-1] if self.chance(0.4) else self.one(found)

    def array(self, dtype: DType, shape: Sequence[int], low: float, high: float) -> Array:
        """Exact small numbers: quarters for floats."""
        generator = np.random.default_rng(self.rng.getrandbits(32))
        if dtype is BOOL:
            return np.asarray(generator.integers(0, 2, shape), bool)
        if dtype.is_float:
            return (generator.integers(int(low * 4), int(high * 4) + 1, shape) / 4).astype(
                dtype.numpy
            )
        floor = low if dtype.is_signed else max(0, low)
        return generator.integers(int(floor), int(max(high, 1)) + 1, shape).astype(dtype.numpy)

    def extreme(self, dtype: DType, shape: Sequence[int]) -> Array:
        """The limits of an integer type; NaN, infinities and zeros of a float type."""
        generator = np.random.default_rng(self.rng.getrandbits(32))
        if dtype.is_integer:
            info = np.iinfo(dtype.numpy)
            edges = np.array([info.min, info.max, info.min + 1, info.max - 1, 0, 1], dtype.numpy)
        else:
            edges = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.25]).astype(dtype.numpy)
        usual = self.array(dtype, shape, -4, 4)
        return np.where(generator.random(shape) < 0.3, generator.choice(edges, shape), usual)

    def fresh(
        self,
        dtype: DType,
        dims: Sequence[Dim],
        low: float = -3,
        high: float = 3,
        *,
        constant: bool | None = None,
        make: Callable[[tuple[int, ...], int], Array] | None = None,
    ) -> Value:
        """A new input, initialiser or ``Constant``.

        Args:
            low, high: the range of its contents.
            constant: whether it is part of the model; by default by chance.
            make: contents from a shape and the number of the run.
        """
        fixed = all(len(set(dim)) == 1 for dim in dims)
        if constant is None:
            constant = fixed and self.chance(0.4)
        if constant and not fixed:
            raise Rejected("a constant has one shape")
        plain = make is None and not (self.special and self.chance(0.6))
        filled = make or (
            (lambda shape, _: self.array(dtype, shape, low, high))
            if plain or dtype is BOOL
            else (lambda shape, _: self.extreme(dtype, shape))
        )
        shapes = [tuple(dim[run] for dim in dims) for run in range(self.num_runs)]
        if any(int(np.prod(shape)) > self.max_elements for shape in shapes):
            raise Rejected("too large")
        arrays: list[Array] = []
        for run, shape in enumerate(shapes):
            arrays.append(arrays[0] if constant and arrays else np.asarray(filled(shape, run)))
        value = self._value(self.name("w" if constant else "x"), arrays, constant=constant)
        if constant:
            self._keep_constant(value)
        else:
            self.inputs[value.name] = value
        self.values.append(value)
        return value

    def _keep_constant(self, value: Value) -> None:
        if self.chance(0.2):
            tensor = numpy_helper.from_array(value.narrow[0], value.name)
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor))
        else:
            self.initializers[value.name] = value

    def constant(self, array: Any, dtype: Any = np.int64) -> Value:
        """A given constant (shape data, axes, scales)."""
        data = np.asarray(array, dtype)
        dims = [self.same(size) for size in data.shape]
        return self.fresh(
            from_numpy(data.dtype), dims, constant=True, make=lambda _shape, _run: data
        )

    def per_run(self, arrays: Sequence[Array]) -> Value:
        """An input with given contents in each run."""
        data = [np.asarray(array) for array in arrays]
        dims = list(zip(*(array.shape for array in data), strict=True))
        return self.fresh(
            from_numpy(data[0].dtype), dims, constant=False, make=lambda _, run: data[run]
        )

    def _value(self, name: str, narrow: Sequence[Array], **more: Any) -> Value:
        dtype = from_numpy(narrow[0].dtype)
        raised = dtype.name in ("float16", "bfloat16", "float32")
        wide = [array.astype(np.float64) if raised else array for array in narrow]
        return Value(name=name, dtype=dtype, narrow=tuple(narrow), wide=tuple(wide), **more)

    # --- nodes -----------------------------------------------------------------------------------

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        noisy: bool | None = None,
    ) -> list[Value]:
        """Adds a node.

        Raises:
            Rejected: ONNX or the reference does not allow it, or its result is too large.
        """
        attributes = {
            key: float(np.float32(part)) if isinstance(part, float) else part
            for key, part in (attributes or {}).items()
            if part is not None and not (isinstance(part, list) and not part)
        }
        check_types(op_type, inputs, attributes, self.opset)
        results = [
            self._evaluate(
                op_type,
                [part.narrow[run] if part else None for part in inputs],
                attributes,
                outputs,
                False,
            )
            for run in range(self.num_runs)
        ]
        wide = [
            self._evaluate(
                op_type,
                [part.wide[run] if part else None for part in inputs],
                attributes,
                outputs,
                True,
            )
            for run in range(self.num_runs)
        ]
        given = [part for part in inputs if part is not None]
        taint = noisy if noisy is not None else any(part.noisy for part in given)
        taint = taint or op_type in NOISY
        fixed = bool(given) and all(part.constant for part in given)
        made = [
            self._result([run[k] for run in results], [run[k] for run in wide], taint, fixed)
            for k in range(outputs)
        ]
        self.append(op_type, inputs, made, attributes)
        return made

    def append(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        attributes: Mapping[str, Any],
    ) -> None:
        """Adds a node whose results are known."""
        names = [part.name if part is not None else "" for part in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(
            helper.make_node(
                op_type,
                names,
                [part.name for part in outputs],
                name=f"{op_type}_{len(self.nodes)}",
                **{
                    key: numpy_helper.from_array(part) if isinstance(part, np.ndarray) else part
                    for key, part in attributes.items()
                },
            )
        )
        self.values.extend(outputs)

    def _evaluate(
        self,
        op_type: str,
        inputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
        outputs: int,
        wide: bool,
    ) -> Sequence[Array]:
        try:
            found = evaluate(
                "",
                op_type,
                list(inputs),
                attributes,
                opset=self.opset,
                num_outputs=outputs,
                wide=wide,
            )
        except OperatorError as error:
            raise Rejected(str(error)) from error
        return [np.asarray(part) for part in found]

    def _result(
        self, narrow: Sequence[Array], wide: Sequence[Array], noisy: bool, constant: bool
    ) -> Value:
        dtype = from_numpy(narrow[0].dtype)
        if len({array.ndim for array in narrow}) > 1:
            raise Rejected("the rank differs between runs")
        if any(array.size > self.max_elements for array in narrow):
            raise Rejected("too large")
        if dtype.is_float:
            limit = LIMITS.get(dtype.name, MAX_MAGNITUDE)
            for array in wide:
                largest = np.abs(array, where=np.isfinite(array), out=np.zeros_like(array))
                if np.max(largest, initial=0.0) > limit:
                    raise Rejected("too large a number")
                if not self.special and not np.isfinite(array).all():
                    raise Rejected("not finite")
        for few, many in zip(narrow, wide, strict=True):
            if few.shape != many.shape:
                raise Rejected("the shape depends on rounding")
            exact = few.astype(many.dtype) if dtype.is_float else few
            if not np.array_equal(exact, many, equal_nan=dtype.is_float):
                if not dtype.is_float:
                    raise Rejected("a step at a rounded value")
                noisy = True
        return Value(
            name=self.name("v"),
            dtype=dtype,
            narrow=tuple(narrow),
            wide=tuple(wide),
            noisy=noisy and dtype.is_float,
            constant=constant,
        )

    def emit_graph(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        captured: Sequence[Value],
        attributes: Mapping[str, Any],
        outputs: int,
    ) -> list[Value]:
        """Adds a node with sub-graphs, evaluated as a model of its own."""
        node = helper.make_node(
            op_type,
            [part.name if part is not None else "" for part in inputs],
            [f"out{k}" for k in range(outputs)],
            **attributes,
        )
        known = {part.name: part for part in (*inputs, *captured) if part is not None}
        graph = helper.make_graph(
            [node],
            "part",
            [
                helper.make_tensor_value_info(part.name, part.dtype.code, [None] * part.rank)
                for part in known.values()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        proto.ir_version = 10
        try:
            part_view = view(load_model(proto))
            results, wide = (
                [
                    _arrays(
                        evaluate_graph(
                            part_view,
                            {name: part.narrow[run] for name, part in known.items()},
                            wide=raised,
                        ).values()
                    )
                    for run in range(self.num_runs)
                ]
                for raised in (False, True)
            )
        except UserError as error:
            raise Rejected(str(error)) from error
        noisy = any(part.noisy for part in known.values())
        made = [
            self._result([run[k] for run in results], [run[k] for run in wide], noisy, False)
            for k in range(outputs)
        ]
        self.append(op_type, inputs, made, attributes)
        return made

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undoes everything when a node is rejected half-way."""
        state = (list(self.values), list(self.nodes), dict(self.initializers), dict(self.inputs))
        try:
            yield
        except Rejected:
            self.values, self.nodes, self.initializers, self.inputs = state
            raise


def _arrays(values: Iterable[Any]) -> list[Array]:
    return [np.asarray(value) for value in values]


def check_types(
    op_type: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any], opset: int
) -> None:
    """Rejects what ONNX does not allow for an operator.

    Raises:
        Rejected: an element type, an attribute or an operator that the opset does not have.
    """
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError as error:
        raise Rejected(f"no {op_type} in opset {opset}") from error
    formal = schema.inputs
    if attributes.keys() - schema.attributes.keys() or len(inputs) > schema.max_input:
        raise Rejected(f"{op_type} of opset {opset} has other attributes or inputs")
    bound: dict[str, DType] = {}
    for position, part in enumerate(inputs):
        if part is None:
            continue
        declared = formal[min(position, len(formal) - 1)]
        if _type_text(part.dtype) not in declared.types:
            raise Rejected(f"{op_type} takes no {part.dtype} as {declared.name}")
        same = bound.setdefault(declared.type_str, part.dtype)
        if same is not part.dtype and declared.is_homogeneous:
            raise Rejected(f"{op_type}: {same} and {part.dtype}")


def _type_text(dtype: DType) -> str:
    names = {"float32": "float", "float64": "double"}
    return f"tensor({names.get(dtype.name, dtype.name)})"
