"""The logs that policies are fitted to and judged on, and those that are left out, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.arrays import Ints, StepArrays, hopeless
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.logs import DEMO, DEMO_LADDER, open_log

LEAST_QUESTIONS = 200
FILES = (
    "zell_mmlu",
    "zell_truthfulqa",
    "zell_gsm8k",
    "firstpass_mbpp",
    "intercode",
    "uala",
    "mmlu_pro",
    "single_round",
)
CALLS = ("mint_rounds", "routellm")
"""Files of one answer a row: one has fewer than 200 questions each, the other the same answers as `single_round`."""
CONTROLS = ("zell_truthfulqa", "uala")
"""Logs on which a threshold is known to gain little: where a guide is not better, or the doubt says nothing."""
LADDERS = ("zell_mmlu/llama-1b,3b,8b,70b>gpt-4o", "zell_mmlu/llama-1b,3b,8b,70b>405b")
"""Ladders of five models, the guide's last. Also read without their first rung; the first also without its last."""


class Cell(NamedTuple):
    """One log to fit to.

    Attributes:
        name: the data set's.
        source: the data set whose questions they are; cells of one source share them, and are not independent.
        table: the episodes.
    """

    name: str
    source: str
    table: EpisodeTable

    @property
    def control(self) -> bool:
        """Whether little is to be gained here, so that a large saving would be suspect."""
        return self.source.startswith(CONTROLS)

    def floor(self, alpha: float) -> bool:
        """Whether the first step alone covers 1 − alpha: then nothing is to be saved."""
        steps = self.table.arrays
        first = steps.correct[:, 0].any(axis=1) | hopeless(steps)
        return float(first.mean()) >= 1 - alpha


class LeftOut(NamedTuple):
    """A log that is not judged on, and why."""

    name: str
    why: str


def cells(folder: Path | None, names: tuple[str, ...] = ()) -> tuple[list[Cell], list[LeftOut]]:
    """Read every log of a folder, and the demo's; of the given names alone, where some are given (parts of names)."""
    found: list[Cell] = []
    left: list[LeftOut] = []
    paths = [] if folder is None else [folder / f"{_file(name)}.parquet" for name in (*FILES, *CALLS)]
    paths = [path for path in paths if path.exists()]
    for log in [*map(str, paths), DEMO, DEMO_LADDER]:
        if log.endswith("routellm.parquet"):
            left.append(LeftOut("routellm", "the same answers as in episodes_single_round"))
            continue
        for table in open_log(log).tables:
            why = unsuitable(table)
            if why is not None:
                left.append(LeftOut(table.dataset, why))
                continue
            found += [_cell(one) for one in (table, *shorter(table))]
    if names:
        found = [cell for cell in found if any(name in cell.name for name in names)]
    return found, left


def _file(name: str) -> str:
    return name if name in CALLS else f"episodes_{name}"


def _cell(table: EpisodeTable) -> Cell:
    source = table.dataset.split("/", maxsplit=1)[0]
    return Cell(table.dataset, DEMO if source == DEMO_LADDER else source, table)


def unsuitable(table: EpisodeTable) -> str | None:
    """Return why a log is not judged on; None if it is."""
    if table.arrays.horizon < 2:
        return "a single step: nothing is to be decided"
    questions = len(set(table.groups))
    if questions < LEAST_QUESTIONS:
        return f"fewer than {LEAST_QUESTIONS} questions"
    return None if table.cost_known else "some costs are unknown"


def is_ladder(name: str) -> bool:
    """Return whether a cell is a ladder of the data set that a demand is made on.

    >>> [is_ladder(name) for name in (*LADDERS, "zell_mmlu/llama-3b>gpt-4o", "demo-ladder")]
    [True, True, False, False]
    """
    return name.startswith(LADDERS[0].split("/")[0]) and "," in name


def shorter(table: EpisodeTable) -> list[EpisodeTable]:
    """Return the ladders of four models within one of five; nothing for another log."""
    if table.dataset not in LADDERS:
        return []
    alone = [without_last(table)] if table.dataset == LADDERS[0] else []
    return [*alone, without_first(table)]


def without_last(table: EpisodeTable) -> EpisodeTable:
    """Return a ladder without its last rung, as if that model had never been asked; the walks go with it."""
    return rungs(table, range(table.arrays.horizon - 1), table.dataset.rsplit(">", maxsplit=1)[0])


def without_first(table: EpisodeTable) -> EpisodeTable:
    """Return a ladder without its first rung, as if that model had never been asked; the walks go with it."""
    return rungs(table, range(1, table.arrays.horizon), re.sub(r"-\w+,", "-", table.dataset, count=1))


def rungs(table: EpisodeTable, which: Sequence[int], dataset: str) -> EpisodeTable:
    """Return a ladder of some of the rungs, as if the other models had never been asked; the walks go with them.

    Args:
        table: the episodes.
        which: the rungs, from 0, ascending.
        dataset: what the shorter ladder is called.
    """
    horizon, kept = table.arrays.horizon, list(which)
    steps = table.arrays
    ran = np.array(kept)[None, :] < steps.steps[:, None]
    arrays = StepArrays(
        _renumbered(steps.answer[:, kept]),
        steps.correct[:, kept],
        steps.cost[:, kept],
        ran.sum(axis=1),
        steps.complete | ran.all(axis=1),
    )
    models = tuple([table.step_models[rung] for rung in kept]) if table.step_models else ()
    changed: dict[str, Any] = {"arrays": arrays, "walks": {}, "dataset": dataset, "step_models": models}
    for one in fields(table):
        held = getattr(table, one.name)
        if isinstance(held, np.ndarray) and held.ndim >= 2 and held.shape[1] == horizon:
            changed[one.name] = held[:, kept]
    changed["signals"] = {name: values[:, kept] for name, values in table.signals.items()}
    return replace(table, **changed)


def _renumbered(answer: Ints) -> Ints:
    """Number the answers of each question from 0 in the order in which they come: the same answer, the same number."""
    flat = answer.reshape(len(answer), -1)
    first = (flat[:, :, None] == flat[:, None, :]).argmax(axis=2)  # where an answer stands for the first time
    new = (first == np.arange(flat.shape[1])) & (flat >= 0)
    number = np.take_along_axis(new.cumsum(axis=1) - 1, first, axis=1)
    return np.asarray(np.where(flat >= 0, number, -1).reshape(answer.shape), dtype=np.int64)


def placebo(table: EpisodeTable, seed: int) -> EpisodeTable:
    """Return the log with everything gone that could tell which answers are right: a control.

    Answers and truth are dealt anew to the questions, whole questions at a time; which answers agree is taken as not
    known; every step costs its mean. So whatever a policy looks at says nothing of what it would gain, and no policy is
    better than a coin between two depths. Rates of right answers, their correlations and the signals stay as they are.
    """
    deal = np.random.default_rng([17, seed]).permutation(table.n)
    steps = table.arrays
    cost = np.broadcast_to(_mean_cost(steps), steps.cost.shape).copy()
    arrays = StepArrays(
        _unlike(steps.answer[deal]),
        steps.correct[deal],
        np.where(np.arange(steps.horizon) < steps.steps[deal][:, None], cost, 0),
        steps.steps[deal],
        steps.complete[deal],
    )
    return replace(
        table,
        arrays=arrays,
        walks={},
        dataset=f"{table.dataset}, placebo",
        confidence=np.full_like(table.confidence, np.nan),
        paid=np.empty((0, 0)),  # what the steps cost now
        texts_known=np.zeros(table.n, dtype=np.bool_),
    )


def _mean_cost(steps: StepArrays) -> Ints:
    paid = np.arange(steps.horizon) < steps.steps[:, None]
    mean = np.where(paid, steps.cost, 0).sum(axis=0) / np.maximum(paid.sum(axis=0), 1)
    return np.asarray(np.rint(mean), dtype=np.int64)


def _unlike(answer: Ints) -> Ints:
    """Number the answers of a question so that no two are the same."""
    width = answer.shape[1] * answer.shape[2]
    own = np.arange(width).reshape(answer.shape[1:])
    return np.asarray(np.where(answer >= 0, own[None], -1), dtype=np.int64)
