"""The demo's networks read the example picture, and wrong text is noticed."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from tilewright import UserError
from tilewright.demo import networks, runners
from tilewright.demo.compare import Result, compare

EXAMPLES = Path(__file__).parents[2] / "examples"

needs_networks = pytest.mark.skipif(
    find_spec("rapidocr") is None or find_spec("onnxruntime") is None,
    reason=f"needs onnxruntime and: {networks.REMEDY}",
)


def _read(
    picture: Path, expected: list[str] | None, folder: Path, runtime: str = "onnxruntime"
) -> Result:
    return compare(
        picture,
        expected,
        runtimes=[runtime],
        threads=1,
        folder=folder,
        repeats=1,
        progress=lambda _: None,
    )


@needs_networks
@pytest.mark.parametrize("runtime", ["onnxruntime", "tilewright"])
def test_every_line_of_the_example_is_read(tmp_path: Path, runtime: str) -> None:
    expected = (EXAMPLES / "text.txt").read_text(encoding="utf-8").splitlines()
    result = _read(EXAMPLES / "text.png", expected, tmp_path, runtime)
    (side,) = result.sides
    assert [line.text for line in side.lines] == expected
    assert result.mistakes == []
    assert [line.text for line in side.lines if line.is_upside_down] == ["Upside down: page 17"]


@needs_networks
def test_engines_are_saved_and_loaded(tmp_path: Path) -> None:
    Image.new("L", (300, 200), 255).save(tmp_path / "page.png")
    (first,) = _read(tmp_path / "page.png", None, tmp_path, "tilewright").sides
    assert first.how == "compiled"
    assert sorted(file.name for file in tmp_path.glob("*.tw")) == sorted(
        f"{Path(network.file).stem}.tw" for network in networks.NETWORKS
    )
    (second,) = _read(tmp_path / "page.png", None, tmp_path, "tilewright").sides
    assert second.how == "loaded"
    second.files[0].write_bytes(b"damaged")
    assert runners.load_engine(second.files[0], 1) is None
    runners.forget_engines(tmp_path, second.files)
    assert not list(tmp_path.glob("*.tw"))


@needs_networks
def test_lines_that_differ_or_are_missing_are_mistakes(tmp_path: Path) -> None:
    picture = Image.new("RGB", (800, 736), (255, 255, 255))
    ImageDraw.Draw(picture).text((60, 100), "only this line", fill=(0, 0, 0), font_size=40)
    picture.save(tmp_path / "page.png")
    result = _read(tmp_path / "page.png", ["only that line", "another"], tmp_path)
    found = [(mistake.number, mistake.expected, mistake.read) for mistake in result.mistakes]
    assert found == [(1, "only that line", "only this line"), (2, "another", None)]


@needs_networks
def test_an_empty_page_has_no_lines(tmp_path: Path) -> None:
    Image.new("L", (300, 200), 255).save(tmp_path / "page.png")
    (side,) = _read(tmp_path / "page.png", None, tmp_path).sides
    assert list(side.lines) == []


@needs_networks
def test_a_network_that_is_not_the_expected_one_is_refused() -> None:
    other = networks.Network(name="detection", file=networks.DETECTOR.file, sha256="0" * 64)
    with pytest.raises(UserError, match="sha256"):
        networks.locate(other)


def test_a_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "PACKAGE", "no-such-package")
    with pytest.raises(UserError, match="not installed") as caught:
        networks.locate(networks.DETECTOR)
    assert "pip install" in str(caught.value)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.png").write_text("text")
    with pytest.raises(UserError, match="not an image"):
        _read(tmp_path / "page.png", None, tmp_path)


def test_an_unknown_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such runtime: abacus"):
        compare(
            EXAMPLES / "text.png",
            None,
            runtimes=["abacus"],
            threads=1,
            folder=tmp_path,
            repeats=1,
            progress=lambda _: None,
        )
