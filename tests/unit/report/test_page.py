"""The page as text: self-contained, and safe against what names may hold."""

from __future__ import annotations

import json
import re

from tilewright.report.explanation import Explanation, MemoryReport
from tilewright.report.page import embedded, page


def empty(title: str) -> Explanation:
    """An explanation of nothing."""
    return Explanation(
        title=title,
        is_built=True,
        facts={"cpu": "x"},
        sizes={},
        assumed=(),
        roofs=None,
        end_to_end_us=None,
        kernels_us=None,
        host_us=None,
        runtime_us=None,
        runs=0,
        floor_us=None,
        kernels=(),
        host=(),
        intermediates=(),
        fused=(),
        memory=MemoryReport(weight_bytes=0, arena_bytes=0, live_bytes_formula="0", buffers=()),
        placements=(),
        layouts=(),
        interpreted=(("</script><b>", "Op", "why"),),
        specialised=(),
        approximated=(),
        next_steps=(),
    )


def test_the_page_refers_to_nothing_outside() -> None:
    text = page(empty("model"))
    assert not re.findall(r"(?:src|href)\s*=", text)
    assert not re.findall(r"url\(", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_names_cannot_end_the_script_or_the_title() -> None:
    text = page(empty("</title><script>alert(1)</script>"))
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    document = json.loads(data[1])
    assert document["title"].startswith("</title>")
    assert document["interpreted"][0][0] == "</script><b>"


def test_separators_that_javascript_treats_as_ends_of_lines_are_escaped() -> None:
    assert embedded({"a": "\u2028\u2029<"}) == '{"a":"\\u2028\\u2029\\u003c"}'
