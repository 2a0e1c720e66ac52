"""Torch modules as engines: a network of convolutions, a transformer block, an LSTM.

Input -> Output: a module with example inputs -> an engine whose outputs equal torch's in float64,
at the example's sizes and at others where sizes are dynamic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.core.errors import BadOption, InvalidModel, ShapeMismatch
from tilewright.runtime.engine import Engine

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Convolutions(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A stem, a depthwise block with a residual sum, squeeze and excitation, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU()
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1)
        )
        self.head = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.GELU(), nn.Flatten(2), nn.Dropout(0.2)
        )
        self.classify = nn.Linear(24, 10)

    def forward(self, image: Any) -> Any:
        x = self.stem(image)
        y = self.depthwise(x)
        x = x + y * torch.sigmoid(self.gate(y))
        return torch.log_softmax(self.classify(self.head(x).mean(-1)), dim=-1)


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Embedding, self-attention with a padding mask, a feed-forward network; two outputs."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        nn = torch.nn
        self.heads = heads
        self.embed = nn.Embedding(50, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, ids: Any, mask: Any) -> Any:
        x = self.embed(ids)
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        bias = torch.where(mask[:, None, None, :], 0.0, -1e9).to(x.dtype)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.feed(self.norm2(x))
        weights = mask.to(x.dtype)[..., None]
        return x, (x * weights).sum(1) / weights.sum(1)


class Recurrent(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A two-layer LSTM in both directions, its final states, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.project = torch.nn.Linear(16, 3)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        y, (last, cell) = self.lstm(x, (h, c))
        return self.project(y), last, cell


def _assert_as_torch(engine: Engine, module: Any, inputs: tuple[Any, ...]) -> None:
    """The engine's outputs equal the module's in float64, to 1e-5 of the largest value."""
    feeds = {spec.name: x.numpy() for spec, x in zip(engine.inputs, inputs, strict=True)}
    got = list(engine.run(feeds).values())
    wide = module.double().eval()
    with torch.no_grad():
        want = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
    module.float()
    for one, other in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        expected = other.numpy()
        assert one.shape == expected.shape
        assert np.abs(one - expected).max() <= 1e-5 * np.abs(expected).max()


def _seeded(module: type) -> Any:
    torch.manual_seed(0)
    made = module()
    for buffer in made.modules():  # batch normalisation that does something
        if isinstance(buffer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(buffer.running_mean, -1, 1)
            torch.nn.init.uniform_(buffer.running_var, 0.5, 2)
    return made


def test_convolutions_with_dynamic_batch_height_and_width() -> None:
    module = _seeded(Convolutions)
    module.train()
    example = (torch.randn(2, 3, 32, 40),)
    engine = tw.compile(
        module, example, dynamic_shapes=({0: "n", 2: "h", 3: "w"},), threads=2, cache=None
    )
    assert module.training  # compiled in evaluation mode, given back as it was
    (told,) = [d for d in engine.decisions if d.chosen == "evaluation mode"]
    assert (told.subject, told.rejected[0][0]) == ("Convolutions", "training mode")
    assert not engine.summary["interpreted"]
    for n, h, w in ((2, 32, 40), (1, 24, 24), (5, 33, 51)):
        _assert_as_torch(engine, module, (torch.randn(n, 3, h, w),))


def test_fixed_sizes_are_checked() -> None:
    engine = tw.compile(_seeded(Convolutions), (torch.randn(1, 3, 32, 32),), cache=None)
    assert [str(dim) for dim in engine.inputs[0].shape or ()] == ["1", "3", "32", "32"]
    with pytest.raises(ShapeMismatch, match="32"):
        engine.run({engine.inputs[0].name: np.zeros((2, 3, 32, 32), np.float32)})


def test_a_transformer_block_with_dynamic_batch_and_sequence() -> None:
    module = _seeded(Block)
    example = (torch.randint(0, 50, (2, 9)), torch.arange(9)[None] < torch.tensor([[9], [6]]))
    dims = {0: "batch", 1: "sequence"}
    engine = tw.compile(module, example, dynamic_shapes=(dims, dims), threads=2, cache=None)
    assert not engine.summary["interpreted"]
    assert [spec.name for spec in engine.inputs] == ["ids", "mask"]
    for batch, length in ((2, 9), (1, 2), (3, 30)):
        ids = torch.randint(0, 50, (batch, length))
        kept = torch.randint(1, length + 1, (batch, 1))
        _assert_as_torch(engine, module, (ids, torch.arange(length)[None] < kept))


def test_an_lstm_with_state() -> None:
    module = _seeded(Recurrent)
    example = (torch.randn(2, 5, 6), torch.randn(4, 2, 8), torch.randn(4, 2, 8))
    engine = tw.compile(module, example, threads=1, cache=None)
    assert not engine.summary["interpreted"]
    for _ in range(2):
        inputs = (torch.randn(2, 5, 6), torch.randn(4, 2, 8), torch.randn(4, 2, 8))
        _assert_as_torch(engine, module, inputs)


def test_an_engine_of_a_module_is_saved_and_loaded(tmp_path: Any) -> None:
    module = _seeded(Recurrent)
    example = (torch.randn(2, 5, 6), torch.randn(4, 2, 8), torch.randn(4, 2, 8))
    tw.compile(module, example, threads=1, cache=None).save(tmp_path / "module.tw")
    _assert_as_torch(tw.load(tmp_path / "module.tw"), module, example)


def test_a_module_needs_example_inputs() -> None:
    with pytest.raises(BadOption, match="example_inputs"):
        tw.compile(torch.nn.Linear(2, 2), cache=None)


def test_a_branch_on_data_is_refused() -> None:
    class Branching(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(InvalidModel, match="torch cannot export"):
        tw.compile(Branching(), (torch.ones(2),), cache=None)


def test_a_dim_brings_its_range() -> None:
    example, shapes = (torch.ones(3, 4),), {"input": {0: torch.export.Dim("batch", min=2, max=4)}}
    module = torch.nn.Linear(4, 3)
    engine = tw.compile(module, example, dynamic_shapes=shapes, cache=None)
    assert engine.ranges == {"batch": (2, 4)}
    with pytest.raises(ShapeMismatch, match=r"dim batch is 5, outside .* 2\.\.4"):
        engine.run({"input": np.ones((5, 4), np.float32)})
    for stated, ranges in (((2, 3), {"batch": (2, 3)}), ((3, 3), {})):
        narrow = tw.compile(
            module, example, dynamic_shapes=shapes, dims={"batch": stated}, cache=None, verify=False
        )
        assert narrow.ranges == ranges
    assert [dim.const for dim in narrow.inputs[0].shape or ()] == [3, 4]
