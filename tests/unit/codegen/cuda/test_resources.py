"""What kernels need of a GPU, beside what they needed when that was last looked at."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text, compiler_version
from unit.codegen.cpu.kernels import KERNELS
from unit.codegen.cuda.contractions import CONTRACTIONS, NARROW

RECORD = Path(__file__).with_name("resources.json")
ARCHS = ("sm_80", "sm_90", "sm_100")
MORE = 1.15  # times as many registers as recorded: fewer warps fit
Usage = dict[str, Any]


@cache
def _recorded() -> Usage:
    found: Usage = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _usage(name: str, arch: str) -> Usage:
    contractions = {**CONTRACTIONS, **NARROW}
    kernel = contractions[name] if name in contractions else KERNELS[name]()
    return {
        symbol: {
            "registers": usage.registers,
            "spill_bytes": usage.spill_bytes,
            "shared_bytes": usage.shared_bytes,
        }
        for symbol, usage in compile_text(generate(kernel).text, arch).usage.items()
    }


def regressions(found: Usage, recorded: Usage) -> list[str]:
    """What a kernel needs more of than recorded."""
    worse = []
    for symbol, usage in found.items():
        before = recorded.get(symbol)
        if before is None:
            continue
        if usage["registers"] > max(MORE * before["registers"], before["registers"] + 4):
            worse.append(f"{symbol}: {usage['registers']} registers, {before['registers']} before")
        worse += [
            f"{symbol}: {usage[what]} {what}, {before[what]} before"
            for what in ("spill_bytes", "shared_bytes")
            if usage[what] > before[what]
        ]
    return worse


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", [*CONTRACTIONS, *NARROW, *KERNELS])
def test_kernels_need_no_more_than_recorded(name: str, arch: str, update_golden: bool) -> None:
    found = _usage(name, arch)
    if update_golden:
        record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
        record["compiler"] = compiler_version()
        record.setdefault("kernels", {}).setdefault(name, {})[arch] = found
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return
    if _recorded()["compiler"] != compiler_version():
        pytest.skip(f"recorded with NVRTC {_recorded()['compiler']}: run with --update-golden")
    recorded = _recorded()["kernels"].get(name, {}).get(arch)
    assert recorded is not None, "a new kernel: run with --update-golden, and look at the numbers"
    assert regressions(found, recorded) == []


def test_more_registers_and_spills_are_flagged() -> None:
    before = {"stage_0": {"registers": 64, "spill_bytes": 0, "shared_bytes": 128}}
    same = {"stage_0": {"registers": 66, "spill_bytes": 0, "shared_bytes": 0}}
    worse = {"stage_0": {"registers": 128, "spill_bytes": 8, "shared_bytes": 128}}
    assert regressions(same, before) == []
    assert len(regressions(worse, before)) == 2
