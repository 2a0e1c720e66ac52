"""The command line: one file a verb, data on stdout, progress and errors on stderr.

Guarantees: exit code 0 is success, 1 a failure that the message explains, 2 bad usage, 130 Ctrl-C.
Not here: logic; a verb parses, calls the public API, prints.
"""


def main() -> int:
    """Runs ``tilewright`` on ``sys.argv`` and returns the exit code."""
    # First, as Ctrl-C may come while the rest loads.
    from tilewright.cli.interrupts import run_interruptible

    return run_interruptible(_run)


def _run() -> int:
    from tilewright.cli.app import run_app

    return run_app()
