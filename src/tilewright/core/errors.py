"""The exception tree.

UserError            the caller can mend it; always says what, where and the remedy
  InvalidModel       not a model, damaged, contradictory or hostile
  UnsupportedOp      operators that Tilewright does not know (all of them at once)
  ShapeMismatch      a feed of the wrong name, rank, shape, dtype or outside a declared range
  OutOfRange         an index or value in the data that the operator forbids
  BadTarget          unknown processor or feature
  BadOption          an option that does not exist or contradicts another
  ContractBreach     ``require`` asked for something that the build cannot keep
  VerificationFailed the engine's values differ from the reference beyond the stated tolerance
  CorruptEngine      an engine file that is damaged, foreign or hostile
  OutOfMemory        a plan or an allocation that does not fit
  DeviceFault        a GPU reported an error while kernels ran
  CacheError         a cache or output folder that cannot be written
InternalError        a broken invariant of ours; please report
"""

from __future__ import annotations


class UserError(Exception):
    """An error that its reader can mend.

    Args:
        message: what is wrong, with expected and given values.
        remedy: what to do about it.
        file: the model or engine file concerned.
        node: the graph node concerned.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        file: str | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.file = file
        self.node = node

    def __str__(self) -> str:
        where = [text for text in (self.file, self.node and f"node {self.node}") if text]
        head = f"{', '.join(where)}: {self.message}" if where else self.message
        return f"{head}\n  remedy: {self.remedy}" if self.remedy else head


class InvalidModel(UserError):
    """The file or object is not a valid model."""


class UnsupportedOp(UserError):
    """The model uses operators that cannot be executed; ``operators`` lists them."""

    def __init__(
        self, message: str, *, operators: tuple[str, ...] = (), **where: str | None
    ) -> None:
        super().__init__(message, **where)
        self.operators = operators


class ShapeMismatch(UserError):
    """A feed does not fit the engine's inputs, or shapes inside a model contradict each other."""


class OutOfRange(UserError):
    """A value in the data is outside of what an operator allows (an index, a length)."""


class BadTarget(UserError):
    """The target, processor or feature is unknown or cannot run here."""


class BadOption(UserError):
    """An option is unknown or contradicts another."""


class ContractBreach(UserError):
    """``require`` named a property that the build cannot keep."""


class VerificationFailed(UserError):
    """The compiled engine and the reference disagree beyond the tolerance."""


class CorruptEngine(UserError):
    """The engine file is damaged, truncated, foreign or hostile."""


class OutOfMemory(UserError):
    """The memory plan does not fit."""


class DeviceFault(UserError):
    """A GPU reported an error while kernels ran; the process can no longer use that GPU."""


class CacheError(UserError):
    """A cache folder or an output file cannot be written."""


class InternalError(Exception):
    """A broken invariant inside Tilewright."""
