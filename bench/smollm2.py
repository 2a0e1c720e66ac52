"""SmolLM2-135M as ONNX and text as its tokens, both from the published GGUF file.

Input -> Output: ``SmolLM2-135M-Instruct.Q4_1.gguf`` -> facts and float32 weights -> a model
[1, length] of token numbers -> logits, and the numbers of a text's tokens.
Not here: what is measured with them (quantization).
"""

import re
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _LIST = 8, 9
_BLOCK = 32
_Q8_0 = np.dtype([("scale", "<f2"), ("codes", "i1", _BLOCK)])
_Q4_1 = np.dtype([("scale", "<f2"), ("least", "<f2"), ("codes", "u1", _BLOCK // 2)])
# Words with the space before them, digits one by one, signs, and what space is left.
_WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


class _Reader:
    """Numbers and texts of a file, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self.data, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            inner, count = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(count)]
        return self.number(_SCALARS[kind])


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and float32 weights by name, [outputs, inputs]."""
    file = _Reader(path.read_bytes())
    if file.data[:4] != b"GGUF":
        raise ValueError(f"{path} is no GGUF file")
    file.at = 8  # after the version
    num_weights, num_facts = file.number("Q"), file.number("Q")
    facts = {}
    for _ in range(num_facts):
        name = file.text()
        facts[name] = file.value(file.number("I"))
    found = []
    for _ in range(num_weights):
        name, dims = file.text(), [file.number("Q") for _ in range(file.number("I"))]
        found.append((name, dims[::-1], file.number("I"), file.number("Q")))
    align = facts.get("general.alignment", 32)
    start = -(-file.at // align) * align
    return facts, {
        name: _floats(file.data, kind, int(np.prod(shape)), start + offset).reshape(shape)
        for name, shape, kind, offset in found
    }


def _floats(data: bytes, kind: int, count: int, at: int) -> Any:
    if kind == 0:
        return np.frombuffer(data, "<f4", count, at)
    if kind == 8:
        rows = np.frombuffer(data, _Q8_0, count // _BLOCK, at)
        return rows["scale"].astype(np.float32)[:, None] * rows["codes"]
    if kind == 3:
        rows = np.frombuffer(data, _Q4_1, count // _BLOCK, at)
        codes = np.concatenate([rows["codes"] & 15, rows["codes"] >> 4], axis=1)
        scale, least = (rows[name].astype(np.float32)[:, None] for name in ("scale", "least"))
        return scale * codes + least
    raise ValueError(f"weights of kind {kind} are not known here")


def tokenizer(facts: Mapping[str, Any]) -> Callable[[str], list[int]]:
    """A function that gives the numbers of a text's tokens (byte pairs, as in GPT-2)."""
    numbers = {token: n for n, token in enumerate(facts["tokenizer.ggml.tokens"])}
    pairs = (tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"])
    ranks = {pair: n for n, pair in enumerate(pairs)}
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    known: dict[str, list[int]] = {}

    def joined(word: str) -> list[int]:
        parts = list(word)
        while len(parts) > 1:
            ranked = [
                (ranks.get((left, right), len(ranks)), n)
                for n, (left, right) in enumerate(pairwise(parts))
            ]
            rank, n = min(ranked)
            if rank == len(ranks):
                break
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        return [numbers[part] for part in parts]

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for match in _WORDS.finditer(text):
            word = "".join(letters[byte] for byte in match.group().encode())
            if word not in known:
                known[word] = joined(word)
            found += known[word]
        return found

    return encode


def network(facts: Mapping[str, Any], weights: Mapping[str, Any], length: int) -> onnx.ModelProto:
    """The model for ``length`` tokens: ids int64 [1, length] -> logits [1, length, words]."""
    built = _Network(facts, weights, length)
    return built.model()


class _Network:
    def __init__(self, facts: Mapping[str, Any], weights: Mapping[str, Any], length: int) -> None:
        self.weights, self.length = weights, length
        self.layers = facts["llama.block_count"]
        self.heads = facts["llama.attention.head_count"]
        self.pairs = facts["llama.attention.head_count_kv"]
        self.epsilon = facts["llama.attention.layer_norm_rms_epsilon"]
        size = facts["llama.embedding_length"] // self.heads
        steps = facts.get("llama.rope.freq_base", 1e4) ** (-np.arange(0, size, 2) / size)
        self.angles = np.arange(length)[:, None] * steps
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: Any) -> str:
        plain = np.ascontiguousarray(array, np.float32)
        self.constants.append(numpy_helper.from_array(plain, name))
        return name

    def op(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def product(self, x: str, name: str) -> str:
        weights = self.constant(f"{name}.w", self.weights[f"{name}.weight"].T)
        return self.op("MatMul", [x, weights], name)

    def normal(self, x: str, name: str) -> str:
        gain = self.constant(f"{name}.w", self.weights[f"{name}.weight"])
        return self.op("RMSNormalization", [x, gain], name, epsilon=self.epsilon)

    def attention(self, x: str, at: str) -> str:
        normal = self.normal(x, f"{at}attn_norm")
        q, k, v = (self.product(normal, f"{at}attn_{part}") for part in "qkv")
        for_q = {"interleaved": 1, "num_heads": self.heads}
        for_k = {"interleaved": 1, "num_heads": self.pairs}
        q = self.op("RotaryEmbedding", [q, "cos", "sin"], f"{at}q", **for_q)
        k = self.op("RotaryEmbedding", [k, "cos", "sin"], f"{at}k", **for_k)
        heads = {"is_causal": 1, "q_num_heads": self.heads, "kv_num_heads": self.pairs}
        mixed = self.op("Attention", [q, k, v], f"{at}attention", **heads)
        return self.op("Add", [x, self.product(mixed, f"{at}attn_output")], f"{at}sum")

    def feed_forward(self, x: str, at: str) -> str:
        normal = self.normal(x, f"{at}ffn_norm")
        gate, up = (self.product(normal, f"{at}ffn_{part}") for part in ("gate", "up"))
        gated = self.op("Mul", [self.op("Swish", [gate], f"{at}swish"), up], f"{at}gated")
        return self.op("Add", [x, self.product(gated, f"{at}ffn_down")], f"{at}out")

    def model(self) -> onnx.ModelProto:
        words = self.weights["token_embd.weight"]
        self.constant("cos", np.cos(self.angles)[None])
        self.constant("sin", np.sin(self.angles)[None])
        x = self.op("Gather", [self.constant("words", words), "ids"], "embedded")
        for number in range(self.layers):
            x = self.attention(x, f"blk.{number}.")
            x = self.feed_forward(x, f"blk.{number}.")
        head = self.constant("head", self.weights.get("output.weight", words).T)
        self.op("MatMul", [self.normal(x, "output_norm"), head], "logits")
        kinds = onnx.TensorProto
        shape = [1, self.length, len(words)]
        graph = helper.make_graph(
            self.nodes,
            "smollm2",
            [helper.make_tensor_value_info("ids", kinds.INT64, [1, self.length])],
            [helper.make_tensor_value_info("logits", kinds.FLOAT, shape)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 24)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)
