"""ONNX graphs as torch modules, for comparison with torch.

Input -> Output: a graph of fixed sizes (as ``tilewright.compile(dump_graph=)`` writes it) -> an
``fx.GraphModule`` in one precision, on one device.
Guarantees: what torch has fused operators for is called so: a product with a bias is ``addmm``,
attention is ``scaled_dot_product_attention``; an operator that is not known is an error.
Not here: operators that no benchmark has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from onnx import helper, numpy_helper
from torch import fx, nn

_TYPES = {
    onnx.TensorProto.BOOL: torch.bool,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
}


def to_torch(path: Path, dtype: torch.dtype, device: str) -> fx.GraphModule:
    """The module of a graph; images and their weights have their channels last.

    Raises:
        NotImplementedError: an operator is not known.
    """
    return _Importer(onnx.load(path).graph, dtype, device).module()


class _Importer:
    def __init__(self, source: Any, dtype: torch.dtype, device: str) -> None:
        self.source, self.dtype, self.device = source, dtype, device
        self.constants = {t.name: numpy_helper.to_array(t) for t in source.initializer}
        self.makers = {out: node for node in source.node for out in node.output}
        self.readers: dict[str, list[Any]] = {}
        for node in source.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.graph, self.root = fx.Graph(), nn.Module()
        self.values: dict[str, Any] = {}

    def module(self) -> fx.GraphModule:
        for info in self.source.input:
            if info.name not in self.constants:
                self.values[info.name] = self.graph.placeholder(f"in_{len(self.values)}")
        for node in self.source.node:
            fused = self._attention(node) or self._linear(node)
            if fused is not None:
                self.values[node.output[0]] = fused
                continue
            results = self._call(node)
            if len(node.output) == 1:
                self.values[node.output[0]] = results
            else:
                for k, name in enumerate(node.output):
                    self.values[name] = self.graph.call_function(_item, (results, k))
        outputs = tuple(self.value(out.name) for out in self.source.output)
        self.graph.output(outputs)
        self.graph.eliminate_dead_code()
        made = fx.GraphModule(self.root, self.graph)
        made.recompile()
        return made

    # --- values -----------------------------------------------------------------------------------

    def value(self, name: str) -> Any:
        """A value as a node of the graph; constants become buffers when they are first read."""
        if name not in self.values:
            array = self.constants[name]
            tensor = torch.from_numpy(np.array(array)).to(self.device)
            if tensor.is_floating_point():
                tensor = tensor.to(self.dtype)
            if tensor.ndim == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            key = f"c{len(self.values)}"
            self.root.register_buffer(key, tensor)
            self.values[name] = self.graph.get_attr(key)
        return self.values[name]

    def ints(self, name: str) -> list[int]:
        return [int(number) for number in self.constants[name].reshape(-1)]

    def _call(self, node: Any) -> Any:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        make: Callable[..., Any] | None = getattr(self, f"_{node.op_type.lower()}", None)
        if make is not None:
            return make(node, attributes)
        function = _PLAIN.get(node.op_type)
        if function is None:
            raise NotImplementedError(node.op_type)
        return self.graph.call_function(function, tuple(map(self.value, node.input)))

    def _function(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self.graph.call_function(function, args, options)

    # --- fused ------------------------------------------------------------------------------------

    def _only(self, name: str, op_type: str) -> Any | None:
        node = self.makers.get(name)
        return node if node is not None and node.op_type == op_type else None

    def _linear(self, node: Any) -> Any | None:
        """``x @ w + b`` for constant w and b."""
        if node.op_type != "Add":
            return None
        for bias, product in (node.input, node.input[::-1]):
            made = self._only(product, "MatMul")
            if made is None or bias not in self.constants or self.constants[bias].ndim != 1:
                continue
            weight = made.input[1]
            if weight in self.constants and self.constants[weight].ndim == 2:
                if len(self.readers[product]) != 1:
                    continue
                transposed = f"{weight}/transposed"
                self.constants[transposed] = np.ascontiguousarray(self.constants[weight].T)
                values = (made.input[0], transposed, bias)
                return self._function(F.linear, *map(self.value, values))
        return None

    def _attention(self, node: Any) -> Any | None:
        """``softmax(q k + mask) v``, with or without a guard against NaN."""
        if node.op_type != "MatMul":
            return None
        weights = node.input[0]
        guard = self._only(weights, "Where")
        if guard is not None:
            weights = guard.input[2]
        softmax = self._only(weights, "Softmax")
        scores = None if softmax is None else self._only(softmax.input[0], "Add")
        if scores is None:
            return None
        product, mask = scores.input
        made = self._only(product, "MatMul")
        if made is None:
            return None
        query, key = map(self.value, made.input)
        keys = self._function(torch.transpose, key, -1, -2)
        return self._function(
            F.scaled_dot_product_attention,
            query,
            keys,
            self.value(node.input[1]),
            attn_mask=self.value(mask),
            scale=1.0,
        )

    # --- operators --------------------------------------------------------------------------------

    def _conv(self, node: Any, attributes: Any) -> Any:
        x, weight, *bias = map(self.value, node.input)
        x, pads = self._padded(x, attributes, self.constants[node.input[1]].shape[2:])
        return self._function(
            F.conv2d,
            x,
            weight,
            bias[0] if bias else None,
            stride=tuple(attributes.get("strides", (1, 1))),
            padding=pads,
            dilation=tuple(attributes.get("dilations", (1, 1))),
            groups=attributes.get("group", 1),
        )

    def _padded(self, x: Any, attributes: Any, kernel: Any, fill: float = 0.0) -> Any:
        """The image, with what torch's operators cannot pad, and what they can."""
        pads = list(attributes.get("pads", (0, 0, 0, 0)))
        if attributes.get("auto_pad", b"NOTSET") == b"SAME_UPPER":
            assert tuple(attributes.get("strides", (1, 1))) == (1, 1)
            total = [size - 1 for size in kernel]
            pads = [*(t // 2 for t in total), *(t - t // 2 for t in total)]
        if pads[:2] == pads[2:]:
            return x, tuple(pads[:2])
        top, left, bottom, right = pads
        return self._function(F.pad, x, (left, right, top, bottom), value=fill), (0, 0)

    def _convtranspose(self, node: Any, attributes: Any) -> Any:
        assert attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
        x, weight, *bias = map(self.value, node.input)
        return self._function(
            F.conv_transpose2d,
            x,
            weight,
            bias[0] if bias else None,
            stride=tuple(attributes.get("strides", (1, 1))),
            padding=tuple(attributes.get("pads", (0, 0, 0, 0)))[:2],
            groups=attributes.get("group", 1),
        )

    def _maxpool(self, node: Any, attributes: Any) -> Any:
        kernel = tuple(attributes["kernel_shape"])
        x, pads = self._padded(self.value(node.input[0]), attributes, kernel, float("-inf"))
        stride = tuple(attributes.get("strides", (1, 1)))
        return self._function(F.max_pool2d, x, kernel, stride=stride, padding=pads)

    def _gemm(self, node: Any, attributes: Any) -> Any:
        x, weight, *bias = map(self.value, node.input)
        if not attributes.get("transB", 0):
            weight = self._function(torch.transpose, weight, 0, 1)
        return self._function(F.linear, x, weight, *bias)

    def _globalaveragepool(self, node: Any, _: Any) -> Any:
        return self._function(torch.mean, self.value(node.input[0]), (2, 3), True)

    def _reducemean(self, node: Any, attributes: Any) -> Any:
        keep = bool(attributes.get("keepdims", 1))
        axes = tuple(self.ints(node.input[1]))
        return self._function(torch.mean, self.value(node.input[0]), axes, keep)

    def _flatten(self, node: Any, attributes: Any) -> Any:
        return self._function(torch.flatten, self.value(node.input[0]), attributes.get("axis", 1))

    def _clip(self, node: Any, _: Any) -> Any:
        low, high = (float(self.constants[name]) for name in node.input[1:3])
        return self._function(torch.clamp, self.value(node.input[0]), low, high)

    def _reshape(self, node: Any, _: Any) -> Any:
        return self._function(_reshape, self.value(node.input[0]), tuple(self.ints(node.input[1])))

    def _hardsigmoid(self, node: Any, attributes: Any) -> Any:
        alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        return self._function(_hard_sigmoid, self.value(node.input[0]), alpha, beta)

    def _gelu(self, node: Any, attributes: Any) -> Any:
        how = attributes.get("approximate", b"none").decode()
        return self._function(F.gelu, self.value(node.input[0]), approximate=how)

    def _concat(self, node: Any, attributes: Any) -> Any:
        return self._function(torch.cat, [*map(self.value, node.input)], attributes["axis"])

    def _resize(self, node: Any, attributes: Any) -> Any:
        assert attributes.get("mode") == b"nearest"
        assert attributes.get("coordinate_transformation_mode") == b"asymmetric"
        scales = tuple(float(number) for number in self.constants[node.input[2]][2:])
        x = self.value(node.input[0])
        return self._function(F.interpolate, x, scale_factor=scales, mode="nearest")

    def _gather(self, node: Any, attributes: Any) -> Any:
        data, indices = node.input
        if attributes.get("axis", 0) == 0 and indices in self.values:
            return self._function(F.embedding, self.value(indices), self.value(data))
        raise NotImplementedError("Gather along another axis")

    def _cast(self, node: Any, attributes: Any) -> Any:
        dtype = _TYPES.get(attributes["to"], self.dtype)
        return self._function(torch.Tensor.to, self.value(node.input[0]), dtype)

    def _unsqueeze(self, node: Any, _: Any) -> Any:
        x = self.value(node.input[0])
        for axis in sorted(self.ints(node.input[1])):
            x = self._function(torch.unsqueeze, x, axis)
        return x

    def _expand(self, node: Any, _: Any) -> Any:
        shape = tuple(-1 if size == 1 else size for size in self.ints(node.input[1]))
        return self._function(torch.Tensor.expand, self.value(node.input[0]), shape)

    def _split(self, node: Any, attributes: Any) -> Any:
        sizes = self.ints(node.input[1])
        return self._function(torch.split, self.value(node.input[0]), sizes, attributes["axis"])

    def _transpose(self, node: Any, attributes: Any) -> Any:
        return self._function(torch.permute, self.value(node.input[0]), tuple(attributes["perm"]))

    def _softmax(self, node: Any, attributes: Any) -> Any:
        return self._function(torch.softmax, self.value(node.input[0]), attributes.get("axis", -1))

    def _layernormalization(self, node: Any, attributes: Any) -> Any:
        x, weight, *bias = map(self.value, node.input)
        assert attributes.get("axis", -1) == -1
        shape = tuple(self.constants[node.input[1]].shape)
        eps = attributes.get("epsilon", 1e-5)
        return self._function(F.layer_norm, x, shape, weight, bias[0] if bias else None, eps)


def _item(values: Any, k: int) -> Any:
    return values[k]


def _reshape(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x.reshape([x.shape[k] if size == 0 else size for k, size in enumerate(shape)])


def _hard_sigmoid(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


_PLAIN: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Div": torch.div,
    "IsNaN": torch.isnan,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sub": torch.sub,
    "Where": torch.where,
}
