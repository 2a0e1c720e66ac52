"""What a linter says of a quantised model.

Input -> Output: rules make ``Finding``s; reports render them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault or waste of a model.

    Attributes:
        rule: which kind (``weight-axis``, ``bias-scale`` ...).
        severity: ``error``: runtimes refuse it or disagree; ``warning``: accuracy, speed or size
            is lost.
        node: where, with its operator.
        message: what is wrong, with the numbers.
        remedy: what to do.
        price_us: time that it costs in one run by the roofline; None where it costs none, or
            sizes are not known.
        price_bytes: bytes that the file is larger for it; 0 where it is not.
    """

    rule: str
    severity: str
    node: str
    message: str
    remedy: str
    price_us: float | None = None
    price_bytes: int = 0

    def __str__(self) -> str:
        price = "" if self.price_us is None else f" [about {self.price_us:.3g} us a run]"
        price += f" [{self.price_bytes / 1e6:.3g} MB]" if self.price_bytes else ""
        return (
            f"{self.severity}: {self.node}: {self.message}{price} ({self.rule})\n    "
            f"remedy: {self.remedy}"
        )
