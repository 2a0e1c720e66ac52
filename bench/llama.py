"""A decoder in the form of Llama as ONNX, with random weights in float16.

Input -> Output: a ``Shape``, how many tokens there are and how many came before -> an ``ir.Model``.
    ids [tokens], positions [1, tokens], past_key_N and past_value_N [1, heads, past, width]
    -> logits [1, words] of the last token, key_N and value_N of the new tokens
Guarantees: equal seeds give equal weights; nothing is written to a file.
Not here: the same network in torch (llama_torch), timing (cuda_table).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]
EPSILON = 1e-5
_OPSET = 23
_PIECE = 1 << 22  # weights that one generator makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder; the standard ones have 1.2 billion weights beside the embedding."""

    width: int = 2048
    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 8192
    words: int = 128256
    longest: int = 2048
    base: float = 500000.0

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads

    @property
    def cache(self) -> int:
        """Elements of a token's keys in one layer."""
        return self.kv_heads * self.head


TINY = Shape(width=256, layers=2, heads=4, kv_heads=2, hidden=512, words=1000, longest=128)


def weights_of(shape: Shape, seed: int = 0) -> dict[str, Array]:
    """All weights, [outputs, inputs]; the cosines and sines of every position."""
    n, made = shape.width, {}
    sizes = {"embedding": (shape.words, n), "head": (shape.words, n)}
    for k in range(shape.layers):
        sizes[f"qkv_{k}"] = (n + 2 * shape.cache, n)
        sizes[f"o_{k}"] = (n, n)
        sizes[f"gate_{k}"] = sizes[f"up_{k}"] = (shape.hidden, n)
        sizes[f"down_{k}"] = (n, shape.hidden)
    for number, (name, (rows, columns)) in enumerate(sizes.items()):
        scale = 1.0 if name == "embedding" else columns**-0.5
        made[name] = _random((rows, columns), scale, (seed, number))
    for name in ("norm", *(f"{part}_norm_{k}" for k in range(shape.layers) for part in "am")):
        made[name] = np.ones(n, np.float16)
    return made | _rotation(shape)


def past_of(shape: Shape, past: int, seed: int = 1) -> dict[str, Array]:
    """Keys and values of the tokens before."""
    size = (1, shape.kv_heads, past, shape.head)
    names = [f"past_{what}_{k}" for k in range(shape.layers) for what in ("key", "value")]
    return {name: _random(size, 0.1, (seed, k)) for k, name in enumerate(names)}


def _random(size: tuple[int, ...], scale: float, seed: tuple[int, ...]) -> Array:
    """Normal numbers; pieces of them are made in parallel."""
    found = np.empty(size, np.float16)
    flat = found.reshape(-1)

    def fill(start: int) -> None:
        part = flat[start : start + _PIECE]
        random = np.random.default_rng((*seed, start))
        part[:] = random.standard_normal(part.size, np.float32) * np.float32(scale)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, flat.size, _PIECE)))
    return found


def _rotation(shape: Shape) -> dict[str, Array]:
    powers = np.arange(0, shape.head, 2) / shape.head
    angles = np.outer(np.arange(shape.longest), shape.base**-powers)
    return {"cos": np.cos(angles).astype(np.float16), "sin": np.sin(angles).astype(np.float16)}


def decoder(shape: Shape, weights: Mapping[str, Array], tokens: int, past: int) -> ir.Model:
    """The model; with tokens before (``past``) the new keys and values are outputs, else those of
    all tokens, [1, heads, tokens, width].
    """
    return _Maker(shape, weights, tokens, past).model()


class _Maker:
    def __init__(self, shape: Shape, weights: Mapping[str, Array], tokens: int, past: int) -> None:
        self.shape, self.weights, self.tokens, self.past = shape, weights, tokens, past
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}
        self.inputs = [
            _input("ids", ir.DataType.INT64, (tokens,)),
            _input("positions", ir.DataType.INT64, (1, tokens)),
        ]
        self.outputs: list[ir.Value] = []

    def model(self) -> ir.Model:
        x = self.node("Gather", self.weight("embedding"), self.inputs[0])
        for k in range(self.shape.layers):
            x = self.layer(x, k)
        x = self.node("Slice", x, self.ints(self.tokens - 1), self.ints(self.tokens), self.ints(0))
        logits = self.linear(self.normalized(x, "norm"), "head")
        self.output(logits, "logits", 0)
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self.nodes,
            initializers=list(self.constants.values()),
            opset_imports={"": _OPSET},
            name="decoder",
        )
        return ir.Model(graph, ir_version=10)

    def layer(self, x: ir.Value, k: int) -> ir.Value:
        s, n, cache = self.shape, self.shape.width, self.shape.cache
        packed = self.linear(self.normalized(x, f"a_norm_{k}"), f"qkv_{k}")
        split = self.node("Split", packed, self.ints(n, cache, cache), outputs=3, axis=1)
        q, key, value = (self.reshaped(part, 1, self.tokens, -1) for part in split)
        q, key = self.rotated(q, s.heads), self.rotated(key, s.kv_heads)
        y = self.reshaped(self.attention(q, key, value, k), self.tokens, n)
        x = self.node("Add", x, self.linear(y, f"o_{k}"))
        normal = self.normalized(x, f"m_norm_{k}")
        gate, up = self.linear(normal, f"gate_{k}"), self.linear(normal, f"up_{k}")
        gate = self.node("Mul", gate, self.node("Sigmoid", gate))
        return self.node("Add", x, self.linear(self.node("Mul", gate, up), f"down_{k}"))

    def attention(self, q: ir.Value, key: ir.Value, value: ir.Value, k: int) -> ir.Value:
        s = self.shape
        heads = {"q_num_heads": s.heads, "kv_num_heads": s.kv_heads}
        if not self.past:
            made = self.node("Attention", q, key, value, outputs=3, is_causal=1, **heads)
            y, key, value = made
        else:
            size = (1, s.kv_heads, self.past, s.head)
            names = (f"past_key_{k}", f"past_value_{k}")
            before = [_input(name, ir.DataType.FLOAT16, size) for name in names]
            self.inputs += before
            y = self.node("Attention", q, key, value, None, *before, **heads)
        self.output(key, f"key_{k}", 2 * k)
        self.output(value, f"value_{k}", 2 * k + 1)
        return y

    # --- nodes ------------------------------------------------------------------------------------

    def node(self, op: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        made = ir.node(op, inputs, attributes, num_outputs=outputs, name=f"{op}_{len(self.nodes)}")
        for place, value in enumerate(made.outputs):
            value.name = f"{made.name}:{place}"
        self.nodes.append(made)
        return made.outputs[0] if outputs == 1 else made.outputs

    def normalized(self, x: ir.Value, name: str) -> ir.Value:
        return self.node("RMSNormalization", x, self.weight(name), axis=-1, epsilon=EPSILON)

    def linear(self, x: ir.Value, name: str) -> ir.Value:
        return self.node("Gemm", x, self.weight(name), transB=1)

    def rotated(self, x: ir.Value, heads: int) -> ir.Value:
        rotation = (self.weight("cos"), self.weight("sin"), self.inputs[1])
        return self.node("RotaryEmbedding", x, *rotation, num_heads=heads, interleaved=1)

    def reshaped(self, x: ir.Value, *shape: int) -> ir.Value:
        return self.node("Reshape", x, self.ints(*shape))

    def output(self, value: ir.Value, name: str, place: int) -> None:
        value.name, value.dtype = name, ir.DataType.FLOAT16
        self.outputs.insert(place, value)

    def weight(self, name: str) -> ir.Value:
        return self._constant(name, self.weights[name])

    def ints(self, *numbers: int) -> ir.Value:
        return self._constant("ints" + "_".join(map(str, numbers)), np.array(numbers, np.int64))

    def _constant(self, name: str, array: Array) -> ir.Value:
        if name not in self.constants:
            tensor = ir.tensor(array, name=name)
            shape = ir.Shape(array.shape)
            kind = ir.TensorType(tensor.dtype)
            value = ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
            self.constants[name] = value
        return self.constants[name]


def _input(name: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def feeds_of(shape: Shape, tokens: int, past: int, seed: int = 2) -> dict[str, Array]:
    """Inputs of a model: the tokens are those after the ones before."""
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(0, shape.words, tokens),
        "positions": np.arange(past, past + tokens)[None],
        **(past_of(shape, past) if past else {}),
    }


def models(shape: Shape, weights: Mapping[str, Array]) -> Iterator[tuple[str, ir.Model]]:
    """Decode after all but one of the positions, and prefill of all of them."""
    yield "decode", decoder(shape, weights, 1, shape.longest - 1)
    yield "prefill", decoder(shape, weights, shape.longest, 0)
