"""Files that are written whole or not at all: the one way in which anything here is written.

Input -> Output: the path of a file, or of a folder for several files that belong together -> a
place to write to, whose content goes to the path when the block ends well.
Guarantees: after an error, an interrupt or a full disk the path holds what it held before, and no
part lies beside it; a link is followed, so that the file it names is replaced; a file keeps its
permissions.
Not here: reading; scratch files that nobody else sees.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.core.check_option import file_path
from tilewright.core.errors import BadOption, CacheError

_PREFIX = ".tilewright-"
_UNFINISHED_S = 86_400.0  # nobody writes for longer
_REMEDY = "choose a place that exists and can be written to, with enough free space"


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a path of the same name to write to, which becomes ``path`` when the block ends well.

    Raises:
        CacheError: the folder does not exist or cannot be written, or the disk is full.
    """
    check_output(path)
    target = Path(os.path.realpath(path))
    with _moved(target.parent, shown=path) as scratch:
        yield scratch / target.name


@contextmanager
def whole_files(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives an empty folder to write files to, all of which go to ``folder`` when the block ends.

    Args:
        folder: made if need be; its other files stay.

    Raises:
        CacheError: the folder cannot be made or written, or the disk is full.
    """
    place = file_path("folder", folder)
    made = _make_folder(place)
    try:
        with _moved(place, shown=place) as scratch:
            yield scratch
    except BaseException:
        with suppress(OSError):  # somebody else has put a file there meanwhile
            for part in made:
                part.rmdir()
        raise


def drop_unfinished(folder: Path) -> None:
    """Removes what processes that were killed while they wrote have left in a folder of ours."""
    with suppress(OSError):  # it may not exist, or another process does the same
        for scratch in folder.glob(f"{_PREFIX}*"):
            if time.time() - scratch.stat().st_mtime > _UNFINISHED_S:
                shutil.rmtree(scratch, ignore_errors=True)


def check_output(
    path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None] = ()
) -> None:
    """Checks before long work that a file can be written later.

    Args:
        path: of the file.
        inputs: other files of the command, which the output must not replace; None is skipped.

    Raises:
        BadOption: it is no path, or one of the inputs, perhaps through a link.
        CacheError: the folder does not exist or cannot be written, or the path is no plain file.
    """
    path = file_path("path", path)
    try:
        refuse_inputs(path, inputs)
        problem = _problem(path)
    except OSError as error:  # a name that is too long
        problem = error.strerror or str(error)
    if problem is not None:
        raise CacheError(problem, file=str(path), remedy=_REMEDY)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Checks before long work that files can be written into a folder, which may not exist yet.

    Raises:
        CacheError: it is no folder, or cannot be made or written.
    """
    there = file_path("folder", path)
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise CacheError("is no folder", file=str(there), remedy=_REMEDY)
    if not os.access(there, os.W_OK | os.X_OK):
        raise CacheError("the folder cannot be written", file=str(there), remedy=_REMEDY)


def refuse_inputs(
    path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None]
) -> None:
    """Refuses an output that is another file of the command, by whatever name.

    Raises:
        BadOption: it is.
    """
    for source in inputs:
        if source is not None and _are_same(path, source):
            raise BadOption(
                f"is the same file as {os.fspath(source)}",
                file=os.fspath(path),
                remedy="write to another file",
            )


def _are_same(left: str | os.PathLike[str], right: str | os.PathLike[str]) -> bool:
    if os.path.realpath(left) == os.path.realpath(right):
        return True
    return os.path.exists(left) and os.path.exists(right) and os.path.samefile(left, right)


def _problem(path: Path) -> str | None:
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        return "no such folder"
    if target.is_dir():
        return "is a folder"
    if target.exists() and not target.is_file():
        return "is a device or a pipe, not a plain file"
    if target.exists() and not os.access(target, os.W_OK):
        return "the file may not be written"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return "the folder cannot be written"
    return None


@contextmanager
def _moved(folder: Path, *, shown: str | os.PathLike[str]) -> Iterator[Path]:
    """A scratch folder inside ``folder``; what it holds in the end is moved up."""
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=_PREFIX))
        yield scratch
        for file in sorted(scratch.iterdir()):
            target = folder / file.name
            if target.is_file() and not target.is_symlink():
                file.chmod(stat.S_IMODE(target.stat().st_mode))
            file.replace(target)
    except OSError as error:
        raise CacheError(
            f"cannot be written: {error.strerror or error}", file=os.fspath(shown), remedy=_REMEDY
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _make_folder(folder: Path) -> list[Path]:
    """Makes a folder and those above it; returns what was made, the innermost first."""
    missing = [part for part in (folder, *folder.parents) if not os.path.lexists(part)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(
            f"the folder cannot be made: {error.strerror}", file=str(folder), remedy=_REMEDY
        ) from error
    return missing
