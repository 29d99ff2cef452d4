"""Fit a policy network to a log, and make the policy that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from cascade.conformal.arrays import Floats
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.policies.estimators import Scorer
from cascade.policies.learned import NETWORKS, LearnedPolicy
from cascade.policies.network import Action, Network
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.mlp import DTYPE
from cascade.training.networks.problem import State, TrainingProblem, served_weights
from cascade.training.networks.recursions import Goal
from cascade.training.networks.training import Trained, train
from cascade.training.networks.walks import Encoding, encoding_of, walks_of
from cascade.training.stages import FitTarget, allowed
from cascade.training.stopping import Problem, ProblemBuilder, build, policy_of

_THRESHOLDS: Mapping[str, Literal["joint", "online", "none"]] = {
    "cpo": "none",
    "cpo_batch": "none",
    "cpo_online": "online",
    "ccpo": "joint",
}
_LEAST = 1e-300
"""The lowest probability of a served threshold, so that its logarithm is finite."""
_ARGMAX_ONLY = 1.0
"""A threshold that no log-probability reaches."""
_Layers: TypeAlias = tuple[list[Floats], ...]
"""The weights of the layers, and their biases."""


@dataclass(frozen=True)
class Learned:
    """A policy network, and how it was trained.

    Attributes:
        policies: the policy of each level, by the level's name; "" for a single level.
        trained: the trained network and its state.
        setting: the problem that it was trained on.
    """

    policies: Mapping[str, LearnedPolicy]
    trained: Trained
    setting: TrainingProblem

    @property
    def policy(self) -> LearnedPolicy:
        """The policy of the only level, or of the first."""
        return next(iter(self.policies.values()))


def fit_network(
    table: EpisodeTable,
    asked: FitTarget | Mapping[str, FitTarget],
    *,
    method: str = "ccpo",
    config: CCPOConfig | None = None,
    confidences: bool = True,
    seed: int = 0,
    builder: ProblemBuilder = build,
    run: Callable[[TrainingProblem], Trained] = train,
) -> Learned:
    """Train a policy network, and serve it.

    For several levels, one network reads the features and the level; the biases of each served network include its
    level.

    Args:
        table: the training questions.
        asked: the target of the policy; for several levels, by their names, each with its own limit. For promises on
            the set of answers each answer has its own score; for those on the single answer every answer is
            kept and only stopping is learned.
        method: "ccpo" trains the policy together with its threshold. The others train a policy that takes one action at
            each step: "cpo" serves its argmax, "cpo_batch" has a threshold that calibration sets, and "cpo_online" a
            threshold that follows the misses of the training questions, without any promise.
        config: how it is trained; by default `CCPOConfig()`.
        confidences: whether to fit the probabilities that answers are right, as `error` and `regret` always do.
        seed: the seed of weights and batches, and of the folds of the confidences.
        builder: makes the problem; `stopping.SharedProblem` shares it with other estimators.
        run: trains the network; by default `training.train`.

    Guarantee: none; any scores are valid, and the threshold is certified on other questions.

    Raises:
        UsageError: there is no question, nothing to decide, the method does not exist, or the log lacks what the kind
            needs; or the levels have several kinds of promise.
    """
    targets = {"": asked} if isinstance(asked, FitTarget) else asked
    if method not in NETWORKS:
        raise UsageError(f"There is no policy network {method!r}; there are {', '.join(NETWORKS)}.")
    if len({one.kind for one in targets.values()}) > 1:
        raise UsageError("The levels of one network must have one kind of promise.")
    settings = config or CCPOConfig()
    if table.arrays.horizon < 2:
        raise UsageError(f"{table.dataset} has one step a question: there is nothing to decide.")
    first = next(iter(targets.values()))
    problem = builder(table, first, confidences=confidences, seed=seed)
    encoding = encoding_of(problem.stages, len(targets))
    setting = TrainingProblem(
        walks_of(problem, encoding, settings.device),
        _goal(problem, list(targets.values()), settings),
        settings,
        _THRESHOLDS[method],
        seed,
    )
    with one_torch_thread():
        trained = run(setting)
    return Learned(dict(_served(problem, encoding, setting, trained.state, method, tuple(targets))), trained, setting)


def _goal(problem: Problem, asked: Sequence[FitTarget], config: CCPOConfig) -> Goal:
    """Return the goal of training, in its units: mean losses and mean steps."""
    limits = [allowed(problem.table, one) * config.aim for one in asked]
    charged = 0.0 if asked[0].single else config.lambda_set  # one answer is served whatever is kept
    return Goal(torch.tensor(limits, dtype=DTYPE, device=config.device), charged)


def _served(
    problem: Problem, encoding: Encoding, setting: TrainingProblem, state: State, method: str, levels: tuple[str, ...]
) -> Iterator[tuple[str, LearnedPolicy]]:
    parts = setting.net.parts(served_weights(setting, state).cpu())
    layers = tuple([[one.numpy().copy() for one in some] for some in parts])
    for level, name in enumerate(levels):
        networks = [_network(problem, encoding, setting, layers, step, level) for step in range(len(problem.stages))]
        onward: list[Scorer | None] = [Action(one, one.outputs - 1) for one in networks[:-1]]
        include = None
        if setting.walks.right is not None:
            places = range(len(problem.table.sources))
            include = [tuple([Action(one, place) for place in places]) for one in networks]
        yield name, policy_of(problem, method, onward, include, _kappa(method, setting, float(state.kappa[level])))


def _network(
    problem: Problem, encoding: Encoding, setting: TrainingProblem, layers: _Layers, step: int, level: int
) -> Network:
    """Return the network served at a step: it reads the step's columns, and its biases hold the constant inputs."""
    (first, *weights), (bias, *biases) = layers
    places = encoding.places[step]
    bias = bias + first[:, encoding.always(step, level)].sum(axis=1)
    there = np.ones(setting.walks.actions, dtype=np.bool_)
    there[-1] = step < len(problem.stages) - 1
    return Network(
        problem.stages[step].design,
        (np.ascontiguousarray(first[:, places]), *weights),
        (bias, *biases),
        setting.config.activation,
        there,
    )


def _kappa(method: str, setting: TrainingProblem, trained: float) -> float:
    """Return the threshold of log-probabilities that serves without a certificate.

    If every answer is kept, the threshold is log ½: the likelier of two actions is taken.
    """
    if method in {"cpo", "cpo_batch"}:
        return float(np.log(0.5)) if setting.walks.right is None else _ARGMAX_ONLY
    return float(np.log(max(trained, _LEAST)))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch use one thread: sums then have one order, and small batches are no slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
