"""Fills the table of results in README.md: ``python scripts/update_docs.py [--check]``.

Input: ``bench/results/bench_*.json``, each what ``tilewright bench --json`` printed.
Output: the text between the markers ``bench:begin`` and ``bench:end``; with ``--check`` nothing is
written, and the exit code is 1 where README.md says anything else.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"
HEAD = (
    "| model | threads | Tilewright, median ms | against | ratio of medians | ratio of minima |",
    "|---|---|---|---|---|---|",
)
OURS = "tilewright"


def table(comparisons: Iterable[Mapping[str, Any]]) -> str:
    """Returns the results as a Markdown table with the machines they were measured on."""
    rows: list[str] = []
    footnotes: set[str] = set()
    for found in sorted(comparisons, key=lambda c: (c["model"], c["threads"])):
        timings = {timing["contender"]: timing for timing in found["timings"]}
        ours_ms = timings[OURS]["median_us"] / 1e3
        model = found["model"].removesuffix(".onnx")
        for peer, ratio in found["ratio_median"].items():
            rows.append(
                f"| {model} | {found['threads']} | {ours_ms:.3f} "
                f"| {peer} {timings[peer]['version']} | {ratio:.2f} "
                f"| {found['ratio_min'][peer]:.2f} |"
            )
        footnotes.add(f"{found['device']}; Tilewright {timings[OURS]['version']}")
    if not rows:
        return "No measured results yet.\n"
    return "\n".join([*HEAD, *rows, "", *(f"On {note}." for note in sorted(footnotes))]) + "\n"


def filled(text: str, content: str) -> str:
    """Returns a page with the content between its markers.

    Raises:
        ValueError: the page has no markers.
    """
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:start] + content + text[stop:]


def load_results(folder: Path) -> list[Mapping[str, Any]]:
    """Returns all comparisons of all files of a folder."""
    found: list[Mapping[str, Any]] = []
    for file in sorted(folder.glob("bench_*.json")):
        found += json.loads(file.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Updates or checks README.md and returns the exit code."""
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    wanted = filled(text, table(load_results(ROOT / "bench" / "results")))
    if "--check" in sys.argv[1:]:
        if text != wanted:
            print("README.md is out of date: run scripts/update_docs.py", file=sys.stderr)
        return int(text != wanted)
    page.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
