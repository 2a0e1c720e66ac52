"""An explanation as lines for a terminal.

Input -> Output: ``Explanation`` -> text: the totals, what to do next, kernels by the time that
could be saved, what does not run as a kernel, fusion, memory.
Not here: JSON (explanation), HTML (page).
"""

from __future__ import annotations

from collections import Counter

from tilewright.core.plural import plural
from tilewright.report.explanation import Explanation, KernelReport
from tilewright.report.units import bytes_text, flops_text, ms_number, us_text

_MOST_STEPS = 5
_MOST_REFUSALS = 5
_MOST_DEVICES = 12


def explanation_text(explanation: Explanation, most: int = 15) -> str:
    """See ``Explanation.text``."""
    parts = (
        _head(explanation),
        explanation.what_if.text if explanation.what_if is not None else [],
        _next_steps(explanation),
        _kernels(explanation, most),
        _elsewhere(explanation),
        _fusion(explanation),
        _memory(explanation),
        _notes(explanation),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(e: Explanation) -> list[str]:
    facts = ", ".join(f"{name} {value}" for name, value in e.facts.items())
    lines = [f"{e.title}: {facts}"]
    if e.input_sizes:
        sizes = ", ".join(f"{name}={size}" for name, size in e.input_sizes.items())
        assumed = f" (assumed: {', '.join(e.assumed)}; --dim NAME=SIZE)" if e.assumed else ""
        lines.append(f"sizes: {sizes}{assumed}")
    if e.roofs is not None:
        lines.append(f"roofs: {e.roofs.device}, {e.roofs.source}")
    total_flops = sum(kernel.flops or 0 for kernel in e.kernels)
    total_bytes = sum(kernel.num_bytes or 0 for kernel in e.kernels)
    work = (
        f"{plural(len(e.kernels), 'kernel')}, {flops_text(total_flops)}, {bytes_text(total_bytes)}"
    )
    lines.append(work)
    if e.end_to_end_us is not None:
        host, runtime = e.host_us or 0.0, e.runtime_us or 0.0
        lines.append(
            f"time: {us_text(e.end_to_end_us)} end to end; kernels {us_text(e.kernels_us or 0)}, "
            f"host steps {us_text(host)}, runtime {us_text(runtime)} ({plural(e.runs, 'run')})"
        )
    if e.disturbance:
        lines.append(f"      {e.disturbance}")
        if e.best_us is not None:
            lines.append(f"      each kernel in its least disturbed run: {us_text(e.best_us)}")
    if e.floor_us is not None:
        fraction = f", {e.roof_fraction:.0%} of the roof" if e.roof_fraction is not None else ""
        lines.append(f"floor: {us_text(e.floor_us)}{fraction}")
    return lines


def _next_steps(e: Explanation) -> list[str]:
    if not e.next_steps:
        return []
    return ["What would save time:", *(f"  {s.text}" for s in e.next_steps[:_MOST_STEPS])]


def _kernels(e: Explanation, most: int) -> list[str]:
    if not e.kernels:
        return []
    is_timed = e.end_to_end_us is not None
    kernels = sorted(e.kernels, key=lambda k: (-(k.headroom_us or 0), -(k.floor_us or 0), k.index))
    lines = [
        "Kernels by the time that could be saved:" if is_timed else "Kernels by their floor:",
        _table_head(is_timed),
    ]
    for k in kernels[:most]:
        roof = "" if k.roof_fraction is None else f"{k.roof_fraction:.0%}"
        before = (
            f"{_cell(k.headroom_us)} {_cell(k.time_us)} {_cell(k.best_us)} " if is_timed else ""
        )
        after = f"{roof:>5} " if is_timed else ""
        lines.append(
            f"  {k.index:>4} {before}{_cell(k.floor_us)} {after}"
            f"{bytes_text(k.num_bytes):>9} {flops_text(k.flops):>8}  {_how(k)}  {nodes_text(k)}"
        )
    if len(kernels) > most:
        rest = sum(k.time_us or k.floor_us or 0 for k in kernels[most:])
        lines.append(f"  {'':>4} {len(kernels) - most} more: {us_text(rest)}")
    return lines


def _table_head(is_timed: bool) -> str:
    """Without times there are no columns for them."""
    before = f"{'saves ms':>9} {'time ms':>9} {'best ms':>9} " if is_timed else ""
    after = f"{'roof':>5} " if is_timed else ""
    how = "limit, tactic, nodes" if is_timed else "limit, nodes"
    return f"  {'#':>4} {before}{'floor ms':>9} {after}{'bytes':>9} {'flops':>8}  {how}"


def _how(kernel: KernelReport) -> str:
    return ", ".join(part for part in (kernel.limit, kernel.tactic, kernel.dtype) if part)


def nodes_text(kernel: KernelReport, most: int = 3) -> str:
    """The node that costs most, how many others are left out, and the last ones."""
    others = [node for node in kernel.nodes if node != kernel.anchor]
    last = others[-(most - 1) :]
    more = [f"{len(others) - len(last)} more"] if len(others) > len(last) else []
    return " + ".join((kernel.anchor, *more, *last))


def _elsewhere(e: Explanation) -> list[str]:
    counts = Counter((p.place, p.by) for p in e.placements if p.place not in ("kernel",))
    if not e.placements:
        return []
    kernel = sum(p.place == "kernel" for p in e.placements)
    lines = [f"{plural(len(e.placements), 'node')} in the model: {kernel} in kernels"]
    users = Counter(node for k in e.kernels for node in dict.fromkeys(k.nodes))
    again = sum(count > 1 for count in users.values())
    if again:
        lines.append(f"  {again:>4} of them have parts in several kernels, or are computed again")
    lines += [f"  {count:>4} {place} by {by}" for (place, by), count in sorted(counts.items())]
    lines += [f"  interpreted: {node} ({op}): {reason}" for node, op, reason in e.interpreted]
    return lines


def _fusion(e: Explanation) -> list[str]:
    absorbed = sum(count for _, count in e.fused)
    lines = [f"Fusion: {plural(len(e.fused), 'kernel')} of several nodes, {absorbed} in all"]
    dear = sorted(e.intermediates, key=lambda item: -(item.price_us or 0))[:_MOST_REFUSALS]
    if dear:
        lines.append(
            f"  through memory between kernels: {plural(len(e.intermediates), 'value')}; "
            "the dearest:"
        )
    lines += [
        f"    {'?' if item.price_us is None else us_text(item.price_us)}  "
        f"#{item.producer} -> #{item.consumer}  {bytes_text(item.num_bytes)}: {item.reason}"
        for item in dear
    ]
    return lines


def _memory(e: Explanation) -> list[str]:
    arena = "unknown before it runs" if e.memory.arena_bytes is None else None
    arena = arena or bytes_text(e.memory.arena_bytes)
    held = f"weights {bytes_text(e.memory.weight_bytes)}, arena {arena}"
    return [f"Memory: {held}; at least {e.memory.live_bytes_formula} bytes live at once"]


def _notes(e: Explanation) -> list[str]:
    lines = [f"specialised: {text}" for text in e.specialised]
    lines += [f"approximated: {text}" for text in e.approximated]
    said = f"{e.disturbance};" if e.disturbance else None
    lines += [f"note: {text}" for text in e.warnings if said is None or not text.startswith(said)]
    if e.devices:
        lines.append("Floor on other devices, without the starts of kernels:")
        lines += [
            f"  {us_text(d.floor_us):>12}  {d.device} ({d.limit})"
            for d in sorted(e.devices, key=lambda d: d.floor_us)[:_MOST_DEVICES]
        ]
        if len(e.devices) > _MOST_DEVICES:
            lines.append(f"  and {len(e.devices) - _MOST_DEVICES} more: --json, or --on NAME")
    return lines


# --- numbers --------------------------------------------------------------------------------------


def _cell(value: float | None) -> str:
    return f"{'' if value is None else ms_number(value):>9}"
