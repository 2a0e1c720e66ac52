"""Fills the tables of measured results in the pages: ``python scripts/update_docs.py [--check]``.

Input: ``bench/results/bench_*.json``, each what ``tilewright bench -o`` wrote, and
``docs/conformance.json``.
Output: the text between the markers ``bench:`` and ``conformance:``, ``begin`` and ``end``; with
``--check`` nothing is written, and the exit code is 1 where a page says anything else.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"
CASES_BEGIN, CASES_END = "<!-- conformance:begin -->\n", "<!-- conformance:end -->"
CASE_COLUMNS = ("cases", "passed", "compiled", "closer", "random", "refused", "wrong")
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


def case_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Returns the counts of conformance cases as a Markdown table."""
    names = ("passed", "of them without interpretation")
    head = ("set", "cases", *names, *CASE_COLUMNS[3:])
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for kind, row in counts.items():
        lines.append(f"| {kind} | {' | '.join(str(row.get(name, 0)) for name in CASE_COLUMNS)} |")
    return "\n".join(lines) + "\n"


def filled(text: str, content: str, begin: str = BEGIN, end: str = END) -> str:
    """Returns a page with the content between its markers.

    Raises:
        ValueError: the page has no markers.
    """
    start, stop = text.index(begin) + len(begin), text.index(end)
    return text[:start] + content + text[stop:]


def load_results(folder: Path) -> list[Mapping[str, Any]]:
    """Returns all comparisons of all files of a folder."""
    found: list[Mapping[str, Any]] = []
    for file in sorted(folder.glob("bench_*.json")):
        found += json.loads(file.read_text(encoding="utf-8"))["comparisons"]
    return found


def pages() -> dict[Path, str]:
    """Returns what each page must say."""
    counts = json.loads((ROOT / "docs" / "conformance.json").read_text(encoding="utf-8"))
    wanted: dict[Path, str] = {}
    for name in ("README.md", "docs/lowering.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        if BEGIN in text:
            text = filled(text, table(load_results(ROOT / "bench" / "results")))
        wanted[ROOT / name] = filled(text, case_table(counts), CASES_BEGIN, CASES_END)
    return wanted


def main() -> int:
    """Updates or checks the pages and returns the exit code."""
    stale = [page for page, text in pages().items() if page.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for page in stale:
            print(f"{page.name} is out of date: run scripts/update_docs.py", file=sys.stderr)
        return int(bool(stale))
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
