"""Fills the tables of measured results in the pages: ``python scripts/update_docs.py [--check]``.

Input: ``bench/results/bench_*.json``, each what ``tilewright bench -o`` wrote,
``bench/results/cpu_peak_haswell.json`` (``bench/cpu_peak.py``),
``bench/results/dynamic_cpu.json`` (``bench/dynamic_cpu.py``), ``cuda_table_h200.json`` and
``cuda_quantized_h200.json`` (``gpu_tables``) and ``docs/conformance.json``.
Output: the text between the markers ``bench:``, ``bench-bf16:``, ``bench-int8:``, ``cpu-peak:``,
``dynamic:``, ``cuda-table:``, ``cuda-quantized:`` and ``conformance:``, ``begin`` and ``end``; with
``--check`` nothing is written, and the exit code is 1 where a page says anything else.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_tables import narrow_table, peer_table

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"
CASES_BEGIN, CASES_END = "<!-- conformance:begin -->\n", "<!-- conformance:end -->"
PEAK_BEGIN, PEAK_END = "<!-- cpu-peak:begin -->\n", "<!-- cpu-peak:end -->"
FEW = 0.01  # of a model's time: too little for a percentage of its own
SIZES_BEGIN, SIZES_END = "<!-- dynamic:begin -->\n", "<!-- dynamic:end -->"
CASE_COLUMNS = ("cases", "passed", "compiled", "closer", "random", "refused", "wrong")
OURS, BEST = "tilewright", "best"
ERRED = ("openvino",)  # whose distance from the first contender is shown beside ours
FLOAT = "fp32"
QUANTISED = "int8"
# Page -> precisions whose results it shows, between the markers of that name.
TABLES = {
    "README.md": (FLOAT,),
    "docs/precision.md": ("bf16", "int8"),
    "docs/lowering.md": (),
    "docs/benchmarks.md": (),
    "docs/runtime.md": (),
    "docs/cuda.md": (),
}
# Marker -> its table of a file of results.
GPU_TABLES = {"cuda-table": peer_table, "cuda-quantized": narrow_table}


def table(comparisons: Iterable[Mapping[str, Any]], *, errors: bool = False) -> str:
    """Returns the results as a Markdown table with the machines they were measured on.

    Args:
        errors: also show how far outputs are from the first contender's.
    """
    found = sorted(comparisons, key=lambda c: (c["model"], c["threads"]))
    if not found:
        return "No measured results yet.\n"
    peers = sorted({_named(one, peer) for one in found for peer in one["ratio_median"]})
    head = ("model", "threads", "Tilewright, ms", *(name for _, name in peers), "best of them")
    if errors:
        head = (*head, *(f"error, {name}" for name in (OURS, *ERRED)))
    rows = [head, ("---",) * len(head)]
    columns: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        timings = {timing["contender"]: timing for timing in one["timings"]}
        ratios = {
            peer: (one["ratio_median"][peer], one["ratio_min"][peer])
            for peer, _ in peers
            if peer in one["ratio_median"]
        }
        ratios[BEST] = (min(m for m, _ in ratios.values()), min(m for _, m in ratios.values()))
        for name, pair in ratios.items():
            columns.setdefault(name, []).append(pair)
        cells = (_cell(ratios.get(name)) for name in (*(peer for peer, _ in peers), BEST))
        model = one["model"].removesuffix(".onnx")
        rows.append((model, str(one["threads"]), f"{timings[OURS]['median_us'] / 1e3:.3f}", *cells))
        if errors:
            rows[-1] = (*rows[-1], *(_error(timings.get(name)) for name in (OURS, *ERRED)))
    means = {name: _means(pairs) for name, pairs in columns.items()}
    cells = (_cell(means[name]) for name in (*(peer for peer, _ in peers), BEST))
    mean = ("**geometric mean**", "", "", *cells)
    rows.append((*mean, *("",) * (len(head) - len(mean))))
    notes = {f"{one['device']}; Tilewright {_version(one, OURS)}" for one in found}
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"On {note}." for note in sorted(notes))]) + "\n"


def _named(comparison: Mapping[str, Any], peer: str) -> tuple[str, str]:
    timings = comparison["timings"]
    precision = next(one.get("precision", FLOAT) for one in timings if one["contender"] == peer)
    ours = next(one.get("precision", FLOAT) for one in timings if one["contender"] == OURS)
    note = "" if ours in (FLOAT, QUANTISED) else f" ({precision})"  # what a peer was asked for
    return peer, f"{peer} {_version(comparison, peer)}{note}"


def _error(timing: Mapping[str, Any] | None) -> str:
    return "–" if timing is None else f"{timing['error']:.1e}"


def _version(comparison: Mapping[str, Any], contender: str) -> str:
    timings = comparison["timings"]
    return str(next(one["version"] for one in timings if one["contender"] == contender))


def _cell(pair: tuple[float, float] | None) -> str:
    return "–" if pair is None else f"{pair[0]:.2f} ({pair[1]:.2f})"


def _means(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    medians, minima = zip(*pairs, strict=True)
    return statistics.geometric_mean(medians), statistics.geometric_mean(minima)


def case_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Returns the counts of conformance cases as a Markdown table."""
    names = ("passed", "of them without interpretation")
    head = ("set", "cases", *names, *CASE_COLUMNS[3:])
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for kind, row in counts.items():
        lines.append(f"| {kind} | {' | '.join(str(row.get(name, 0)) for name in CASE_COLUMNS)} |")
    return "\n".join(lines) + "\n"


def peak_table(document: Mapping[str, Any]) -> str:
    """Returns how near sums of products come to a processor's roofs, by time, in percent."""
    names = ("multiply-adds alone", "nearer roof", "at least 90")
    kinds = ("product", "depthwise")
    head = ("model", *(f"{kind}: {name}" for kind in kinds for name in names))
    rows = [head, ("---",) * len(head)]
    for model in sorted(document["models"], key=lambda one: -one["product"]["percent"]):
        cells: list[str] = []
        for kind in kinds:
            found = model[kind]
            shown = (found["fma_percent"], found["percent"], 100 * found["near"])
            is_shown = found["us"] >= FEW * model["stages_us"]
            cells += [f"{value:.0f}" if is_shown else "" for value in shown]
        rows.append((model["model"], *cells))
    note = f"On {document['device']}, of {document['peak_gflops']} GFLOP/s."
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", note]) + "\n"


def size_table(found: Mapping[str, Any] | None) -> str:
    """Returns what first runs at new sizes take beyond the steady time as a Markdown table."""
    if found is None:
        return "No measured results yet.\n"
    rows = found["rows"]
    head = ("threads", "largest so far", *rows[0]["sizes"], "of the static engine's time")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = (
            f"{one['first_wall_ms']:.1f} / {one['first_cpu_ms']:.1f} ({one['steady_ms']:.0f})"
            for one in row["sizes"].values()
        )
        ratio = f"{row['ratio_median']:.3f} ({row['ratio_min']:.3f})"
        lines.append(f"| {' | '.join((str(row['threads']), row['other'], *cells, ratio))} |")
    declared = "declared" if found["dims"] else "not declared"
    what = f"{found['model']}, the middle of {found['processes']} processes, ranges {declared}"
    lines += ["", f"On {found['device']}: {what}; Tilewright {found['tilewright']}."]
    return "\n".join(lines) + "\n"


def filled(text: str, content: str, begin: str = BEGIN, end: str = END) -> str:
    """Returns a page with the content between its markers.

    Raises:
        ValueError: the page has no markers.
    """
    start, stop = text.index(begin) + len(begin), text.index(end)
    return text[:start] + content + text[stop:]


def load_results(folder: Path, precision: str = FLOAT) -> list[Mapping[str, Any]]:
    """Returns all comparisons of all files of a folder whose names end in a precision."""
    found: list[Mapping[str, Any]] = []
    for file in sorted(folder.glob(f"bench_*_{precision}.json")):
        found += json.loads(file.read_text(encoding="utf-8"))["comparisons"]
    return found


def pages() -> dict[Path, str]:
    """Returns what each page must say."""
    counts = json.loads((ROOT / "docs" / "conformance.json").read_text(encoding="utf-8"))
    wanted: dict[Path, str] = {}
    for name, precisions in TABLES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for precision in precisions:
            found = load_results(ROOT / "bench" / "results", precision)
            begin, end = markers(precision)
            text = filled(text, table(found, errors=precision != FLOAT), begin, end)
        if CASES_BEGIN in text:
            text = filled(text, case_table(counts), CASES_BEGIN, CASES_END)
        if PEAK_BEGIN in text:
            peaks = ROOT / "bench" / "results" / "cpu_peak_haswell.json"
            document = json.loads(peaks.read_text(encoding="utf-8"))
            text = filled(text, peak_table(document), PEAK_BEGIN, PEAK_END)
        if SIZES_BEGIN in text:
            file = ROOT / "bench" / "results" / "dynamic_cpu.json"
            sizes = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
            text = filled(text, size_table(sizes), SIZES_BEGIN, SIZES_END)
        for kind, shown in GPU_TABLES.items():
            begin, end = f"<!-- {kind}:begin -->\n", f"<!-- {kind}:end -->"
            if begin in text:
                file = ROOT / "bench" / "results" / f"{kind.replace('-', '_')}_h200.json"
                content = shown(json.loads(file.read_text(encoding="utf-8")))
                text = filled(text, content, begin, end)
        wanted[ROOT / name] = text
    return wanted


def markers(precision: str) -> tuple[str, str]:
    """Returns what encloses the table of a precision."""
    kind = "bench" if precision == FLOAT else f"bench-{precision}"
    return f"<!-- {kind}:begin -->\n", f"<!-- {kind}:end -->"


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
