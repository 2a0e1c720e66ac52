"""Which features a processor lacks for somebody's code."""

import platform

import llvmlite.binding as llvm
import pytest

from tilewright.runtime.cpu import host
from tilewright.runtime.cpu.host import missing_features


def test_this_processor_has_what_llvm_says_it_has() -> None:
    present = [name for name, on in llvm.get_host_cpu_features().items() if on]
    assert missing_features("", present) == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64")
def test_linux_and_llvm_agree_on_every_feature_that_code_is_generated_for() -> None:
    features = llvm.get_host_cpu_features()
    for name, linux in host._LINUX_NAMES.items():
        if name in features and host._linux_flags():
            assert (linux in host._linux_flags()) <= features[name], name


def test_a_feature_of_no_processor_is_missing() -> None:
    assert missing_features("", ["avx9000"]) == ["avx9000"]


def test_another_architecture_is_missing_as_a_whole() -> None:
    assert missing_features("riscv64-unknown-linux-gnu", ["avx2"]) == ["riscv64"]
