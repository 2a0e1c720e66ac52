"""The HTML report in a real browser: drawn, hovered, sorted; quiet, and without the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from integration.browser import Browser, browser, missing
from integration.networks import mobile_network
from tilewright.compiler.estimate import estimate
from tilewright.hw.roofs import Level, Roofs, store_measured

WIDTH, HEIGHT = 1280, 800

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def some_roofs() -> Roofs:
    """Roofs that no machine reaches, so that every kernel has a limit and some headroom."""
    levels = (("L1", 8e12), ("L2", 4e12), ("L3", 2e12), ("DRAM", 1e12))
    return Roofs(
        device="a test's processor",
        threads=1,
        peaks_flops={"float32": 2e13, "int8": 8e13},
        levels=tuple(Level(name=name, bytes_per_s=rate) for name, rate in levels),
        source="measured on a day of the test",
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The report of a small network."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        store_measured([some_roofs()])
        engine = tw.compile(mobile_network(), threads=1, verify=False, cache=None)
        feeds = {"x": np.ones((2, 3, 32, 32), np.float32)}
        engine.explain(feeds, runs=3).html(folder / "report.html")
        yield folder / "report.html"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """A browser that all tests of this file share."""
    with browser(WIDTH, HEIGHT) as found:
        yield found


def test_the_plot_is_drawn_without_a_word_on_the_console(page: Path, window: Browser) -> None:
    window.open(page)
    kernels = window.run("return JSON.parse(document.getElementById('data').textContent).kernels")
    assert len(kernels) > 8
    assert window.run("return document.querySelectorAll('#roofline circle').length") == len(kernels)
    assert window.run("return document.querySelectorAll('#roofline .roof').length") >= 4
    inside = """
        const plot = document.getElementById('roofline').getBoundingClientRect();
        return [...document.querySelectorAll('#roofline circle')].every((dot) => {
            const box = dot.getBoundingClientRect();
            return box.left >= plot.left && box.right <= plot.right && box.top >= plot.top - 20
                && box.bottom <= plot.bottom;
        });"""
    assert window.run(inside)
    assert window.console() == []


def test_nothing_is_loaded_but_the_page(page: Path, window: Browser) -> None:
    window.requests()
    window.open(page)
    assert set(window.requests()) == {page.resolve().as_uri()}


def test_hovering_a_kernel_tells_all_about_it(page: Path, window: Browser) -> None:
    window.open(page)
    assert window.run("return document.getElementById('tip').hidden")
    topmost = "return [...document.querySelectorAll('#roofline circle')].at(-1).dataset.kernel"
    index = window.run(topmost)
    window.hover(f"circle[data-kernel='{index}']")
    assert not window.run("return document.getElementById('tip').hidden")
    text = window.run("return document.getElementById('tip').textContent")
    for part in (f"#{index} ", "FLOP", "float32", "time ", "limit ", "headroom "):
        assert part in text
    assert window.run("return document.querySelector('.gap').getAttribute('visibility')") == (
        "visible"
    )


def test_the_table_sorts_both_ways(page: Path, window: Browser) -> None:
    window.open(page)
    head = "#kernels th:nth-child(4)"  # time
    assert window.run(f"return document.querySelector('{head}').textContent") == "time"
    column = """
        const data = JSON.parse(document.getElementById('data').textContent);
        const rows = [...document.querySelectorAll('#kernels tbody tr[data-key]')];
        return rows.map((row) => data.kernels[row.dataset.key].time_us);"""
    window.click(head)
    falling = window.run(column)
    assert falling == sorted(falling, reverse=True)
    window.click(head)
    assert window.run(column) == falling[::-1]
    saving = "return document.querySelectorAll('#kernels td.bar').length"
    assert window.run(saving) == len(falling)


def test_a_click_opens_a_row_and_marks_a_kernel(page: Path, window: Browser) -> None:
    window.open(page)
    window.click("#kernels tbody tr")
    detail = window.run("return document.querySelector('#kernels tr.detail').textContent")
    for part in ("schedule:", "bytes:", "operations:", "not "):
        assert part in detail
    steps = window.run("return JSON.parse(document.getElementById('data').textContent).next_steps")
    first = next(number for number, step in enumerate(steps, start=1) if step["kernels"])
    window.click(f"#steps li:nth-child({first})")
    assert window.run("return document.querySelectorAll('tr.chosen').length") == 1
    assert window.run("return document.querySelectorAll('circle.chosen').length") == 1
    assert window.console() == []


def test_every_section_opens_without_an_error(page: Path, window: Browser) -> None:
    window.open(page)
    window.run("for (const part of document.querySelectorAll('details')) part.open = true;")
    titles = window.run("return [...document.querySelectorAll('summary')].map((s) => s.innerText)")
    for title in ("Fusion", "Precision", "Memory", "Nodes of the model", "Decisions"):
        assert any(text.startswith(title) for text in titles)
    assert window.run("return document.querySelectorAll('details svg rect').length") > 3
    assert window.console() == []


def test_it_fits_the_window(page: Path, window: Browser) -> None:
    window.open(page)
    for opened in (False, True):
        every = "for (const part of document.querySelectorAll('details')) part.open = "
        window.run(every + ("true;" if opened else "false;"))
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    window.open(page)
    seen = """
        const box = document.getElementById('roofline').getBoundingClientRect();
        return box.top > 0 && box.bottom < 800 && box.width > 600;"""
    assert window.run(seen)


def test_labels_lie_above_the_circles_and_apart(page: Path, window: Browser) -> None:
    window.open(page)
    above = """
        const shapes = [...document.getElementById('roofline').children];
        const labels = [...document.querySelectorAll('.roof-label, .dot-label')];
        const circles = [...document.querySelectorAll('circle')];
        const last = Math.max(...circles.map((circle) => shapes.indexOf(circle)));
        return labels.length > 4 && labels.every((label) => shapes.indexOf(label) > last);"""
    assert window.run(above)
    apart = """
        const labels = [...document.querySelectorAll('.dot-label')];
        const boxes = labels.map((label) => label.getBoundingClientRect());
        return boxes.every((a, i) => boxes.every((b, j) => i === j || a.right <= b.left
            || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top));"""
    assert window.run(apart)


def test_compulsory_traffic_is_explained(page: Path, window: Browser) -> None:
    window.open(page)
    window.hover("#numbers .noted")
    assert "has to move" in window.run("return document.getElementById('tip').textContent")


def test_an_estimate_says_what_its_picture_shows(tmp_path: Path, window: Browser) -> None:
    estimate(mobile_network(1)).html(tmp_path / "estimate.html")
    window.open(tmp_path / "estimate.html")
    assert "by construction" in window.run("return document.getElementById('caption').textContent")
    assert window.run("return document.querySelectorAll('#share .strip div').length") > 5
    assert window.console() == []


def test_an_estimate_and_an_empty_model_have_a_page_too(tmp_path: Path, window: Browser) -> None:
    estimate(mobile_network(1)).html(tmp_path / "estimate.html")
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Identity", ["x"], ["y"])],
            "identity",
            [onnx.helper.make_tensor_value_info("x", 1, [2])],
            [onnx.helper.make_tensor_value_info("y", 1, [2])],
        ),
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 21)],
    )
    engine = tw.compile(model, threads=1, verify=False, cache=None)
    engine.explain(runs=1).html(tmp_path / "empty.html")
    for name in ("estimate.html", "empty.html"):
        window.open(tmp_path / name)
        assert window.run("return document.getElementById('title').textContent")
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
        assert window.console() == []


@pytest.mark.assets
@pytest.mark.slow
def test_the_report_of_a_real_network(assets: Path, tmp_path: Path, window: Browser) -> None:
    path = assets / "models" / "efficientnet_lite0.onnx"
    if not path.is_file():
        pytest.skip(f"no {path.name} among the assets")
    engine = tw.compile(path, threads=1, verify=False)
    report = tmp_path / "report.html"
    engine.explain(runs=3).html(report)
    window.requests()
    test_the_plot_is_drawn_without_a_word_on_the_console(report, window)
    assert window.run("return document.querySelectorAll('#roofline circle').length") > 40
    test_hovering_a_kernel_tells_all_about_it(report, window)
    test_the_table_sorts_both_ways(report, window)
    test_it_fits_the_window(report, window)
    assert set(window.requests()) == {report.resolve().as_uri()}
    assert window.console() == []
