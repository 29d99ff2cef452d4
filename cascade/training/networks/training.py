"""Train CPO and CCPO: one policy network, with a threshold for each level.

A step draws a batch, counts the misses of the sets at κ under the current policy, updates the policy, and then updates
κ by Eq. 9 with its sign corrected, κ ← κ − η_t (misses − α). So κ does not depend on the update of the policy from the
same questions. Earlier steps have seen these questions too, so only calibration, on other questions, promises anything.
`advance` is a pure function of the training problem and the state; the draws of a step depend only on the seed and the
step's number.

The multiplier μ starts at `config.multiplier` over the limit (α), in mean steps for a missed question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from cascade.errors import UsageError
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.problem import (
    MULTIPLIERS,
    BatchEvaluation,
    State,
    StepFigures,
    TrainingProblem,
    average_after,
    drawn,
    start,
)
from cascade.training.networks.recursions import Brought

_DECAYS = 0.9, 0.999
_EPSILON = 1e-8


class Moments(NamedTuple):
    """Adam's running means of gradients and of their squares, (P,) each (Kingma & Ba 2015)."""

    first: Tensor
    second: Tensor

    def step(self, gradient: Tensor, rate: float, number: int) -> tuple[Tensor, Moments]:
        """Return the change of the weights, and the new moments; `number` counts the updates from 1."""
        first = (_DECAYS[0] * self.first).add_(gradient, alpha=1 - _DECAYS[0])
        second = (_DECAYS[1] * self.second).addcmul_(gradient, gradient, value=1 - _DECAYS[1])
        spread = (second / (1 - _DECAYS[1] ** number)).sqrt_().add_(_EPSILON)
        return (first / spread).mul_(-rate / (1 - _DECAYS[0] ** number)), Moments(first, second)


def advance(setting: TrainingProblem, state: State) -> tuple[State, StepFigures]:
    """Return the state after one more step, and the step's figures."""
    config, number = setting.config, int(state.step) + 1
    batch = drawn(setting, number)
    now = setting.net.forward(state.weights, batch.rows)
    look = BatchEvaluation(setting, batch, state.kappa[batch.level])
    logs = look.log_policy(now.outputs)
    measured = look.hard(logs)
    logits = now.outputs.detach().requires_grad_()
    values = look.values(logits)
    violation = by_level(values.constraint.detach(), setting.levels) / setting.goal.scale
    smoothed = smoothed_by(state.violation, violation, config.smoothing)
    price = priced(state.multiplier, smoothed, config)[batch.level]
    (pulled,) = torch.autograd.grad((values.objective + price * values.constraint).mean(), logits)
    rate = config.learning_rate * (1.0 - (number - 1) / config.steps)
    change, moments = Moments(state.first, state.second).step(setting.net.vjp(now.tape, pulled), rate, number)
    weights = state.weights + change
    kappa = state.kappa
    if setting.threshold != "none":
        kappa = (kappa - kappa_step(setting, measured, number)).clamp(*setting.kappa_range)
    new = State(
        state.step + 1, weights, averaged(state, weights, number - average_after(config)), *moments, kappa,
        ascended(state.multiplier, smoothed, config), smoothed,
    )  # fmt: skip
    return new, StepFigures(1.0 - float(measured.loss.mean()), float(violation.mean()), float(state.kappa.mean()))


def smoothed_by(before: Tensor, now: Tensor, share: float) -> Tensor:
    """Return the running mean of violations, (L,); it starts at the first violation."""
    return torch.where(before.isnan(), now, share * before + (1.0 - share) * now)


def priced(multiplier: Tensor, smoothed: Tensor, config: CCPOConfig) -> Tensor:
    """Return the present price of a violation, (L,): μ with its proportional part."""
    return multiplier * (config.multiplier_gain * smoothed.clamp(-1.0, 1.0)).exp()


def ascended(multiplier: Tensor, smoothed: Tensor, config: CCPOConfig) -> Tensor:
    """Return μ after a step of dual ascent, (L,)."""
    return (multiplier * (config.multiplier_rate * smoothed.clamp(-1.0, 1.0)).exp()).clamp(*MULTIPLIERS)


def averaged(state: State, weights: Tensor, updates: int) -> Tensor:
    """Return the mean of the weights over so many updates; the old mean if averaging has not begun."""
    return state.average if updates < 1 else state.average + (weights - state.average) / updates


def kappa_step(setting: TrainingProblem, judged: Brought, number: int) -> Tensor:
    """Return by how much Eq. 9, its sign corrected, lowers κ, (L,)."""
    config, goal = setting.config, setting.goal
    over = by_level(judged.loss, setting.levels) - goal.limits
    return config.eta * number ** (-0.5 - config.xi) * over  # type: ignore[no-any-return]


def by_level(values: Tensor, levels: int) -> Tensor:
    """Return the mean of each level, (B,) -> (L,)."""
    return values.view(levels, -1).mean(dim=1) if levels > 1 else values.mean()[None]


class Trained(NamedTuple):
    """The state and the figures of a run so far; `diverged` says why it ended before its last step."""

    state: State
    rows: list[StepFigures]
    diverged: str | None = None


def train(
    setting: TrainingProblem, advance: Callable[[TrainingProblem, State], tuple[State, StepFigures]] = advance
) -> Trained:
    """Train to the last step, or until it diverges."""
    state, shown = start(setting), list[StepFigures]()
    while int(state.step) < setting.config.steps:
        try:
            now, row = advance(setting, state)
        except (LinAlgError, UsageError) as error:  # the settings were checked, so the numbers diverged
            return Trained(state, shown, f"step {len(shown) + 1}: {error}; {_MILDER}")
        if not float(now.weights.abs().max()) < _LARGEST:  # also false for NaN
            return Trained(state, shown, f"step {len(shown) + 1}: a weight is not finite, or nearly so; {_MILDER}")
        state = now
        shown.append(row)
        reason = lost(setting, shown)
        if reason is not None:
            return Trained(state, shown, reason)
    return Trained(state, shown)


_LARGEST = 1e30
"""A larger weight ends a run: a served score might then not be finite (`policies.network`)."""
_MILDER = "lower learning_rate"
_WINDOW = 200
_LOST = 0.5
"""A run is ended if, over the last 200 steps, its share of misses exceeds the limit by more than this."""


def lost(setting: TrainingProblem, rows: list[StepFigures]) -> str | None:
    """Return why a run should end early, in words; None if it should go on. Checked every 200 steps."""
    if len(rows) < _WINDOW or len(rows) % _WINDOW:
        return None
    last = rows[-_WINDOW:]
    coverage = sum(row.coverage for row in last) / len(last)
    wanted = 1.0 - float(setting.goal.limits.mean())
    if wanted - coverage > _LOST:
        return (
            f"step {len(rows)}: over the last {_WINDOW} steps {100 * coverage:.0f} % were covered, but the target is "
            f"{100 * wanted:.0f} %; kappa is {last[-1].kappa:.3g}, and training does not recover"
        )
    return None
