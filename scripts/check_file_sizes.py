"""Fails when a Python file is longer than 600 lines, warns above 400.

Input: the files that git tracks below src, tests, scripts and examples. Output: one line a file
that is too long; exit code 1 above the limit. Data tables (``tables`` folders) are exempt.
"""

import subprocess
import sys
from pathlib import Path

WARN_LINES = 400
MAX_LINES = 600
EXEMPT_FOLDER = "tables"


def main() -> int:
    """Checks every tracked Python file and returns the exit code."""
    command = ["git", "ls-files", "--", "*.py"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    num_failed = 0
    for path in (Path(name) for name in tracked if name):
        if EXEMPT_FOLDER in path.parts or not path.is_file():
            continue
        num_lines = path.read_text(encoding="utf-8").count("\n")
        if num_lines > MAX_LINES:
            num_failed += 1
            print(f"error: {path}: {num_lines} lines, at most {MAX_LINES}", file=sys.stderr)
        elif num_lines > WARN_LINES:
            print(f"warning: {path}: {num_lines} lines, aim for {WARN_LINES}", file=sys.stderr)
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
