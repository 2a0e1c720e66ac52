"""LLVM IR text to object code.

Input -> Output: a module's text and its target -> the bytes of a relocatable object.
Guarantees: equal text, target and LLVM version give equal bytes; the module is verified first.
Requires: kernels come in their final shape; nothing is vectorised or unrolled here.
Not here: loading (runtime.cpu.loader), caching (tune).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache

import llvmlite.binding as llvm

from tilewright.codegen.cpu.target import CpuTarget
from tilewright.core.errors import BadTarget, InternalError


def compile_module(text: str, target: CpuTarget) -> bytes:
    """Object code of a module (position independent; an ELF or Mach-O file in memory).

    Raises:
        BadTarget: this LLVM has no such processor.
        InternalError: the text is not valid IR.
    """
    return bytes(_machine(target).emit_object(_optimised(text, target)))


def assembly(text: str, target: CpuTarget) -> str:
    """The same code as readable assembly."""
    return str(_machine(target).emit_assembly(_optimised(text, target)))


def optimised_ir(text: str, target: CpuTarget) -> str:
    """The module after the passes, as LLVM IR text."""
    return str(_optimised(text, target))


def llvm_version() -> str:
    """LLVM's version, part of every cache key."""
    return ".".join(str(part) for part in llvm.llvm_version_info)


def module_key(text: str, target: CpuTarget) -> str:
    """A hash (64 hex digits) of all that the object code depends on."""
    facts = json.dumps([llvm_version(), asdict(target), text], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _machine(target: CpuTarget) -> llvm.TargetMachine:
    _initialize()
    try:
        found = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise BadTarget(
            f"no code generator for {target.triple}: {error}", remedy="choose another target"
        ) from error
    return found.create_target_machine(
        cpu=target.name, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def _optimised(text: str, target: CpuTarget) -> llvm.ModuleRef:
    machine = _machine(target)
    try:
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"invalid LLVM IR: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.slp_vectorization = False
    options.loop_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    _passes().run(module, builder)
    return module


def _passes() -> llvm.ModulePassManager:
    # Builder has removed common subexpressions and rotated the loops; the rest of -O2 takes
    # ten times as long and makes nothing faster here.
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    manager.add_instruction_combine_pass()
    return manager
