"""Fails when a Python file is longer than 600 lines or a function longer than 60.

Input: the Python files that git tracks. Output: one line for each that is too long; exit code 1
above a limit. A file above 400 lines is warned of. Of a function its statements count, not its
signature and docstring: those are its documentation. Data tables (``tables`` folders) are
exempt, and functions of tests, which may be tables of cases.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WARN_LINES = 400
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
EXEMPT_FOLDER = "tables"


def main() -> int:
    """Checks every tracked Python file and returns the exit code."""
    command = ["git", "ls-files", "--", "*.py"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    num_failed = 0
    for path in (Path(name) for name in tracked if name):
        if EXEMPT_FOLDER in path.parts or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        num_lines = text.count("\n")
        if num_lines > MAX_LINES:
            num_failed += 1
            print(f"error: {path}: {num_lines} lines, at most {MAX_LINES}", file=sys.stderr)
        elif num_lines > WARN_LINES:
            print(f"warning: {path}: {num_lines} lines, aim for {WARN_LINES}", file=sys.stderr)
        for function, length in long_functions(text) if path.parts[0] != "tests" else ():
            num_failed += 1
            print(
                f"error: {path}: {function} has {length} lines, at most {MAX_FUNCTION_LINES}",
                file=sys.stderr,
            )
    return 1 if num_failed else 0


def long_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function whose statements take more than the limit."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        statements = node.body if ast.get_docstring(node) is None else node.body[1:]
        if not statements:
            continue
        length = (node.end_lineno or 0) - statements[0].lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield node.name, length


if __name__ == "__main__":
    sys.exit(main())
