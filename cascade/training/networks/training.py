"""CPO and CCPO: one policy network, one threshold a level, step after step.

A step draws a batch, counts what the sets at κ miss under the policy as it is, updates the policy, and then κ by Eq. 9
with its sign corrected, κ ← κ − η_t (misses − α). So κ does not learn from the update that these very questions made;
earlier steps have seen them too, and only calibration, on questions of its own, promises anything. `advance` is a pure
function of what is trained on and the state; the draws of a step hang on the seed and the step's number alone: a run
that goes on from a state brings the same bytes as one that never ended.

The multiplier μ starts at `config.multiplier` over the limit (α), in mean steps for a missed question.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from cascade.errors import UsageError
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.mlp import Pass
from cascade.training.networks.problem import (
    MULTIPLIERS,
    BatchEvaluation,
    Row,
    State,
    TrainingProblem,
    average_after,
    drawn,
    start,
)
from cascade.training.networks.recursions import Hard, Values, drawn_from
from cascade.training.networks.surrogates import surrogate
from cascade.training.networks.updates import Fisher, Moments, Question, Taken, masked_root, policy_root, trust_region


def advance(setting: TrainingProblem, state: State) -> tuple[State, Row]:
    """Return the state after one more step, and what it showed."""
    config, number = setting.config, int(state.step) + 1
    batch = drawn(setting, number)
    now = setting.net.forward(state.weights, batch.rows)
    look = BatchEvaluation(setting, batch, state.kappa[batch.level])
    logs = look.log_policy(now.outputs)
    measured = look.hard(logs)
    values, critics = surrogate(setting, batch, look, logs, state)
    asked = Question.of(
        setting.net, state.weights, batch.rows, now, values, lambda logits: look.divergence(logs, logits)
    )
    found = Values(*(one.detach() for one in asked.found))
    violation = _by_level(found.constraint, setting.levels) / setting.goal.scale
    smoothed = _smoothed(state.violation, violation, config.smoothing)
    change = _updated(setting, state, asked, batch.level, smoothed, lambda: _fisher(setting, now, logs, look, number))
    weights = state.weights + change.taken.change
    after = change.taken.logits
    after = setting.net.forward(weights, batch.rows).outputs if after is None else after
    judged = look.hard(look.log_policy(after)) if config.kappa_timing == "after" else measured
    done = number - average_after(config)
    average = state.average if done < 1 else state.average + (weights - state.average) / done
    new = State(
        state.step + 1, weights, average, *change.moments, _threshold(setting, state.kappa, judged, number),
        _ascended(state.multiplier, smoothed, config), smoothed, *critics,
    )  # fmt: skip
    dual = config.update == "dual"
    row = Row(
        number, float(measured.cost.mean()), 1.0 - float(measured.loss.mean()), float(violation.mean()),
        float(state.kappa.mean()), float(state.multiplier.mean()) if dual else math.nan,
        float(look.divergence(logs, after)), look.onward(logs), look.slack(found, measured), change.taken.case,
    )  # fmt: skip
    return new, row


def _smoothed(before: Tensor, now: Tensor, share: float) -> Tensor:
    """Return the running mean of violations, (L,); the first one is taken as it is."""
    return torch.where(before.isnan(), now, share * before + (1.0 - share) * now)


class _Change(NamedTuple):
    taken: Taken
    moments: Moments


def _updated(
    setting: TrainingProblem,
    state: State,
    asked: Question,
    level: Tensor,
    smoothed: Tensor,
    fisher: Callable[[], Fisher],
) -> _Change:
    """Return the update of the weights."""
    config, number, moments = setting.config, int(state.step) + 1, Moments(state.first, state.second)
    left = 1.0 - (number - 1) / config.steps
    if config.update == "dual":
        price = state.multiplier * (config.multiplier_gain * smoothed.clamp(-1.0, 1.0)).exp()
        return _dual(asked, price[level], moments, config.learning_rate * left, number)
    held = float((smoothed * setting.goal.scale).mean()) if config.smoothing else None
    delta = config.delta * (left if config.anneal else 1.0)
    return _Change(trust_region(asked, fisher(), held, delta, config), moments)


def _dual(asked: Question, price: Tensor, moments: Moments, rate: float, number: int) -> _Change:
    """Return Adam's step on the Lagrangian; price is μ of each question's level, (B,)."""
    (gradient,) = asked.gradients(lambda found: (found.objective + price * found.constraint).mean())
    change, moments = moments.step(gradient, rate, number)
    return _Change(Taken(change, "dual"), moments)


def _ascended(multiplier: Tensor, smoothed: Tensor, config: CCPOConfig) -> Tensor:
    return (multiplier * (config.multiplier_rate * smoothed.clamp(-1.0, 1.0)).exp()).clamp(*MULTIPLIERS)


def _fisher(setting: TrainingProblem, now: Pass, logs: Tensor, look: BatchEvaluation, number: int) -> Fisher:
    """Return the Fisher matrix of some of the batch's states."""
    config, policy = setting.config, logs.exp().reshape(-1, logs.shape[-1])
    chance = np.random.default_rng([setting.seed, number, 1])
    held = np.arange(len(policy)) if look.there is None else np.flatnonzero(look.there.cpu().numpy())
    some = held[chance.permutation(held.size)[: config.fisher_states]]
    rows = torch.from_numpy(some).to(policy.device)
    if config.trust_region_of == "soft_mask" and setting.joint:
        included = look.included(logs).reshape(policy.shape)
        slope = (1.0 - included) / config.mask_width
        if config.mask_space == "logit":
            slope = slope / (policy * (1.0 - policy)).clamp(min=1e-12)
        drawn = drawn_from(included)
        return Fisher(
            setting.net, now.tape.rows(rows), masked_root(policy[rows], drawn[rows], slope[rows]), config.damping
        )
    return Fisher(setting.net, now.tape.rows(rows), policy_root(policy[rows]), config.damping)


def _threshold(setting: TrainingProblem, kappa: Tensor, judged: Hard, number: int) -> Tensor:
    """Return κ after Eq. 9."""
    if setting.threshold == "none":
        return kappa
    config, goal = setting.config, setting.goal
    if goal.budget:
        paid = judged.cost + goal.lambda_set * judged.size
        over = -(_by_level(paid, setting.levels) - goal.limits) / goal.scale
    else:
        over = _by_level(judged.loss, setting.levels) - goal.limits
    sign = 1.0 if config.kappa_sign == "printed" else -1.0
    moved: Tensor = kappa + sign * config.eta * number ** (-0.5 - config.xi) * over
    return moved.clamp(*setting.kappa_range)


def _by_level(values: Tensor, levels: int) -> Tensor:
    """Return the mean of each level, (B,) -> (L,)."""
    return values.view(levels, -1).mean(dim=1) if levels > 1 else values.mean()[None]


class Trained(NamedTuple):
    """A run that ended.

    Attributes:
        state: the last state whose weights could be served.
        rows: what each step showed.
        diverged: why it was ended before its last step, in words; None where it was not.
    """

    state: State
    rows: list[Row]
    diverged: str | None


def train(
    setting: TrainingProblem,
    state: State | None = None,
    rows: list[Row] | None = None,
    tell: Callable[[State, Row], None] = lambda state, row: None,  # noqa: ARG005 - names are the interface
) -> Trained:
    """Train to the last step, or until it diverges.

    Args:
        setting: what, and how.
        state: where to go on from; None starts anew.
        rows: what the steps before showed.
        tell: called after each step.
    """
    state, shown = state or start(setting), list(rows or [])
    while int(state.step) < setting.config.steps:
        try:
            now, row = advance(setting, state)
        except (LinAlgError, UsageError) as error:  # the settings were checked: it is the numbers
            return Trained(state, shown, f"step {len(shown) + 1}: {error}; {_MILDER}")
        if not float(now.weights.abs().max()) < _LARGEST:  # a NaN neither
            return Trained(state, shown, f"step {len(shown) + 1}: a weight is not finite, or nearly so; {_MILDER}")
        state = now
        shown.append(row)
        tell(state, row)
        reason = lost(setting, shown)
        if reason is not None:
            return Trained(state, shown, reason)
    return Trained(state, shown, None)


_LARGEST = 1e30
"""A weight beyond is none: with it a served score might not be finite (`policies.network`)."""
_MILDER = "lower learning_rate, critic_rate or delta, or raise damping"
_WINDOW = 200
_LOST = 0.5
"""A run is lost that, over the last 200 steps, misses more than the limit by half of all questions."""


def lost(setting: TrainingProblem, rows: list[Row]) -> str | None:
    """Return why a run is not worth going on with, in words; None while it is. Looked at every 200 steps."""
    if len(rows) < _WINDOW or len(rows) % _WINDOW:
        return None
    last = rows[-_WINDOW:]
    coverage = sum(row.coverage for row in last) / len(last)
    wanted = 1.0 - float(setting.goal.limits.mean())
    if not setting.goal.budget and wanted - coverage > _LOST:
        return (
            f"step {len(rows)}: over the last {_WINDOW} steps {100 * coverage:.0f} % were covered, where "
            f"{100 * wanted:.0f} % are asked for, and kappa is {last[-1].kappa:.3g}: it does not find back"
        )
    return None
