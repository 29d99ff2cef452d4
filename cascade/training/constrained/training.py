"""CPO and CCPO: one policy network, one threshold a level, step after step.

A step draws a batch, counts what the sets at κ miss under the policy as it is, updates the policy, and then κ by Eq. 9
with its sign corrected, κ ← κ − η_t (misses − α). So κ never learns from a policy that was fitted to the very questions
that it is judged on. `advance` is a pure function of what is trained on and the state; the draws of a step hang on the
seed and the step's number alone, so that a run that goes on from a state brings the same bytes as one that never ended.

The multiplier μ starts at `config.multiplier` over the limit (α), in mean steps for a missed question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.training.constrained.config import CCPOConfig
from cascade.training.constrained.fisher import Fisher, masked_root, policy_root
from cascade.training.constrained.goal import Goal, Values
from cascade.training.constrained.mlp import DTYPE, Mlp, Pass
from cascade.training.constrained.recursions import Hard, at_threshold, brought, drawn_from, policy_of, soft_mask
from cascade.training.constrained.sampled import Functional, estimate, functionals, roll_out, seen, values_of
from cascade.training.constrained.updates import Moments, Question, Taken, trust_region
from cascade.training.constrained.walks import Walks

_MULTIPLIERS = 1e-3, 1e4
"""What μ is kept in."""
_ABOVE_ALL = 2.0
"""A threshold that no probability reaches: the argmax alone is taken."""


@dataclass(frozen=True)
class Setting:
    """What is trained on, and how.

    Attributes:
        walks: the training questions.
        goal: what is asked, for each level.
        config: how.
        joint: whether a threshold is trained along (CCPO), or the policy takes one action a step (CPO).
        online: whether κ follows the misses; with `joint`, and for CPO online, whose policy does not look at it.
        seed: draws weights, batches, rollouts.
    """

    walks: Walks
    goal: Goal
    config: CCPOConfig
    joint: bool = True
    online: bool = True
    seed: int = 0

    @property
    def levels(self) -> int:
        """How many levels the policy is conditioned on."""
        return len(self.goal.limits)

    @property
    def inputs(self) -> int:
        """The inputs of the network, those of the levels included."""
        return int(self.walks.inputs.shape[2]) + (self.levels if self.levels > 1 else 0)

    @property
    def net(self) -> Mlp:
        """The policy network."""
        return Mlp((self.inputs, *self.config.layers, self.walks.actions), self.config.activation)

    @property
    def critic(self) -> Mlp:
        """The critics: one network with two heads, cost and loss."""
        return Mlp((self.inputs, *self.config.layers, 2), self.config.activation)

    @property
    def kappa_range(self) -> tuple[float, float]:
        """What κ is kept in."""
        actions = self.walks.actions
        return self.config.kappa_range or (0.3 / actions, 1.0 / actions)


class State(NamedTuple):
    """All that a run is after a step; tensors of float64, so that it can be written and read without loss.

    Attributes:
        step: updates done, int64 ().
        weights, average: of the policy, (P,); the average is over the updates from `config.average_from` on.
        first, second: Adam's moments, (P,).
        kappa, multiplier, violation: (L,); the violation is smoothed, in limits, NaN before the first step.
        critic, critic_first, critic_second: of the critics, (Pc,); empty where nothing is sampled.
    """

    step: Tensor
    weights: Tensor
    average: Tensor
    first: Tensor
    second: Tensor
    kappa: Tensor
    multiplier: Tensor
    violation: Tensor
    critic: Tensor
    critic_first: Tensor
    critic_second: Tensor


class Row(NamedTuple):
    """What one step showed, of its batch; at several levels means over them.

    Attributes:
        step: its number, from 1.
        cost: of the sets at κ, in mean steps.
        coverage: 1 − loss of the sets at κ, under the policy before its update.
        violation: of the surrogate, in limits: above 0 it does not keep what it should.
        kappa, multiplier: before the step; μ is NaN in a trust region.
        kl: mean KL divergence of the new policy from the old one, nats.
        onward: mean π(next) where there is a next step.
        slack: coverage as the surrogate has it minus that of the sets at κ; large where repeated answers are counted.
        case: "dual", or what became of the trust-region step.
    """

    step: int
    cost: float
    coverage: float
    violation: float
    kappa: float
    multiplier: float
    kl: float
    onward: float
    slack: float
    case: str


def start(setting: Setting) -> State:
    """Return the state before the first step."""
    config, levels, device = setting.config, setting.levels, setting.config.device
    weights = setting.net.initial(setting.seed).to(device)
    low, high = setting.kappa_range
    middle = 0.6 / setting.walks.actions if config.kappa_start is None else config.kappa_start
    each = torch.ones(levels, dtype=DTYPE, device=device)
    worth = 0.1 * each if setting.goal.budget else config.multiplier / setting.goal.scale
    sampled = config.estimator == "sampled"
    critic = setting.critic.initial(setting.seed + 1).to(device) if sampled else torch.zeros(0, dtype=DTYPE)
    nothing = torch.zeros_like(weights)
    return State(
        torch.zeros((), dtype=torch.int64), weights, nothing, nothing, nothing, each * min(max(middle, low), high),
        worth, each * torch.nan, critic, torch.zeros_like(critic), torch.zeros_like(critic),
    )  # fmt: skip


def served_weights(setting: Setting, state: State) -> Tensor:
    """Return the weights to serve: the average, where one has begun."""
    return state.average if int(state.step) > _average_after(setting.config) else state.weights


def _average_after(config: CCPOConfig) -> int:
    return min(int(config.average_from * config.steps), config.steps)


class _Batch(NamedTuple):
    """What one step looks at: questions, (B,) levels, the inputs of their states, uniform draws for rollouts."""

    walks: Walks
    level: Tensor
    rows: Tensor
    draws: Tensor


def _drawn(setting: Setting, number: int) -> _Batch:
    """Return the batch of a step: it hangs on the seed and the step's number alone."""
    chance = np.random.default_rng([setting.seed, number])
    n, size, horizon = len(setting.walks.counts), setting.config.batch_size, setting.walks.cost.shape[1]
    chosen = np.arange(n) if size >= n else chance.choice(n, size, replace=False)
    walks = setting.walks.take(torch.from_numpy(np.sort(chosen)).to(setting.config.device))
    many = len(chosen)
    draws = torch.from_numpy(chance.random((many * setting.levels, horizon))).to(setting.config.device)
    level = torch.arange(setting.levels, device=setting.config.device).repeat_interleave(many)
    if setting.levels > 1:  # every question at every level
        walks = Walks(*[None if one is None else one.repeat(setting.levels, *[1] * (one.dim() - 1)) for one in walks])  # type: ignore[arg-type]
        told = torch.nn.functional.one_hot(level, setting.levels).to(DTYPE)[:, None, :].expand(-1, horizon, -1)
        walks = walks._replace(inputs=torch.cat([walks.inputs, told], dim=2))
    return _Batch(walks, level, walks.inputs.reshape(-1, setting.inputs), draws)


def advance(setting: Setting, state: State) -> tuple[State, Row]:
    """Return the state after one more step, and what it showed."""
    config, number = setting.config, int(state.step) + 1
    batch = _drawn(setting, number)
    now = setting.net.forward(state.weights, batch.rows)
    look = _Look(setting, batch, state.kappa[batch.level])
    logs = look.log_policy(now.outputs.detach())
    measured = look.hard(logs)
    values, learned = _surrogate(setting, batch, look, logs, state)
    asked = Question(setting.net, state.weights, batch.rows, now, values, lambda logits: look.divergence(logs, logits))
    found = values(now.outputs.detach())
    violation = _by_level(found.constraint, batch.level, setting.levels) / setting.goal.scale
    smoothed = torch.where(
        state.violation.isnan(), violation, config.smoothing * state.violation + (1 - config.smoothing) * violation
    )
    left = 1.0 - (number - 1) / config.steps
    moments = Moments(state.first, state.second)
    if config.update == "dual":
        taken, moments = _dual(asked, state.multiplier[batch.level], moments, config.learning_rate * left, number)
        multiplier = _ascended(state.multiplier, violation, config)
    else:
        delta = config.delta * (left if config.anneal else 1.0)
        fisher = _fisher(setting, now, logs, look, number)
        held = float((smoothed * setting.goal.scale).mean()) if config.smoothing else None
        taken, multiplier = trust_region(asked, fisher, held, delta, config), state.multiplier
    weights = state.weights + taken.change
    after = setting.net.forward(weights, batch.rows).outputs
    if config.kappa_timing == "after":
        judged = look.hard(look.log_policy(after))
    else:
        judged = measured
    kappa = _threshold(setting, state.kappa, judged, batch.level, number)
    row = Row(
        number, float(measured.cost.mean()), 1.0 - float(measured.loss.mean()), float(violation.mean()),
        float(state.kappa.mean()), float(state.multiplier.mean()) if config.update == "dual" else float("nan"),
        float(look.divergence(logs, after)), look.onward(logs), look.slack(found, measured), taken.case,
    )  # fmt: skip
    done = number - _average_after(config)
    average = state.average if done < 1 else state.average + (weights - state.average) / done
    new = State(
        state.step + 1,
        weights,
        average,
        *moments,
        kappa,
        multiplier,
        smoothed,
        *learned,
    )
    return new, row


class _Look:
    """A policy on a batch at its thresholds."""

    def __init__(self, setting: Setting, batch: _Batch, kappa: Tensor) -> None:
        self._setting, self._batch, self._kappa = setting, batch, kappa

    def log_policy(self, logits: Tensor) -> Tensor:
        """Return log π, (N, k) -> (B, T, k)."""
        walks = self._batch.walks
        return policy_of(logits.view(*walks.onward.shape, -1), walks.onward)

    def included(self, logs: Tensor) -> Tensor:
        """Return how far each action is in the set; π itself where one action a step is taken."""
        config = self._setting.config
        if not self._setting.joint:
            return logs.exp()
        soft = soft_mask(logs, self._kappa[:, None, None], config.mask_width, config.mask_space)
        if self._batch.walks.right is None:  # every answer is kept
            return torch.cat([torch.ones_like(soft[..., :1]), soft[..., 1:]], dim=-1)
        return soft

    def hard(self, logs: Tensor) -> Hard:
        """Return what the sets at κ bring; of CPO without a threshold, the argmax."""
        kappa = self._kappa if self._setting.online or self._setting.joint else torch.full_like(self._kappa, _ABOVE_ALL)
        return at_threshold(logs, self._batch.walks, kappa)

    def divergence(self, logs: Tensor, logits: Tensor) -> Tensor:
        """Return the mean KL divergence of the policy of logits from that of logs."""
        new = self.log_policy(logits)
        if self._setting.config.trust_region_of == "soft_mask" and self._setting.joint:
            new, logs = (drawn_from(self.included(one)).clamp(min=1e-300).log() for one in (new, logs))
        gap = torch.where(new == -torch.inf, 0.0, new.exp() * (new - logs.clamp(min=-1e300)))
        return gap.sum(-1).mean()

    def onward(self, logs: Tensor) -> float:
        """Return the mean π(next) where there is a next step."""
        there = self._batch.walks.onward
        return float(logs[..., -1].exp()[there].mean()) if bool(there.any()) else 0.0

    def slack(self, found: Values, measured: Hard) -> float:
        """Return coverage as the surrogate has it minus that of the sets."""
        goal = self._setting.goal
        loss = found.objective if goal.budget else found.constraint + goal.limits[self._batch.level]
        return float((measured.loss - loss).mean())


def _surrogate(
    setting: Setting, batch: _Batch, look: _Look, logs: Tensor, state: State
) -> tuple[Callable[[Tensor], Values], tuple[Tensor, Tensor, Tensor]]:
    """Return objective and constraint as functions of the logits, and the critics after they have learned."""
    config, goal = setting.config, setting.goal
    critics = (state.critic, state.critic_first, state.critic_second)
    if config.estimator == "exact":
        counted, path = config.constraint_form == "paper", config.cost_form == "path"

        def exact(logits: Tensor) -> Values:
            included = look.included(look.log_policy(logits))
            return goal.values(brought(included, batch.walks, counted=counted, path=path), batch.level)

        return exact, critics
    walks = batch.walks
    rollouts = roll_out(logs, walks.onward, config.exploration, batch.draws)
    judged = setting.critic.forward(state.critic, batch.rows)
    heads = judged.outputs.view(*walks.onward.shape, 2)
    missed = look.hard(logs).loss

    def parts(logits: Tensor) -> list[Functional]:
        return functionals(look.included(look.log_policy(logits)), walks, config, goal, missed)

    with torch.no_grad():
        now = parts(setting.net.forward(state.weights, batch.rows).outputs)
    told = [seen(one, rollouts, heads[..., head], walks.onward, config) for head, one in enumerate(now)]
    clips = [config.gradient_clip, None]

    def sampled(logits: Tensor) -> Values:
        each = zip(parts(logits), told, clips, strict=True)
        return values_of([estimate(one, rollouts, seen_, clip) for one, seen_, clip in each], goal, batch.level)

    wrong = (heads - torch.stack([one.targets for one in told], dim=-1)) * rollouts.alive[..., None]
    gradient = setting.critic.vjp(judged.tape, (2.0 * wrong / wrong.numel()).reshape(-1, 2))
    change, moments = Moments(*critics[1:]).step(gradient, config.critic_rate, int(state.step) + 1)
    return sampled, (state.critic + change, *moments)


def _dual(asked: Question, price: Tensor, moments: Moments, rate: float, number: int) -> tuple[Taken, Moments]:
    """Return Adam's step on the Lagrangian; price is μ of each question's level, (B,)."""
    _, (gradient,) = asked.gradients(lambda found: (found.objective + price * found.constraint).mean())
    change, moments = moments.step(gradient, rate, number)
    return Taken(change, "dual"), moments


def _ascended(multiplier: Tensor, violation: Tensor, config: CCPOConfig) -> Tensor:
    return (multiplier * (config.multiplier_rate * violation.clamp(-1.0, 1.0)).exp()).clamp(*_MULTIPLIERS)


def _fisher(setting: Setting, now: Pass, logs: Tensor, look: _Look, number: int) -> Fisher:
    """Return the Fisher matrix of some of the batch's states."""
    config, policy = setting.config, logs.exp().reshape(-1, logs.shape[-1])
    chance = np.random.default_rng([setting.seed, number, 1])
    some = chance.permutation(len(policy))[: config.fisher_states]
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


def _threshold(setting: Setting, kappa: Tensor, judged: Hard, level: Tensor, number: int) -> Tensor:
    """Return κ after Eq. 9."""
    if not (setting.joint or setting.online):
        return kappa
    config, goal = setting.config, setting.goal
    if goal.budget:
        over = -(_by_level(judged.cost, level, setting.levels) - goal.limits) / goal.scale
    else:
        over = _by_level(judged.loss, level, setting.levels) - goal.limits
    sign = 1.0 if config.kappa_sign == "printed" else -1.0
    moved = kappa + sign * config.eta * number ** (-0.5 - config.xi) * over
    return moved.clamp(*setting.kappa_range)


def _by_level(values: Tensor, level: Tensor, levels: int) -> Tensor:
    """Return the mean of each level, (B,) -> (L,)."""
    return values.view(levels, -1).mean(dim=1) if levels > 1 else values.mean()[None]


class Trained(NamedTuple):
    """A run that ended.

    Attributes:
        state: the last state.
        rows: what each step showed.
        diverged: why it was ended before its last step, in words; None where it was not.
    """

    state: State
    rows: list[Row]
    diverged: str | None


def train(
    setting: Setting,
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
    for now, row in _steps(setting, state):
        state = now
        shown.append(row)
        tell(state, row)
        reason = diverged(setting, state, shown)
        if reason is not None:
            return Trained(state, shown, reason)
    return Trained(state, shown, None)


def _steps(setting: Setting, state: State) -> Iterator[tuple[State, Row]]:
    while int(state.step) < setting.config.steps:
        state, row = advance(setting, state)
        yield state, row


_WINDOW = 200
_LOST = 0.5
"""A run is lost that, over the last 200 steps, misses more than the limit by half of all questions."""


def diverged(setting: Setting, state: State, rows: list[Row]) -> str | None:
    """Return why a run is not worth going on with, in words; None while it is."""
    if not bool(torch.isfinite(state.weights).all()):
        return f"step {len(rows)}: a weight is not finite; lower learning_rate or delta, or raise damping"
    if len(rows) < _WINDOW or len(rows) % _WINDOW:
        return None
    last = rows[-_WINDOW:]
    coverage = sum(row.coverage for row in last) / len(last)
    wanted = 1.0 - float(setting.goal.limits.mean())
    if not setting.goal.budget and wanted - coverage > _LOST:
        return (
            f"step {len(rows)}: over the last {_WINDOW} steps {100 * coverage:.0f} % were covered, where "
            f"{100 * wanted:.0f} % are asked for, and kappa is {last[-1].kappa:.3g}: it runs away from what it should keep"
        )
    return None
