"""Files that verbs write, and what they must not replace.

Raises ``UserError``s of core.whole_file.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tilewright.core.whole_file import check_output, refuse_inputs


def check_beside(output: Path, models: Sequence[Path], inputs: Iterable[Path | None] = ()) -> None:
    """Checks before long work that a file can be written later, and is nothing that is read.

    Args:
        output: the file to write.
        models: of the command; the files that hold their weights must stay too.
        inputs: its other files; None is skipped.
    """
    check_output(output, (*models, *inputs))
    if os.path.lexists(output):  # else there is nothing to lose, and no need to read the models
        from tilewright.graph.external_files import external_files

        for model in models:
            refuse_inputs(output, external_files(model))
