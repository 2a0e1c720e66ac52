"""What every test can use: the folder of outside assets, golden files, and skips with a reason."""

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No test asserts a time: machines are busy.
settings.register_profile("tilewright", deadline=None)
settings.load_profile("tilewright")

REPOSITORY = Path(__file__).resolve().parents[1]


def find_assets() -> Path | None:
    """Returns the folder with models and cases from outside the repository, if any."""
    if named := os.environ.get("TILEWRIGHT_ASSETS"):
        return Path(named)
    beside = REPOSITORY.parent / "shared"
    return beside if beside.is_dir() else None


def pytest_configure() -> None:
    """Hears Ctrl-C where a shell started the tests in the background, which ignores it.

    Processes inherit that, and tests of Ctrl-C would wait for what never comes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--update-golden``."""
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run, saying why."""
    no_assets = pytest.mark.skip(reason="no assets: set TILEWRIGHT_ASSETS to their folder")
    no_gpu = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
    has_assets, has_gpu = find_assets() is not None, shutil.which("nvidia-smi") is not None
    no_nvrtc = pytest.mark.skip(reason="no CUDA compiler: pip install .[cuda]")
    has_nvrtc = importlib.util.find_spec("cuda") is not None
    for item in items:  # by marker: folders, that of the checkout too, are keywords as well
        if item.get_closest_marker("assets") and not has_assets:
            item.add_marker(no_assets)
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(no_gpu)
        if item.get_closest_marker("nvrtc") and not has_nvrtc:
            item.add_marker(no_nvrtc)


@pytest.fixture(scope="session", autouse=True)
def _no_engines_of_other_tests() -> Iterator[None]:
    """A test that plants a fault must not get the right engine of the same model from a cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.compiler.build.key_of", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of outside assets; skips where there is none."""
    folder = find_assets()
    if folder is None:
        pytest.skip("no assets: set TILEWRIGHT_ASSETS to their folder")
    return folder


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written rather than compared with."""
    return bool(request.config.getoption("--update-golden"))
