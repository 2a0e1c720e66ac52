"""Which GPUs code is made for.

Input -> Output: ``cuda`` or ``sm_90`` or ``sm_80+sm_90`` -> ``CudaTarget``.
Guarantees: an unknown architecture is a ``BadTarget`` that lists the known ones.
Not here: limits and peaks of the architectures (hw.tables).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.errors import BadTarget

KNOWN = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_CLUSTERS = 90  # the first architecture with clusters of blocks
_DEFAULT = ("sm_80", "sm_90", "sm_100")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaTarget:
    """Architectures that an engine holds machine code for, the lowest first.

    The engine also holds PTX of the lowest one, from which a driver makes code for any newer one.
    """

    archs: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(self.archs)

    @property
    def clusters(self) -> bool:
        """Whether blocks of a cluster can read each other's memory on all of them."""
        return all(int(arch[3:]) >= _CLUSTERS for arch in self.archs)


def is_cuda(name: object) -> bool:
    """Whether a target's name is one of a GPU."""
    return isinstance(name, str) and (name == "cuda" or name.startswith("sm_"))


def cuda_target(name: str) -> CudaTarget:
    """The target of a name.

    Raises:
        BadTarget: an architecture is unknown.
    """
    archs = _DEFAULT if name == "cuda" else tuple(dict.fromkeys(name.split("+")))
    unknown = [arch for arch in archs if arch not in KNOWN]
    if unknown:
        raise BadTarget(
            f"unknown GPU architecture {', '.join(unknown)}",
            remedy=f"use cuda, or some of {', '.join(KNOWN)} with + between them",
        )
    return CudaTarget(archs=tuple(sorted(archs, key=lambda arch: int(arch[3:]))))
