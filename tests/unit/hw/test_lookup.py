"""Names that people use find the row; others list what there is."""

import pytest

from tilewright.core.errors import BadTarget
from tilewright.hw.lookup import board_of_device, find_arch, find_board


@pytest.mark.parametrize(
    "name", ["sm_90", "sm_90a", "SM90", "90", "9.0", "compute_90", "cc 9.0", " sm_90 "]
)
def test_spellings_of_an_architecture(name: str) -> None:
    assert find_arch(name).capability == (9, 0)


@pytest.mark.parametrize(
    ("name", "found"), [("10.3", "sm_103"), ("120f", "sm_120"), ("7.5", "sm_75")]
)
def test_architectures_of_two_digits(name: str, found: str) -> None:
    assert find_arch(name).name == found


@pytest.mark.parametrize("name", ["sm_91", "sm_6", "hopper", "", "sm_9000", "9.0.0"])
def test_an_unknown_architecture_lists_all(name: str) -> None:
    with pytest.raises(BadTarget, match=r"sm_70, sm_75.*sm_121"):
        find_arch(name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4080", "RTX 4080"),
        ("RTX 4080 Super", "RTX 4080 SUPER"),
        ("a100-pcie", "A100-PCIe-80GB"),
        ("thor", "Jetson T5000 (Thor)"),
    ],
)
def test_spellings_of_a_board(name: str, found: str) -> None:
    assert find_board(name).name == found


def test_an_unknown_board_lists_all() -> None:
    with pytest.raises(BadTarget, match=r"unknown board 'H300'(?s:.*)V100-SXM2.*RTX 5060"):
        find_board("H300")
    with pytest.raises(BadTarget, match="unknown board"):
        find_board("")


def test_an_ambiguous_board_lists_the_candidates() -> None:
    with pytest.raises(BadTarget, match="several boards") as error:
        find_board("A100")
    assert error.value.remedy == "use one of A100-SXM4-40GB, A100-SXM4-80GB, A100-PCIe-80GB"


def test_a_drivers_name_counts_only_with_the_same_number_of_sms() -> None:
    found = board_of_device("NVIDIA H200", 132)
    assert found is not None
    assert found.name == "H200"
    assert board_of_device("NVIDIA H200", 16) is None  # a slice of one
    assert board_of_device("NVIDIA GeForce RTX 4080 SUPER", 80) == find_board("RTX 4080 SUPER")
    assert board_of_device("Some GPU", 132) is None
