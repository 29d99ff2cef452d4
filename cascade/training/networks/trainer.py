"""Train policy networks for a fit, each once, and remember how each was trained.

torch is imported when the first network is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from cascade.conformal.arrays import StepArrays
from cascade.episodes.table import EpisodeTable
from cascade.errors import MissingExtraError, UsageError
from cascade.policies.learned import LearnedPolicy
from cascade.training.networks.config import CCPOConfig
from cascade.training.stages import FitTarget
from cascade.training.stopping import SharedProblem

if TYPE_CHECKING:
    from cascade.training.networks.fitting import Learned
    from cascade.training.networks.problem import TrainingProblem
    from cascade.training.networks.training import Trained


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
    """

    method: str
    settings: Mapping[str, object]
    steps: int
    questions: int
    levels: int
    covered: float
    diverged: str | None


class _For(NamedTuple):
    """The goal and options that a network of one level was trained with."""

    asked: FitTarget
    method: str
    seed: int
    confidences: bool


class _TrainedNetwork(NamedTuple):
    """A trained network: its questions, its goal (None: several levels), and how it was trained."""

    arrays: StepArrays
    made_for: _For | None
    policy: LearnedPolicy
    training: Training


class Networks:
    """Trains policy networks, each once, and remembers the training of each network that may be served.

    Args:
        config: how they are trained.
        offered: whether "auto" tries them too.
    """

    def __init__(self, config: CCPOConfig | None = None, *, offered: bool = False) -> None:
        self.config, self.offered = config or CCPOConfig(), offered
        self._made: list[_TrainedNetwork] = []
        self._build = SharedProblem()

    def sketch(self, table: EpisodeTable, asked: FitTarget, method: str, *, seed: int = 0) -> LearnedPolicy:
        """Train a network for a comparison, without confidences where they change nothing.

        Only networks of the last table are remembered, since a comparison trains many.

        Raises:
            MissingExtraError, UsageError: as `policy`.
        """
        self._made = [one for one in self._made if _to_be_served(one) or one.arrays is table.arrays]
        return self._once(table, _For(asked, method, seed, confidences=False))

    def policy(self, table: EpisodeTable, asked: FitTarget, method: str, *, seed: int = 0) -> LearnedPolicy:
        """Train a network to be served; the same request again returns the same network.

        Raises:
            MissingExtraError: torch is not installed.
            UsageError: the log has nothing to learn from, or lacks required columns.
        """
        return self._once(table, _For(asked, method, seed, confidences=True))

    def levels(
        self, table: EpisodeTable, asked: Mapping[str, FitTarget], method: str, *, seed: int = 0
    ) -> Mapping[str, LearnedPolicy]:
        """Train one network for several levels, each with its own target.

        Raises:
            MissingExtraError, UsageError: as `policy`.
        """
        learned = self._learned(table, asked, method, confidences=True, seed=seed)
        told = _training(learned, method)
        self._made += [_TrainedNetwork(table.arrays, None, policy, told) for policy in learned.policies.values()]
        return learned.policies

    def training_of(self, policy: LearnedPolicy) -> Training | None:
        """Return how a policy was trained; None if this object did not train it to be served."""
        return next((one.training for one in self._made if one.policy is policy and _to_be_served(one)), None)

    def _once(self, table: EpisodeTable, made_for: _For) -> LearnedPolicy:
        """Return the network of one level that was trained for the same target, or train it."""
        for one in self._made:
            if one.arrays is table.arrays and one.made_for == made_for:
                return one.policy
        asked, method, seed, confidences = made_for
        learned = self._learned(table, asked, method, confidences=confidences, seed=seed)
        self._made.append(_TrainedNetwork(table.arrays, made_for, learned.policy, _training(learned, method)))
        return learned.policy

    def _learned(
        self,
        table: EpisodeTable,
        asked: FitTarget | Mapping[str, FitTarget],
        method: str,
        *,
        confidences: bool,
        seed: int,
    ) -> Learned:
        require_torch(self.config.device)
        from cascade.training.networks.fitting import fit_network

        return fit_network(
            table,
            asked,
            method=method,
            config=self.config,
            confidences=confidences,
            seed=seed,
            builder=self._build,
            run=self._trained,
        )

    def _trained(self, setting: TrainingProblem) -> Trained:
        from cascade.training.networks.training import train

        _check_start(setting)
        return train(setting)


def _check_start(setting: TrainingProblem) -> None:
    """Refuse a starting threshold outside its range, which may depend on the number of actions in the log."""
    start, (low, high) = setting.config.kappa_start, setting.kappa_range
    if start is not None and not low <= start <= high:
        raise UsageError(f"kappa_start: {start:g} is outside the range of kappa here, {low:.4g} to {high:.4g}.")


def _to_be_served(one: _TrainedNetwork) -> bool:
    return one.made_for is None or one.made_for.confidences


def require_torch(device: str = "cpu") -> None:
    """Refuse to train without torch, or on a device that torch does not find."""
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "Training a policy network")
    if device == "cpu":
        return
    from cascade.training.networks.mlp import gpus

    there = gpus()
    number = int(device.partition(":")[2] or 0)
    if number >= there:
        found = "finds no GPU" if not there else f"finds {there} of them, counted from 0"
        raise UsageError(f"Device {device}: torch {found} here. Without --device it trains on the CPU.")


def _training(learned: Learned, method: str) -> Training:
    setting, trained = learned.setting, learned.trained
    limit = float(setting.goal.limits.mean())
    return Training(
        method=method,
        settings=setting.config.model_dump(mode="json"),
        steps=len(trained.rows),
        questions=len(setting.walks.counts),
        levels=setting.levels,
        covered=1.0 - limit,
        diverged=trained.diverged,
    )
