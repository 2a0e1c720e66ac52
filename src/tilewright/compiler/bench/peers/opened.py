"""A model that a runtime has opened, and what all peers share.

Guarantees: every peer computes in the precision that was asked for, or in ``EXACT`` where it has no
other, or refuses; it says which, and by which settings.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.feeds import Arrays, InputSpec
from tilewright.core.errors import BadOption

EXACT = "fp32"  # types of the model; nothing is narrowed
PRECISIONS = (EXACT, "bf16")


@dataclass(frozen=True, slots=True)
class Bound:
    """A model with its inputs.

    Attributes:
        run: computes; only this is timed.
        outputs: of the last run, as arrays.
    """

    run: Callable[[], object]
    outputs: Callable[[], Arrays]

    @staticmethod
    def of(run: Callable[[], Arrays]) -> Bound:
        """For a runtime whose run gives arrays."""
        return Bound(run, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model ready to run.

    Attributes:
        version: of the runtime.
        inputs: what it is fed with.
        bind: puts inputs in place.
        settings: what was set so that the comparison is fair.
        precision: what it computes in.
    """

    version: str
    inputs: list[InputSpec]
    bind: Callable[[Arrays], Bound]
    settings: str
    precision: str = EXACT


def import_peer(name: str, package: str | None = None) -> Any:
    """Imports a runtime, or what it needs.

    Args:
        name: of the module.
        package: that pip knows it by, if the name is another.

    Raises:
        BadOption: it is not installed, or cannot be loaded here.
    """
    package = package or name
    extra = " (or 'tilewright[bench]')" if name == "onnxruntime" else ""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        lacking = (error.name or name).partition(".")[0]
        if lacking != name:
            message = f"{name} needs {lacking}, which is not installed"
            raise BadOption(message, remedy=f"pip install {lacking}") from None
        raise BadOption(
            f"{name} is not installed", remedy=f"pip install {package}{extra}"
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        remedy = f"install it again: pip install --force-reinstall {package}"
        raise BadOption(f"{name} cannot be loaded: {said}", remedy=remedy) from None
