"""The command line: one file a verb, data on stdout, progress and errors on stderr.

Guarantees: exit code 0 is success, 1 a failure that the message explains, 2 bad usage, 130 Ctrl-C.
Not here: logic; a verb parses, calls the public API, prints.
"""


def main() -> int:
    """Runs ``tilewright`` on ``sys.argv`` and returns the exit code."""
    from tilewright.cli.interrupts import watched  # first, as Ctrl-C may come while the rest loads

    with watched() as interrupts:
        code = _run()
        return interrupts.exit_code if interrupts.received else code


def _run() -> int:
    try:
        from tilewright.cli.app import run_app

        return run_app()
    except KeyboardInterrupt:  # before or after a verb
        from tilewright.cli import console

        console.log("interrupted")
        return 130
