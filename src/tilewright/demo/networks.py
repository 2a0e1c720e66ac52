"""Finds the demo's three networks, PP-OCRv6 (Apache-2.0), inside the installed package rapidocr.

Name -> path of an ONNX file. Guarantees: the file is the one the demo was made for (sha256).
Not here: rapidocr's own code, which is never imported: only its model files are used.
"""

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from tilewright import UserError

PACKAGE = "rapidocr"
VERSION = "3.10.0"
REMEDY = (
    f"pip install 'tilewright[demo]'; pip install --no-deps {PACKAGE}=={VERSION} "
    "(`make demo` does both)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network's file inside the package."""

    name: str
    file: str
    sha256: str


DETECTOR = Network(
    name="detection",
    file="PP-OCRv6_det_small.onnx",
    sha256="090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
)
CLASSIFIER = Network(
    name="direction",
    file="ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
)
RECOGNISER = Network(
    name="recognition",
    file="PP-OCRv6_rec_small.onnx",
    sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
)
NETWORKS = (DETECTOR, CLASSIFIER, RECOGNISER)


def require_packages() -> None:
    """Checks that what the demo needs besides Tilewright is installed.

    Raises:
        UserError: Pillow or the package of the networks is not.
    """
    missing = [name for name, module in (("Pillow", "PIL"),) if find_spec(module) is None]
    missing += [PACKAGE] if not _is_installed(PACKAGE) else []
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise UserError(f"{' and '.join(missing)} {are} not installed", remedy=REMEDY)


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def locate(network: Network) -> Path:
    """Returns the path of a network's ONNX file.

    Raises:
        UserError: the package is not installed, or the file is not the expected one.
    """
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise UserError(f"the package {PACKAGE} is not installed", remedy=REMEDY) from None
    path = Path(str(package.locate_file(f"{PACKAGE}/models/{network.file}")))
    if not path.is_file():
        message = f"{PACKAGE} {package.version} has no such file"
        raise UserError(message, remedy=REMEDY, file=str(path))
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != network.sha256:
        message = f"sha256 is {found}, should be {network.sha256}"
        raise UserError(message, remedy=REMEDY, file=str(path))
    return path
