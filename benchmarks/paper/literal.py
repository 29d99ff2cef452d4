"""CCPO as the paper prints it, beside the same with the sign of Eq. 9 put right and beside `cascade.policies.networks`.

    python benchmarks/paper/literal.py              5 seeds, 2,000 updates: some minutes of one core
    python benchmarks/paper/literal.py --seeds 1 --steps 200

On-policy rollouts of ten questions an update, one action a step; V-trace critics; soft sets of width .01; the cost of
one path drawn from the set, right leaves counted with repetition, importance ratios of the step alone, clipped for the
cost; CPO's trust region on the divergence of what is drawn from the set, by conjugate gradients and a line search; and
κ ← κ + η_t (misses − α) after the update, in [0, 1]. What the text leaves open is as usual elsewhere: δ .01, damping
.1, ten iterations, ten lengths of a step. The activation is softsign, which is served; the paper's is ReLU.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev,dev-train]"
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.conformal.promise import Promise
from cascade.policies.networks import (
    Networks,
    NetworkSettings,
    Outcomes,
    StepActions,
    brought,
    log_policy,
    served_sets,
    soft_sets,
    train,
)
from cascade.policies.networks import _network as network
from cascade.table import Log

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "tests"))

WIDTH, DELTA, DAMPING, ITERATIONS, TRIES, SHRINK, SLACK = 0.01, 0.01, 0.1, 10, 10, 0.8, 1.5
BATCH, STEPS, CRITIC_RATE, ETA, DECAY = 10, 2_000, 1e-3, 0.1, 0.6
_TINY = 1e-300
Product = Callable[[Tensor], Tensor]


# --- rollouts with critics: estimates whose gradients are those of the text ---


class Rollouts(NamedTuple):
    """One path a question, (B, S) each: what was done, whether the step was reached, and the chance of the action."""

    actions: Tensor
    alive: Tensor
    chance: Tensor


class Functional(NamedTuple):
    """A sum over paths: weights w and rewards, (B, S, k), and what is there before the first action, (B,)."""

    weights: Tensor
    rewards: Tensor
    base: Tensor


class Seen(NamedTuple):
    """What rollouts tell of a functional: the advantage q − V, V and the critic's targets, (B, S), and its level."""

    advantage: Tensor
    values: Tensor
    targets: Tensor
    level: Tensor


def roll_out(logs: Tensor, possible: Tensor, generator: torch.Generator) -> Rollouts:
    """Draw a path of each question from π, (B, S, k)."""
    policy = logs.detach().masked_fill(~possible, -math.inf).softmax(-1)
    flat = torch.multinomial(policy.reshape(-1, policy.shape[-1]), 1, generator=generator)
    actions = flat.reshape(policy.shape[:2])
    onward = (actions == policy.shape[-1] - 1).long()
    alive = torch.cat([torch.ones_like(onward[:, :1]), onward.cumprod(1)[:, :-1]], dim=1).bool()
    return Rollouts(actions, alive, policy.gather(-1, actions[..., None])[..., 0])


def functionals(member: Tensor, outcomes: Outcomes) -> tuple[Functional, Functional]:
    """Return the cost of a path drawn from the soft set m, (B, S, k), and its loss: J̄_C of the text."""
    drawn, paid, lost = drawn_from(member), torch.zeros_like(member), torch.zeros_like(member)
    paid[:, :-1, -1] = outcomes.cost[:, 1:]
    lost[..., :-1] = -outcomes.counts[:, None, None] * outcomes.right
    return Functional(drawn, paid, outcomes.cost[:, 0]), Functional(member, lost, outcomes.counts)


def drawn_from(member: Tensor) -> Tensor:
    """Return S = m / Σm."""
    return member / member.sum(-1, keepdim=True).clamp(min=_TINY)


def seen(functional: Functional, rollouts: Rollouts, values: Tensor) -> Seen:
    """Return V-trace's targets and the advantages (Espeholt et al. 2018), both clips 1; values are the critic's."""
    with torch.no_grad():
        alive, at = rollouts.alive.to(values.dtype), rollouts.actions[..., None]
        chosen, reward = functional.weights.gather(-1, at)[..., 0], functional.rewards.gather(-1, at)[..., 0]
        whole = functional.weights.sum(-1)
        onward = (rollouts.actions == functional.weights.shape[-1] - 1).to(values.dtype)
        rho = (chosen / whole.clamp(min=_TINY) / rollouts.chance).clamp(max=1.0)
        discount, gain, known = alive * whole * onward, alive * whole * reward, alive * values
        none = torch.zeros_like(known[:, :1])
        deltas = rho * (gain + discount * torch.cat([known[:, 1:], none], 1) - known)
        excess = torch.zeros_like(known)
        for step in range(known.shape[1] - 1, -1, -1):
            later = excess[:, step + 1] if step + 1 < known.shape[1] else 0.0
            excess[:, step] = deltas[:, step] + discount[:, step] * rho[:, step] * later
        targets = known + excess
        advantage = reward + onward * torch.cat([targets[:, 1:], none], 1) - values
        weight = (alive * chosen / rollouts.chance + 1.0 - alive).cumprod(1)
        return Seen(advantage, values, targets, functional.base + (alive * weight * reward).sum(1))


def estimate(functional: Functional, rollouts: Rollouts, critic: Seen, clip: float | None = None) -> Tensor:
    """Return the estimate near the weights of the rollouts, (B,): there its value is `level`.

    The second term is what the baseline takes away in expectation, since w need not sum to 1.
    """
    ratio = functional.weights.gather(-1, rollouts.actions[..., None])[..., 0] / rollouts.chance
    if clip is not None:  # the ratio is cut, its logarithm's gradient is not
        ratio = ratio * (ratio.detach().clamp(max=clip) / ratio.detach().clamp(min=_TINY))
    total = (rollouts.alive * (ratio * critic.advantage + functional.weights.sum(-1) * critic.values)).sum(1)
    return critic.level + total - total.detach()


# --- CPO's step ---


def conjugate_gradient(product: Product, b: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Return x with H x ≈ b for a symmetric positive definite H; zeros for b = 0."""
    scale = float(b.abs().max())
    if scale == 0:
        return torch.zeros_like(b)
    residual = b / scale  # at this length no product underflows
    x, direction, squared = torch.zeros_like(b), residual.clone(), float(residual @ residual)
    enough = 1e-20 * squared
    for _ in range(iterations):
        if squared <= enough:
            break
        image = product(direction)
        step = squared / float(direction @ image)
        x, residual = x + step * direction, residual - step * image
        before, squared = squared, float(residual @ residual)
        direction = residual + squared / before * direction
    return x * scale


def trust_region_step(g: Tensor, b: Tensor, c: float, product: Product, delta: float) -> tuple[Tensor, str]:
    """Return the x that minimises g·x with c + b·x ≤ 0 and ½ x'Hx ≤ δ, in the plane of H⁻¹b and H⁻¹g, and its case.

    "recover": the shortest way back to the constraint, which lies beyond the region; "inactive": the constraint does
    not bind; "active": x ends on its edge. In coordinates in which H is the identity no difference of large numbers is
    formed, where the printed dual in two variables breaks down for parallel gradients.
    """
    basis: list[Tensor] = []
    for v in (conjugate_gradient(product, b), conjugate_gradient(product, g)):
        left = v
        for _ in range(2):  # twice: what is left is then orthogonal to rounding
            for unit in basis:
                left = left - (left @ product(unit)) * unit
        size = math.sqrt(max(float(left @ product(left)), 0.0))
        whole = math.sqrt(max(float(v @ product(v)), 0.0))
        basis.append(left / size if size > 1e-9 * whole else torch.zeros_like(v))
    at_g, at_b = (np.array([float(v @ unit) for unit in basis]) for v in (g, b))
    y, case = _best(at_g, at_b, c, math.sqrt(2 * delta))
    x = y[0] * basis[0] + y[1] * basis[1]
    quadratic = 0.5 * float(x @ product(x))
    return (x if quadratic <= delta else x * math.sqrt(delta / quadratic)), case


def _best(g: np.ndarray, b: np.ndarray, c: float, radius: float) -> tuple[np.ndarray, str]:
    """Solve it where H is the identity: min g·y with c + b·y ≤ 0 and |y| ≤ radius."""
    steep, length = float(np.hypot(*g)), float(np.hypot(*b))
    if c > length * radius:
        return (-radius / length * b if length else np.zeros(2)), "recover"
    free = -radius / steep * g if steep else np.zeros(2)
    if c + b @ free <= 0:
        return free, "inactive"
    normal, middle = b / length, -c / length
    chord = np.array([-normal[1], normal[0]])
    slope = float(g @ chord)
    half = math.sqrt(max((radius - middle) * (radius + middle), 0.0)) if slope else 0.0
    return middle * normal - math.copysign(half, slope) * chord, "active"


# --- a run ---


class Printed:
    """A run of training: the network, the critics, κ, and how often each kind of step was taken."""

    def __init__(self, log: Log, promise: Promise, start: Networks, *, corrected: bool, seed: int) -> None:
        inputs = start.scaling.inputs(log, start.features)[0]
        self.outcomes, self.limit = Outcomes.of(log, promise, inputs), promise.risk
        self.allowed = torch.from_numpy(StepActions.of(log).allowed(keeps_all=False))
        sizes = inputs.shape[2], 64, 64, 64
        self.net, self.critic = network((*sizes, self.allowed.shape[1]), seed), network((*sizes, 2), seed + 1)
        self.adam = torch.optim.Adam(self.critic.parameters(), CRITIC_RATE)
        self.sign, self.kappa, self.seed = (-1.0 if corrected else 1.0), 0.6 / self.allowed.shape[1], seed
        self.generator = torch.Generator().manual_seed(seed)
        self.steps: dict[str, int] = {}

    def update(self, number: int) -> None:
        """Take a step of the critics, the network and κ from one batch."""
        n = len(self.outcomes.counts)
        rows = np.random.default_rng([self.seed, number]).choice(n, min(BATCH, n), replace=False)
        batch = Outcomes(*[part[np.sort(rows)] for part in self.outcomes])
        logs = log_policy(self.net(batch.inputs), self.allowed)
        rollouts = roll_out(logs, batch.possible, self.generator)
        heads = self.critic(batch.inputs)
        parts = functionals(self._soft(logs.detach(), batch), batch)
        critics = [seen(each, rollouts, heads.detach()[..., at]) for at, each in enumerate(parts)]
        wrong = (heads - torch.stack([each.targets for each in critics], -1)) * rollouts.alive[..., None]
        self.adam.zero_grad()
        wrong.square().mean().backward()
        self.adam.step()
        self._step(batch, rollouts, critics, logs.detach())
        after = log_policy(self.net(batch.inputs), self.allowed).detach()
        missed = float(brought(served_sets(after, batch, self.kappa), batch, counted=False)[2].mean())
        self.kappa += self.sign * ETA * number**-DECAY * (missed - self.limit)
        self.kappa = min(max(self.kappa, _TINY), 1.0)

    def _soft(self, logs: Tensor, batch: Outcomes) -> Tensor:
        return soft_sets(logs, batch, self.kappa, WIDTH)

    def _step(self, batch: Outcomes, rollouts: Rollouts, critics: list[Seen], before: Tensor) -> None:
        """Take the longest of ten lengths of CPO's step that does what it was to do; none if none does."""
        weights = list(self.net.parameters())
        start = torch.nn.utils.parameters_to_vector(weights).detach().clone()
        previous = drawn_from(self._soft(before, batch)).clamp(min=_TINY)

        def look() -> tuple[Tensor, Tensor, Tensor]:
            member = self._soft(log_policy(self.net(batch.inputs), self.allowed), batch)
            paid, lost = functionals(member, batch)
            drawn = drawn_from(member).clamp(min=_TINY)
            kl = (drawn * (drawn.log() - previous.log())).sum(-1).mean()
            cost = estimate(paid, rollouts, critics[0], clip=1.0).mean()
            return cost, estimate(lost, rollouts, critics[1]).mean() - self.limit, kl

        objective, constraint, kl = look()
        g, b = (_flat(torch.autograd.grad(each, weights, retain_graph=True)) for each in (objective, constraint))
        slope = _flat(torch.autograd.grad(kl, weights, create_graph=True))

        def product(v: Tensor) -> Tensor:
            return _flat(torch.autograd.grad(slope @ v, weights, retain_graph=True)) + DAMPING * v

        c = float(constraint.detach())
        x, case = trust_region_step(g, b, c, product, DELTA)
        for tried in range(TRIES):
            torch.nn.utils.vector_to_parameters(start + SHRINK**tried * x, weights)
            with torch.no_grad():
                new, bound, moved = (float(each) for each in look())
            worse = new - float(objective.detach()) > 1e-9 and c <= 0 and case != "recover"
            if moved <= SLACK * DELTA and bound - c <= max(-c, 0.0) + 1e-9 and not worse:
                break
        else:
            torch.nn.utils.vector_to_parameters(start, weights)
            case = "rejected"
        self.steps[case] = self.steps.get(case, 0) + 1


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def train_printed(
    log: Log, promise: Promise, *, corrected: bool = False, steps: int = STEPS, seed: int = 0
) -> Networks:
    """Train as printed, or with the sign of Eq. 9 put right; no request may certify."""
    start = train(log, promise, "ccpo", NetworkSettings(steps=1), seed)
    run, threads = Printed(log, promise, start, corrected=corrected, seed=seed), torch.get_num_threads()
    torch.set_num_threads(1)
    for number in range(1, steps + 1):
        run.update(number)
    torch.set_num_threads(threads)
    values = [value.detach().numpy().copy() for value in run.net.parameters()]
    return replace(start, weights=tuple(values[::2]), biases=tuple(values[1::2]), kappa=math.log(run.kappa))


def main() -> None:
    """Print what each costs at a coverage of exactly 1 − α, and what it covers at the κ of its training."""
    from simulated import WORLDS, simulated_log
    from tables import CENTS, at_kappa, matched

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    world, promise = WORLDS["hotpotqa/llama-2-7b"], Promise("coverage", 0.1)
    fresh = simulated_log(world, 20_000, 2)
    ways: dict[str, Callable[[Log, int], Networks]] = {
        "as printed": lambda log, seed: train_printed(log, promise, steps=given.steps, seed=seed),
        "sign of Eq. 9 put right": lambda log, seed: train_printed(
            log, promise, corrected=True, steps=given.steps, seed=seed
        ),
        "cascade.policies.networks": lambda log, seed: train(log, promise, "ccpo", seed=seed),
    }
    print("| | cents at .90, median | least, most | κ | covered at κ |\n|---|---|---|---|---|")
    for name, way in ways.items():
        policies = [way(simulated_log(world, 1_000, 100 + seed), seed) for seed in range(given.seeds)]
        cents = np.array([matched(policy, fresh, 0.9) * CENTS for policy in policies])
        covered = np.mean([at_kappa(policy, policy.kappa, fresh).coverage for policy in policies])
        kappa = np.median([math.exp(policy.kappa) for policy in policies])
        spread = f"{cents.min():.2f}, {cents.max():.2f}"
        print(f"| {name} | {np.median(cents):.2f} | {spread} | {kappa:.3f} | {covered:.3f} |", flush=True)


if __name__ == "__main__":
    main()
