"""Where a run of training is kept on the disk, for those who ask for it and do not train: nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

CHECKPOINT_FILE = "checkpoint.json"
CALLED, OPTION = "folder of checkpoints", "--checkpoint"
"""What errors call it, and what names it on the command line (`policies.files.writable`)."""
EVERY = 500
"""Steps from one checkpoint to the next: half of a run of the default length is lost at the most."""


def _unsaid(_: str) -> None:
    """Say nothing."""


class Checkpoints(NamedTuple):
    """Where a run of training is kept on the disk.

    Attributes:
        folder: of this run alone.
        every: steps from one checkpoint to the next.
        resume: whether to go on from what is there.
        say: is told, in words, where it goes on.
    """

    folder: Path
    every: int = EVERY
    resume: bool = False
    say: Callable[[str], None] = _unsaid
