"""Kernels compile for every architecture, without a GPU and without spills."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_all, compile_text
from tilewright.codegen.cuda.target import CudaTarget, cuda_target, is_cuda
from tilewright.core.errors import BadTarget, InternalError
from unit.codegen.cpu.kernels import KERNELS

ARCHS = ("sm_80", "sm_90", "sm_100")


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_without_spills(name: str, arch: str) -> None:
    made = generate(KERNELS[name]())
    compiled = compile_text(made.text, arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert f".target {arch}".encode() in compiled.ptx
    assert set(compiled.usage) == {stage.launch.symbol for stage in made.stages}
    for usage in compiled.usage.values():
        assert 0 < usage.registers <= 255
        if name != "deep_sum":  # 700 parameters
            assert usage.spill_bytes == 0


@pytest.mark.nvrtc
def test_all_architectures_of_a_target() -> None:
    texts = {"a": generate(KERNELS["add_relu"]()).text}
    target = CudaTarget(archs=("sm_80", "sm_90"))
    code, compiled = compile_all(texts, target)
    assert sorted(code) == ["a.ptx", "a.sm_80.cubin", "a.sm_90.cubin"]
    assert code["a.ptx"] == compiled["a"]["sm_80"].ptx
    assert compile_all(texts, target)[0] == code


@pytest.mark.nvrtc
def test_what_does_not_compile_is_named() -> None:
    with pytest.raises(InternalError, match="does not compile for sm_90"):
        compile_text("nonsense", "sm_90")
    with pytest.raises(BadTarget, match="does not know sm_10"):
        compile_text("", "sm_10")


def test_targets() -> None:
    assert cuda_target("cuda").archs == ARCHS
    assert cuda_target("sm_90+sm_80+sm_90").archs == ("sm_80", "sm_90")
    assert is_cuda("sm_90")
    assert not is_cuda("cpu")
    with pytest.raises(BadTarget, match="unknown GPU architecture sm_75"):
        cuda_target("sm_75")


def test_without_the_compiler_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cuda'] = None\n"
        "from tilewright.codegen.cuda.nvrtc import compile_text\n"
        "try: compile_text('', 'sm_90')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("BadTarget the CUDA compiler is not installed")
    assert 'pip install "tilewright[cuda]"' in found.stdout
