"""Runs ONNX's conformance cases and writes the counts that the docs quote.

Output: ``docs/conformance.json``.  Usage: ``python scripts/update_conformance.py``.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]


def main() -> None:
    """Runs every set and stores its row."""
    from conformance.cases import run_part

    table: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
            results = run_part((kind, 0, 1, folder, "cpu"))
            counts = Counter(result.status for result in results)
            compiled = sum(result.compiled for result in results)
            table[kind] = {
                "cases": len(results),
                "compiled": compiled,
                **dict(sorted(counts.items())),
            }
            print(kind, table[kind])
    (ROOT / "docs" / "conformance.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
