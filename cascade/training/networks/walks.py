"""A log as tensors for training: questions × steps × numbers.

All steps share one network. A feature is the same input at every step, scaled by the design of that step
(`training.stages`); a feature that a step lacks is 0. Further inputs say which step it is. The served network of a step
reads only the columns of that step: `fitting` adds the inputs that are always 1 there to the biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.conformal.arrays import Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.training.networks.mlp import DTYPE
from cascade.training.stages import Stage, on_record
from cascade.training.stopping import Problem


class Encoding(NamedTuple):
    """The position of each step's columns among the inputs.

    Attributes:
        names: the features of all steps; the input "p_yes?" is 1 if p_yes is missing.
        places: for each step, the input of each column of its design.
        levels: the number of levels; 0 for a single level.
    """

    names: tuple[str, ...]
    places: tuple[Ints, ...]
    levels: int = 0

    @property
    def inputs(self) -> int:
        """All inputs: features, steps, levels."""
        return len(self.names) + len(self.places) + self.levels

    def always(self, step: int, level: int = 0) -> list[int]:
        """Return the inputs that are 1 at a step, from 0, and at a level."""
        found = [len(self.names) + step]
        return [*found, len(self.names) + len(self.places) + level] if self.levels else found


class Walks(NamedTuple):
    """n questions, T steps, m candidates a step. Float tensors are float64.

    Attributes:
        inputs: (n, T, inputs), without the inputs of the levels.
        right: (n, T, m), 1 if a candidate is right; None if every answer is kept and the policy only decides when to
            stop.
        stop_loss: (n, T), the loss of stopping after each step if every answer is kept (`stopping.Problem.loss`).
        counts: (n,), 1 if the question counts as missed when no right answer is kept, else 0.
        cost: (n, T), the cost of each step, in mean steps; 0 beyond a complete record.
        leaves: (n, T), the number of answers of a step.
        onward: bool (n, T), whether there is a next step to go on to.
        absent: bool (n, T, m), the answers that a logged step lacks; None if no step lacks one, or if every answer is
            kept.
        there: bool (n, T), the steps that the log has; None if it has all.
    """

    inputs: Tensor
    right: Tensor | None
    stop_loss: Tensor
    counts: Tensor
    cost: Tensor
    leaves: Tensor
    onward: Tensor
    absent: Tensor | None = None
    there: Tensor | None = None

    def take(self, rows: Tensor) -> Walks:
        """Return some questions, int64 (r,)."""
        return Walks(*[None if one is None else one[rows] for one in self])  # type: ignore[arg-type]

    @property
    def actions(self) -> int:
        """The number of actions k of a step: one for each candidate and "next", or "stop" and "next"."""
        return 2 if self.right is None else int(self.right.shape[2]) + 1


def encoding_of(stages: Sequence[Stage], levels: int = 0) -> Encoding:
    """Return the positions of the columns of steps."""
    said = [_names(stage) for stage in stages]
    names = tuple(dict.fromkeys(name for some in said for name in some))
    at = {name: place for place, name in enumerate(names)}
    places = tuple([np.array([at[name] for name in some], dtype=np.int64) for some in said])
    return Encoding(names, places, levels if levels > 1 else 0)


def _names(stage: Stage) -> list[str]:
    own = list(stage.features.names)
    return own + [f"{own[place]}?" for place in stage.design.indicators.tolist()]


def walks_of(problem: Problem, encoding: Encoding, device: str = "cpu") -> Walks:
    """Return the questions of a problem (`stopping.build`, without products of features)."""
    table = problem.table
    scored = problem.asked.rules.counts_misses  # these kinds score each answer; for the others every answer is kept
    right = _tensor(table.arrays.correct, device) if scored else None
    hopeless = table.arrays.complete & ~table.arrays.solvable
    counts = _tensor(problem.asked.rules.counted(table) & ~hopeless, device)
    inputs = _tensor(_inputs(table, problem.stages, encoding), device)
    cost, leaves = _tensor(problem.cost.values, device), _tensor(table.arrays.present.sum(axis=2), device)
    loss = _tensor(problem.loss, device)
    held = on_record(table)
    lacking = ~table.arrays.present & held[:, :, None]
    absent = torch.from_numpy(lacking).to(device) if scored and lacking.any() else None
    there = None if held.all() else torch.from_numpy(held).to(device)
    return Walks(inputs, right, loss, counts, cost, leaves, _onward(table).to(device), absent, there)


def _inputs(table: EpisodeTable, stages: Sequence[Stage], encoding: Encoding) -> Floats:
    width = len(encoding.names) + len(encoding.places)
    found = np.zeros((table.n, len(stages), width))
    for t, (stage, places) in enumerate(zip(stages, encoding.places, strict=True)):
        found[stage.rows[:, None], t, places[None, :]] = stage.columns
        found[:, t, len(encoding.names) + t] = 1.0
    return found


def _onward(table: EpisodeTable) -> Tensor:
    """Return whether there is a next step: not after the last step of a complete question, nor after step T."""
    number = np.arange(table.arrays.horizon)
    ends = table.arrays.complete[:, None] & (number >= table.arrays.steps[:, None] - 1)
    return torch.from_numpy(~ends & (number < table.arrays.horizon - 1))


def _tensor(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64)).to(DTYPE).to(device)
