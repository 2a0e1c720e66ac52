"""Write arrays by name, whatever their names are.

Input -> Output: arrays by name -> an ``.npz`` file, which NumPy reads without pickle.
Guarantees: every name is kept; ``numpy.savez`` takes names for arguments of its own.
Not here: reading (compiler.feeds), types that such files lack (compiler.feeds.to_files).
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def save_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes the file; arrays of objects are text.

    Raises:
        OSError: it cannot be written.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(np.str_) if array.dtype == object else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, plain, allow_pickle=False)
