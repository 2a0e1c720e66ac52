"""Ctrl-C and requests to end: each ends the command cleanly, wherever it arrives.

Input -> Output: a command -> its exit code; SIGINT, SIGTERM, SIGHUP -> ``KeyboardInterrupt`` in the
command, and an exit code that tells of it, 128 + the signal.
Guarantees: a signal is not lost where Python cannot pass an exception on (finalizers, callbacks of
weak references): it comes again shortly after. A module is not left half imported: the first signal
waits for the end of the import, another one does not. Before and after the command, where nothing
is to be cleaned and nobody would catch an exception, a signal ends the process at once.
Requires: nothing heavy is imported here, as this comes first.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType, TracebackType
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
        """Interrupts the command; while it imports, at the first signal, later."""
        is_first, self.received = not self.received, number
        if not _is_within(frame, _call.__code__):
            if is_first:
                _tell()
            os._exit(self.exit_code)
        if is_first and _is_importing(frame):
            _repeat()
        else:
            raise KeyboardInterrupt

    def on_repeat(self, number: int, frame: FrameType | None) -> None:
        """The same for a signal that had to wait, or was lost."""
        del number
        if not _is_within(frame, _call.__code__):
            return  # the exit code tells of it
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


def run_interruptible(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code.

    Afterwards signals end the process by themselves, which a shell shows as the same exit code.
    """
    interrupts = Interrupts()
    # What was ignored from the start (nohup, a job in the background) stays so.
    signals = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    signal.signal(signal.SIGALRM, interrupts.on_repeat)
    sys.unraisablehook = interrupts.on_unraisable
    for one in signals:
        signal.signal(one, interrupts.on_signal)
    try:
        code = _call(command)
    except KeyboardInterrupt:  # before or after a verb, or a second one while the first is told of
        _tell()
        code = interrupts.exit_code
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        sys.unraisablehook = sys.__unraisablehook__
    return interrupts.exit_code if interrupts.received else code


def _call(command: Callable[[], int]) -> int:
    """The frame that tells a signal whether somebody catches its exception."""
    return command()


def _tell() -> None:
    with suppress(OSError):  # nobody can be told
        os.write(2, b"interrupted\n")


def _repeat() -> None:
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _is_within(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
