"""``import tilewright`` is light, and its names are the public ones."""

import subprocess
import sys

import pytest

import tilewright

HEAVY = (
    "llvmlite",
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "rich",
    "torch",
    "typer",
)


def _run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, tilewright; print([m for m in {HEAVY} if m in sys.modules])"
    assert _run(code).strip() == "[]"


def test_import_is_quick() -> None:
    code = "import time; start = time.process_time(); import tilewright;"
    code += "print(time.process_time() - start)"
    # Seconds of the processor, not of the clock, and far more than the few ms that it takes.
    assert min(float(_run(code)) for _ in range(3)) < 0.15


def test_help_loads_nothing_that_computes() -> None:
    heavy = tuple(name for name in HEAVY if name not in ("rich", "typer"))
    code = (
        "import sys; sys.argv = ['tilewright', '--help']; from tilewright.cli import main; main();"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert _run(code).splitlines()[-1] == "[]"


def test_public_names_are_fixed() -> None:
    names = ["Decision", "Engine", "Measurement", "Preprocessing", "Quantized", "Require"]
    names += ["UserError", "__version__", "compile", "load", "quantize"]
    assert sorted(tilewright.__all__) == names


@pytest.mark.parametrize("name", tilewright.__all__)
def test_each_public_name_resolves(name: str) -> None:
    assert getattr(tilewright, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        getattr(tilewright, "compil")  # noqa: B009  # a type checker would refuse the plain form
