"""Random logs as tensors, as arrays of the conformal layer and as tables, and oracles that enumerate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.conformal.arrays import StepArrays, hopeless
from cascade.episodes.table import EpisodeTable
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.mlp import DTYPE
from cascade.training.networks.problem import TrainingProblem
from cascade.training.networks.recursions import Goal, policy_of
from cascade.training.networks.walks import Walks
from unit.training.worlds import log

UNIT = 100
"""What a mean step is taken to cost, nano-USD, where walks are made of arrays."""
SMALL = CCPOConfig(layers=(6, 5), batch=16, steps=10)
Set = tuple[bool, ...]


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return normal numbers."""
    return torch.from_numpy(np.random.default_rng([seed, *shape]).normal(size=shape) * scale)


def arrays(
    n: int, horizon: int, places: int, seed: int = 0, *, ragged: bool = True, share: float = 0.4, holes: float = 0.0
) -> StepArrays:
    """Return random questions that all are complete; some shorter than others, where ragged; with holes some answers lack."""
    rng = np.random.default_rng([seed, n, horizon, places])
    steps = rng.integers(1, horizon + 1, n) if ragged else np.full(n, horizon)
    there = (np.arange(horizon) < steps[:, None])[:, :, None] & (rng.random((n, horizon, places)) >= holes)
    answer = np.where(there, rng.integers(0, horizon * places, (n, horizon, places)), -1)
    correct = (rng.random((n, horizon, places)) < share) & there
    cost = np.where(np.arange(horizon) < steps[:, None], rng.integers(1, 200, (n, horizon)), 0)
    return StepArrays(answer, correct, cost, steps, np.ones(n, dtype=np.bool_))


def walks(steps: StepArrays, *, keeps: bool = False, seed: int = 0, width: int = 3) -> Walks:
    """Return the same questions as they are trained on, with random inputs; `keeps`: every answer is kept."""
    rng = np.random.default_rng([seed, steps.n])
    ends = steps.complete[:, None] & (np.arange(steps.horizon) >= steps.steps[:, None] - 1)
    ends[:, -1] = True
    found = np.logical_or.accumulate(steps.correct.any(axis=2), axis=1) | hopeless(steps)[:, None]
    right = None if keeps else torch.from_numpy(steps.correct.astype(np.float64))
    return Walks(
        torch.from_numpy(rng.normal(size=(steps.n, steps.horizon, width))),
        right,
        torch.from_numpy(np.where(found, 0.0, rng.uniform(0.5, 1.0, found.shape) if keeps else 1.0)),
        torch.from_numpy((~hopeless(steps)).astype(np.float64)),
        torch.from_numpy(steps.cost / UNIT),
        torch.from_numpy(steps.present.sum(axis=2).astype(np.float64)),
        torch.from_numpy(~ends),
        None
        if keeps
        else torch.from_numpy(~steps.present & (np.arange(steps.horizon) < steps.steps[:, None])[:, :, None]),
    )


def random_walks(
    n: int, horizon: int, places: int, seed: int = 0, *, ragged: bool = True, keeps: bool = False
) -> Walks:
    """Return random questions."""
    return walks(arrays(n, horizon, places, seed, ragged=ragged), keeps=keeps, seed=seed)


def logits_of(some: Walks, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return random logits of every action, (B, T, k)."""
    return numbers(*some.onward.shape, some.actions, seed=seed, scale=scale)


def random_policy(some: Walks, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return log π at random, (B, T, k)."""
    return policy_of(logits_of(some, seed, scale), some.onward)


def random_sets(some: Walks, seed: int = 0) -> Tensor:
    """Return how far each action is in a set, uniform in (0, 1); 0 for "next" where there is none."""
    soft = torch.from_numpy(np.random.default_rng(seed).random((*some.onward.shape, some.actions)))
    soft[..., -1] *= some.onward
    if some.right is None:
        soft[..., 0] = 1.0
    return soft


def setting(some: Walks, config: CCPOConfig = SMALL, **more: Any) -> TrainingProblem:
    """Return what a run is made of: at most a fifth is lost, where nothing else is said."""
    goal = more.pop("goal", Goal(torch.tensor([0.2], dtype=DTYPE)))
    return TrainingProblem(some, goal, config, **more)


def table(
    n: int = 60,
    horizon: int = 3,
    places: int = 2,
    seed: int = 0,
    *,
    ragged: bool = True,
    gaps: bool = True,
    holes: float = 0.0,
) -> EpisodeTable:
    """Return a log whose signal tells of the truth: some questions end early, some records do, some signals lack."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n)
    correct = rng.random((n, horizon, places)) > hard[:, None, None]
    signals = {
        "p_yes": np.clip(1 - hard[:, None] + rng.normal(size=(n, horizon)) * 0.2, 0, 1),
        "length": rng.normal(size=(n, horizon)),
    }
    whole = log(
        correct, rng.integers(1, 1000, (n, horizon)), signals, name=f"m{seed}", confidence=rng.random(correct.shape)
    )
    if not ragged:
        return whole
    steps = rng.integers(1, horizon + 1, n)
    there = np.arange(horizon) < steps[:, None]
    made = there[:, :, None] & (rng.random(correct.shape) >= holes)
    held = whole.arrays
    cut = StepArrays(
        np.where(made, held.answer, -1), held.correct & made, np.where(there, held.cost, 0),
        steps, rng.random(n) < 0.7,
    )  # fmt: skip
    told = {name: np.where(there, values, np.nan) for name, values in whole.signals.items()}
    if gaps:
        told["p_yes"] = np.where(rng.random((n, horizon)) < 0.3, np.nan, told["p_yes"])
    sure = np.where(made, whole.confidence, np.nan)
    return replace(whole, arrays=cut, signals=told, confidence=sure, paid=np.where(there, cut.cost, np.nan))


def hinted(n: int, seed: int = 4) -> Walks:
    """Return questions of two steps: half are hard, the first input says which, and the second step is always right."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.5
    first = np.stack([~hard, ~hard & (rng.random(n) < 0.5)], axis=1)
    right = np.stack([first, np.ones((n, 2), dtype=np.bool_)], axis=1).astype(np.float64)
    inputs = np.zeros((n, 2, 3))
    inputs[:, :, 0] = (2.0 * hard - 1.0)[:, None]
    inputs[:, 0, 1] = inputs[:, 1, 2] = 1.0
    ones = torch.ones(n, dtype=DTYPE)
    onward = torch.tensor([[True, False]] * n)
    lost = torch.from_numpy(np.stack([hard.astype(np.float64), np.zeros(n)], axis=1))
    cost = torch.ones(n, 2, dtype=DTYPE)
    return Walks(torch.from_numpy(inputs), torch.from_numpy(right), lost, ones, cost, 2 * cost, onward)


# --- oracles: one question, plain Python, trees followed node by node


class Leaf(NamedTuple):
    """An answer that is kept: where, and the product of the sizes of the sets on the way to it."""

    step: int
    place: int
    ways: int


class Tree(NamedTuple):
    """The steps that are visited, and the answers kept."""

    visited: int
    leaves: tuple[Leaf, ...]


def expand(sets: list[Set], step: int = 0, ways: int = 1) -> Tree:
    """Follow every action of the sets of one question; "next", the last action, is in none where it is impossible."""
    ways *= sum(sets[step])
    here = tuple(Leaf(step, place, ways) for place, kept in enumerate(sets[step][:-1]) if kept)
    if not sets[step][-1]:
        return Tree(step + 1, here)
    below = expand(sets, step + 1, ways)
    return Tree(below.visited, here + below.leaves)


def set_choices(soft: list[list[float]]) -> Iterator[tuple[float, list[Set]]]:
    """Yield all sets that one question's steps may have, each action in or out on its own, and how likely they are."""
    flat = [one for some in soft for one in some]
    width = len(soft[0])
    for chosen in itertools.product((False, True), repeat=len(flat)):
        chance = float(np.prod([one if kept else 1 - one for one, kept in zip(flat, chosen, strict=True)]))
        if chance:
            yield chance, [chosen[start : start + width] for start in range(0, len(flat), width)]


class Path(NamedTuple):
    """One action a step until an answer is taken, and how likely it is."""

    actions: tuple[int, ...]
    chance: float


def paths(chances: list[list[float]], step: int = 0) -> Iterator[Path]:
    """Yield the paths of one question, from the chance of each action at each step; "next" is the last action."""
    last = len(chances[step]) - 1
    for action, chance in enumerate(chances[step]):
        if not chance:
            continue
        if action < last:
            yield Path((action,), chance)
        else:
            for one in paths(chances, step + 1):
                yield Path((action, *one.actions), chance * one.chance)
