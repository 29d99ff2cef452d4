"""The progress of training, and its files, for code that does not train: this module does not import torch."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cascade.errors import ConfigError
from cascade.policies.artifact import CURVES_FILE

if TYPE_CHECKING:  # this module imports torch
    from cascade.training.networks.problem import Row, State

_RECENT = 100
"""The number of steps whose means progress shows, since a batch of 10 or 100 questions varies a lot."""


class Progress(NamedTuple):
    """The progress of a run. Coverage and cost, in mean steps, are means over the last 100 steps."""

    method: str
    step: int
    steps: int
    coverage: float
    cost: float
    kappa: float


Tell: TypeAlias = Callable[[Progress], None]
"""Called after each step."""


def silent(_: object) -> None:
    """Say nothing."""


class Following:
    """Follows a run step by step, and reports its progress."""

    def __init__(self, method: str, steps: int, tell: Tell) -> None:
        self._method, self._steps, self._tell = method, steps, tell
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def __call__(self, _: State, row: Row) -> None:
        """Record a step, and report the progress."""
        self._recent.append((row.coverage, row.cost))
        coverage, cost = (sum(values) / len(self._recent) for values in zip(*self._recent, strict=True))
        self._tell(Progress(self._method, row.step, self._steps, coverage, cost, row.kappa))


# --- Where a training run is saved

CHECKPOINT_FILE = "checkpoint.json"
CALLED, OPTION = "folder of checkpoints", "--checkpoint"
"""How errors call the folder, and the option that sets it (`policies.artifact.writable`)."""
EVERY = 500
"""Steps between checkpoints; at most half of a run of the default length can be lost."""


class Checkpoints(NamedTuple):
    """The folder for checkpoints of a run, and how often they are written.

    Attributes:
        folder: the folder, for this run alone.
        every: steps from one checkpoint to the next.
        resume: whether to continue from the newest checkpoint.
        say: prints a sentence on the step at which the run continues.
    """

    folder: Path
    every: int = EVERY
    resume: bool = False
    say: Callable[[str], None] = silent


# --- The figures of a training run, step by step, as a table in a file: `curves.csv` ---
# Each step is one line with the fields of `problem.Row`. Each number has all its digits, and no line has a time: the
# same run gives the same bytes, and a resumed run only adds lines.

FIELDS = ("step", "cost", "coverage", "violation", "kappa", "multiplier", "kl", "onward", "slack", "case")
"""The fields of `problem.Row`, in order."""
_WORDS = ("case",)


class Training(NamedTuple):
    """How a policy network was trained, for reports and model cards.

    Attributes:
        method: one of `policies.learned.NETWORKS`.
        settings: all of `CCPOConfig`, as plain values.
        steps: the number of steps done.
        questions: the number of questions that the network was trained on.
        levels: the number of levels that the network serves, 1 or more.
        covered: the share of questions that training aims to cover, the mean over levels.
        diverged: why training ended before its last step, in words; None if it did not.
        curves: the contents of `curves.csv`.
    """

    method: str
    settings: Mapping[str, object]
    steps: int
    questions: int
    levels: int
    covered: float
    diverged: str | None
    curves: bytes


def csv_of(rows: Iterable[Row]) -> bytes:
    r"""Return the contents of `curves.csv`: a line of field names, then a line for each step.

    >>> csv_of([(1, 1.5, 0.9, -0.1, 0.2, float("nan"), 0.001, 0.3, 0.0, "dual")]).decode().splitlines()[1]
    '1,1.5,0.9,-0.1,0.2,nan,0.001,0.3,0.0,dual'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in rows:
        writer.writerow([repr(one) if isinstance(one, float) else str(one) for one in row])
    return out.getvalue().encode("utf-8")


def rows_of(data: bytes) -> list[Row]:
    """Return the steps of a `curves.csv`."""
    from cascade.training.networks.problem import Row

    found = columns_of(data)
    return [Row(*values) for values in zip(*(found[name] for name in FIELDS), strict=True)]


def columns_of(data: bytes) -> dict[str, list[int] | list[float] | list[str]]:
    """Return the columns of a `curves.csv` by name: whole numbers for the step, words for the case."""
    try:
        head, *lines = list(csv.reader(io.StringIO(data.decode("utf-8"))))
        columns = list(zip(*lines, strict=True)) if lines else [()] * len(head)
        named = dict(zip(head, columns, strict=True))
        found = {name: _values(name, named.pop(name)) for name in FIELDS}
    except (ValueError, KeyError, csv.Error) as error:
        raise ConfigError([f"it is not a table of learning curves as it was written: {error}"], CURVES_FILE) from None
    if named:
        raise ConfigError([f"it has columns of another release: {', '.join(named)}"], CURVES_FILE)
    return found


def _values(name: str, words: Sequence[str]) -> list[int] | list[float] | list[str]:
    if name in _WORDS:
        return list(words)
    return [int(one) for one in words] if name == "step" else [float(one) for one in words]
