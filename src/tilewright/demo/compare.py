"""Reads one picture with each runtime in turn and says what was read, how fast, and what is wrong.

Picture, expected lines -> ``Result``. Each runtime reads the picture several times; a stage's time
is its minimum over the repeats, and the runtimes take turns so that both meet the same machine.
Not here: printing (cli), benchmarks to base claims on (compiler.bench: a process for each runtime).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from tilewright import UserError
from tilewright.core.plural import listed
from tilewright.core.whole_file import check_folder
from tilewright.demo.networks import CLASSIFIER, DETECTOR, NETWORKS, RECOGNISER, locate
from tilewright.demo.reader import Line, Page, Reader, alphabet_of
from tilewright.demo.runners import PRECISION, PREPARE, Prepared, forget_engines, version_of

NETWORK_STAGES = (DETECTOR.name, CLASSIFIER.name, RECOGNISER.name)
STAGES = (*NETWORK_STAGES, "other")
PAUSE_S = 0.05  # the threads of the runtime that ran last stop spinning meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One runtime's share of the result; ``stage_s`` has the seconds of each of ``STAGES``.

    ``how`` says whether its networks were compiled, loaded or opened in ``prepare_s`` seconds.
    """

    runtime: str
    version: str
    precision: str
    prepare_s: float
    how: str
    files: Sequence[Path]
    lines: Sequence[Line]
    stage_s: Mapping[str, float]

    @property
    def networks_s(self) -> float:
        """Seconds of the three networks for the whole picture."""
        return sum(self.stage_s[stage] for stage in NETWORK_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A line that is not what it should be; ``None`` where there is no line."""

    runtime: str
    number: int
    expected: str | None
    read: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Both runtimes' shares and their mistakes; ``num_expected`` lines, None if unknown."""

    picture: Path
    threads: int
    sides: Sequence[Side]
    mistakes: Sequence[Mistake]
    num_expected: int | None = None


def compare(
    picture: Path,
    expected: Sequence[str] | None,
    *,
    runtimes: Sequence[str],
    threads: int,
    folder: Path,
    repeats: int,
    progress: Callable[[str], None],
    rebuild: bool = False,
) -> Result:
    """Reads ``picture`` with every one of ``runtimes``.

    Args:
        picture: an image file.
        expected: its lines from top to bottom; ``None`` when they are not known.
        runtimes: names from ``runners.PREPARE``.
        threads: how many threads each runtime may use.
        folder: where engine files go; it is made if need be.
        repeats: how often each runtime reads the picture.
        progress: is told what goes on.
        rebuild: compile again even where the folder has the engines.

    Raises:
        UserError: the picture or a network cannot be had, or a runtime is unknown or missing.
    """
    image = open_picture(picture)
    if unknown := [name for name in runtimes if name not in PREPARE]:
        raise UserError(
            f"no such runtime: {', '.join(unknown)}", remedy=f"one of {listed(PREPARE)}"
        )
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    models = [locate(network) for network in NETWORKS]
    if rebuild:
        forget_engines(folder, models)
    prepared: dict[str, list[Prepared]] = {}
    for name in runtimes:
        prepared[name] = []
        for number, (network, model) in enumerate(zip(NETWORKS, models, strict=True), start=1):
            progress(f"{name}: preparing {network.name}, {number} of {len(models)}")
            prepared[name].append(PREPARE[name](model, threads, folder))
    readers = {name: _reader(networks) for name, networks in prepared.items()}
    pages = _take_turns(readers, image, repeats, progress)
    sides = [
        Side(
            runtime=name,
            version=version_of(name),
            precision=PRECISION,
            prepare_s=sum(network.prepare_s for network in prepared[name]),
            how=prepared[name][-1].how,
            files=[network.file for network in prepared[name]],
            lines=pages[name][0].lines,
            stage_s=_fastest(pages[name]),
        )
        for name in runtimes
    ]
    mistakes = [mistake for side in sides for mistake in _mistakes(side, expected)]
    return Result(
        picture=picture,
        threads=threads,
        sides=sides,
        mistakes=mistakes,
        num_expected=None if expected is None else len(expected),
    )


def _reader(networks: Sequence[Prepared]) -> Reader:
    detect, classify, recognise = networks
    return Reader(
        detect=detect.run,
        classify=classify.run,
        recognise=recognise.run,
        alphabet=alphabet_of(recognise.metadata),
    )


def open_picture(path: Path) -> Image.Image:
    """Opens an image file.

    Raises:
        UserError: there is no such file, or it is no image that can be read.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise UserError("no such picture", file=str(path), remedy="check the path") from None
    except UnidentifiedImageError:
        remedy = "give a PNG, JPEG or other image that Pillow reads"
        raise UserError("not an image", file=str(path), remedy=remedy) from None
    except IsADirectoryError:
        raise UserError("is a folder", file=str(path), remedy="name a picture in it") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        remedy = "check its permissions; if it is damaged or very large, save it again"
        raise UserError(f"cannot be read: {error}", file=str(path), remedy=remedy) from error


def _take_turns(
    readers: Mapping[str, Reader],
    image: Image.Image,
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, list[Page]]:
    pages: dict[str, list[Page]] = {name: [] for name in readers}
    for repeat in range(repeats):
        for name, reader in readers.items():
            progress(f"{name}: reading, {repeat + 1} of {repeats}")
            time.sleep(PAUSE_S)
            pages[name].append(reader.read(image))
    return pages


def _fastest(pages: Sequence[Page]) -> dict[str, float]:
    return {stage: min(page.stage_s.get(stage, 0.0) for page in pages) for stage in STAGES}


def _mistakes(side: Side, expected: Sequence[str] | None) -> list[Mistake]:
    if expected is None:
        return []
    read: list[str | None] = [line.text for line in side.lines]
    wanted: list[str | None] = list(expected)
    num_lines = max(len(read), len(wanted))
    read += [None] * (num_lines - len(read))
    wanted += [None] * (num_lines - len(wanted))
    return [
        Mistake(runtime=side.runtime, number=number, expected=want, read=got)
        for number, (want, got) in enumerate(zip(wanted, read, strict=True), start=1)
        if want != got
    ]
