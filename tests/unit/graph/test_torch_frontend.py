"""Torch modules are imported in memory, in evaluation mode, with symbolic sizes."""

import builtins
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import BadOption, InvalidModel
from tilewright.graph.load import view
from tilewright.graph.normalize import normalize
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.torch_frontend import declared_ranges, import_torch, is_torch_module


def network() -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.Dropout(0.5),
        torch.nn.ReLU(),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_module_with_symbolic_sizes() -> None:
    module = network()
    import torch

    example = torch.randn(2, 3, 8, 8)
    shapes = ({0: "batch", 2: "h", 3: "w"},)
    model = import_torch(module, (example,), dynamic_shapes=shapes, input_names=["image"])
    assert module.training
    normalize(model)
    seen = view(model)
    assert [value.name for value in seen.inputs] == ["image"]
    assert [str(dim) for dim in seen.inputs[0].shape or ()] == ["batch", "3", "h", "w"]
    x = torch.randn(1, 3, 5, 6)
    result = evaluate_graph(seen, {"image": x.numpy()})[seen.outputs[0].name]
    expected = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_cannot_export_is_refused() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Branching(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(InvalidModel, match="torch cannot export") as caught:
        import_torch(Branching(), (torch.ones(2),))
    assert caught.value.file == "<Branching>"


def test_inputs_must_be_a_sequence_or_a_mapping() -> None:
    module = network()
    import torch

    with pytest.raises(BadOption, match="tuple or a dict"):
        import_torch(module, torch.ones(2))


def test_absent_torch_gives_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_torch(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] in ("torch", "onnxscript"):
            raise ImportError("absent", name=name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(BadOption, match=r"tilewright\[torch\]"):
        import_torch(object(), ())


def test_modules_are_recognised_by_their_base_classes() -> None:
    class Module:
        pass

    Module.__module__ = "torch.nn.modules.module"
    assert is_torch_module(type("Mine", (Module,), {})())
    assert not is_torch_module(object())


def test_named_dims_state_their_ranges() -> None:
    torch = pytest.importorskip("torch")
    make = torch.export.Dim
    batch = make("batch", min=2, max=4)
    shapes = {"x": {0: batch, 1: make("width", max=9)}, "y": ({0: 2 * batch}, None)}
    assert declared_ranges(shapes) == {"batch": (2, 4), "width": (None, 9)}
    assert declared_ranges({"x": {0: make("batch")}, "y": ("b", make.AUTO)}) == {}
    assert declared_ranges(None) == {}
