"""Ctrl-C and requests to end: each ends the command cleanly, wherever it arrives.

Input -> Output: SIGINT, SIGTERM, SIGHUP -> ``KeyboardInterrupt`` in the main thread, and the exit
code that tells of it, 128 + the signal.
Guarantees: a signal is not lost where Python cannot pass an exception on (finalizers, callbacks of
weak references): it comes again shortly after. A module is not left half imported: the first signal
waits for the end of the import, another one does not.
Requires: nothing heavy is imported here, as this comes first.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Protocol

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 0.02


class _Unraisable(Protocol):
    """What ``sys.unraisablehook`` is given."""

    exc_type: type[BaseException]
    exc_value: BaseException | None
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: Any


class Interrupts:
    """The signals that arrived."""

    def __init__(self) -> None:
        self.received: int = 0

    @property
    def exit_code(self) -> int:
        """Of a command that was interrupted: 130 for Ctrl-C."""
        return 128 + (self.received or signal.SIGINT)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Interrupts the main thread; while it imports, at the first signal, later."""
        is_first, self.received = not self.received, number
        if is_first and _is_importing(frame):
            _repeat()
        else:
            raise KeyboardInterrupt

    def on_repeat(self, number: int, frame: FrameType | None) -> None:
        """The same for a signal that had to wait, or was lost."""
        del number
        if _is_importing(frame):
            _repeat()
        else:
            raise KeyboardInterrupt

    def on_unraisable(self, lost: _Unraisable) -> None:
        """An interrupt that no caller got to see comes again."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _repeat()
        else:
            sys.__unraisablehook__(lost)


@contextmanager
def watched() -> Iterator[Interrupts]:
    """Handles the signals; afterwards they end the process at once, as nothing is left to clean."""
    interrupts = Interrupts()
    # What was ignored from the start (nohup, a job in the background) stays so.
    signals = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    signal.signal(signal.SIGALRM, interrupts.on_repeat)
    sys.unraisablehook = interrupts.on_unraisable
    for one in signals:
        signal.signal(one, interrupts.on_signal)
    try:
        yield interrupts
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        sys.unraisablehook = sys.__unraisablehook__


def _repeat() -> None:
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False
