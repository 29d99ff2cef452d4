"""How long training of a policy network takes on one core, and one update beside one of torchrl's PPO.

    python benchmarks/ccpo_speed.py            about five minutes
    python benchmarks/ccpo_speed.py --quick    shorter runs, fewer repeats; no demand is checked
    python benchmarks/ccpo_speed.py --json

(a) 2,000 steps on 1,000 questions of 4 steps, sampled with batches of 10 and exact with the default batch, with a
multiplier and with a trust region. (b) One whole step of training (drawing a batch, critics, update, bookkeeping)
against what torchrl's PPO does with 10 rollouts of the same questions: generalised advantage estimation, then epochs of
Adam on `ClipPPOLoss` over the whole batch, policy and critic each of the same three layers of 64, float32 as torchrl
has it. Both are timed in turns in the same process, and the medians are compared: a busy machine slows both. (c) How a
step grows with batch and layers. One process, one core, one thread.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev-train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from fit_speed import SINGLE, hold_to_one_core
from fitted.report import head, table
from literal.config import LiteralConfig
from literal.rollouts import roll_out
from literal.training import Literal, rollout_draws
from tensordict import TensorDict  # type: ignore[import-untyped]
from tensordict.nn import (  # type: ignore[import-untyped]
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from cascade.evaluation.simulate import WORLDS, simulate
from cascade.training.networks.fitting import fit_network
from cascade.training.networks.problem import BatchEvaluation, TrainingProblem, drawn, start
from cascade.training.networks.training import Trained
from cascade.training.stages import FitTarget

WORLD, ALPHA, EPISODES, STEPS = "hotpotqa/llama-2-7b", 0.1, 1_000, 2_000
UPDATES = ("dual", "trust_region")
BARS_S = {"sampled": 30.0, "exact": 15.0}
BAR_RATIO, EPOCHS = 1.0, (10, 1)
"""Of a step of ours to PPO's with 10 epochs, as it is usual; one epoch is shown beside it."""
REPEATS, WARM = 150, 10
BATCHES, LAYERS = (10, 30, 100, 300), ((64,), (64, 64, 64), (256, 256, 256))


class Run(NamedTuple):
    """A whole training: seconds by the clock, and of the processor."""

    estimator: str
    update: str
    batch: int
    clock_s: float
    processor_s: float


class Race(NamedTuple):
    """One step of ours and one update of PPO in turns, medians in ms, and the median of each pair's ratio."""

    update: str
    epochs: int
    ours_ms: float
    ppo_ms: float
    ratio: float


class Growth(NamedTuple):
    """One step in ms, the median: by batch and layers."""

    estimator: str
    update: str
    batch: int
    layers: tuple[int, ...]
    ms: float


@cache
def questions() -> TrainingProblem:
    """Return the questions as they are trained on."""
    log, held = simulate(WORLDS[WORLD], EPISODES, seed=0), list[TrainingProblem]()

    def kept(setting: TrainingProblem) -> Trained:
        held.append(setting)
        return Trained(start(setting), [], None)

    fit_network(log, FitTarget("coverage", ALPHA), confidences=False, run=kept)
    return held[0]


def setting_of(**changed: Any) -> TrainingProblem:
    """Return a run of training with some settings of its own."""
    return replace(questions(), config=LiteralConfig(**changed))


def whole(estimator: str, update: str, steps: int) -> Run:
    """Train once."""
    setting = setting_of(estimator=estimator, update=update, steps=steps)
    state, advance = start(setting), Literal(setting).advance
    clock, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        state, _ = advance(setting, state)
    return Run(estimator, update, setting.config.batch, time.perf_counter() - clock, time.process_time() - worked)


def stepping(setting: TrainingProblem) -> Callable[[], None]:
    """Return what takes one more step of training each time."""
    held, advance = [start(setting)], Literal(setting).advance

    def step() -> None:
        held[0], _ = advance(setting, held[0])

    return step


class Ppo:
    """torchrl's PPO on a batch of rollouts of the same questions."""

    def __init__(self, setting: TrainingProblem) -> None:
        batch = drawn(setting, 1)
        net = setting.net
        logs = BatchEvaluation(setting, batch, start(setting).kappa[batch.level]).log_policy(
            net.forward(net.initial(0), batch.rows).outputs
        )
        rolled = roll_out(logs, batch.walks.onward, 0.0, rollout_draws(setting, 1))
        ended = torch.cat([~rolled.alive[:, 1:], torch.ones_like(rolled.alive[:, :1])], dim=1)[..., None]
        seen = batch.walks.inputs.float()
        after = torch.cat([seen[:, 1:], seen[:, -1:]], dim=1)
        reward = (-batch.walks.cost).float()[..., None]
        then = TensorDict({"observation": after, "reward": reward, "done": ended, "terminated": ended}, seen.shape[:2])
        chance = rolled.chance.log().float()
        self._rollouts = TensorDict(
            {"observation": seen, "action": rolled.actions, "action_log_prob": chance, "next": then}, seen.shape[:2]
        )
        actor = ProbabilisticTensorDictSequential(
            TensorDictModule(_layers(setting, setting.walks.actions), ["observation"], ["logits"]),
            ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True),
        )
        critic = TensorDictModule(_layers(setting, 1), ["observation"], ["state_value"])
        self._advantage = GAE(gamma=1.0, lmbda=0.95, value_network=critic)
        self._loss = ClipPPOLoss(actor, critic, normalize_advantage=True)
        self._adam = torch.optim.Adam(self._loss.parameters(), lr=3e-4)

    def update(self, epochs: int) -> None:
        """Estimate advantages once, then take so many steps of Adam on the whole batch."""
        held = self._rollouts.clone(recurse=False)
        with torch.no_grad():
            self._advantage(held)
        for _ in range(epochs):
            found = self._loss(held)
            total: Tensor = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
            self._adam.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            self._adam.step()


def _layers(setting: TrainingProblem, outputs: int) -> nn.Sequential:
    sizes = (setting.inputs, *setting.config.layers)
    hidden = [part for one, two in pairwise(sizes) for part in (nn.Linear(one, two), nn.Softsign())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


def race(update: str, epochs: int, repeats: int) -> Race:
    """Time both in turns."""
    setting = setting_of(estimator="sampled", update=update)
    ours, theirs = stepping(setting), Ppo(setting)
    pairs = []
    for number in range(repeats + WARM):
        pair = seconds(ours), seconds(lambda: theirs.update(epochs))
        if number >= WARM:
            pairs.append(pair)
    mine, other = (1e3 * statistics.median(some) for some in zip(*pairs, strict=True))
    return Race(update, epochs, mine, other, statistics.median(one / two for one, two in pairs))


def seconds(call: Callable[[], None]) -> float:
    """Return the processor time of a call: another process's turn on the core is not in it."""
    before = time.process_time()
    call()
    return time.process_time() - before


def growth(estimator: str, update: str, batch: int, layers: tuple[int, ...], repeats: int) -> Growth:
    """Time steps of one shape."""
    step = stepping(setting_of(estimator=estimator, update=update, batch=batch, layers=layers))
    times = [seconds(step) for _ in range(repeats + WARM)][WARM:]
    return Growth(estimator, update, batch, layers, 1e3 * statistics.median(times))


def shapes() -> list[tuple[str, str, int, tuple[int, ...]]]:
    """Return what (c) is measured at: each batch at the usual layers, each layers at the usual batch."""
    found: list[tuple[str, str, int, tuple[int, ...]]] = []
    for estimator, usual in (("sampled", 10), ("exact", LiteralConfig().batch)):
        for update in UPDATES:
            found += [(estimator, update, batch, LAYERS[1]) for batch in BATCHES]
            found += [(estimator, update, usual, layers) for layers in LAYERS if layers != LAYERS[1]]
    return found


def lines(runs: Sequence[Run], races: Sequence[Race], grown: Sequence[Growth], steps: int) -> list[str]:
    """Return the three tables."""
    trained = [
        (one.estimator, one.update, f"{one.batch}", f"{one.processor_s:.1f}", f"{one.clock_s:.1f}",
         f"{1e3 * one.processor_s / steps:.2f}") for one in runs
    ]  # fmt: skip
    raced = [
        (one.update, f"{one.epochs}", f"{one.ours_ms:.2f}", f"{one.ppo_ms:.2f}", f"{one.ratio:.2f}") for one in races
    ]
    shaped = [
        (one.estimator, one.update, f"{one.batch}", " × ".join(map(str, one.layers)), f"{one.ms:.2f}") for one in grown
    ]
    columns = ("estimator", "update", "batch", "processor s", "clock s", "ms a step")
    found = [f"{steps:,} steps:", "", *table(columns, trained), ""]
    found += table(("update", "epochs of PPO", "ours, ms", "PPO, ms", "ours ÷ PPO"), raced)
    return [*found, "", *table(("estimator", "update", "batch", "layers", "ms a step"), shaped)]


def bars(runs: Sequence[Run], races: Sequence[Race]) -> list[tuple[bool, str]]:
    """Return whether each demand is met, and what was found."""
    found = []
    for run in runs:
        bar = BARS_S[run.estimator]
        said = f"{run.estimator}, {run.update}: {run.processor_s:.1f} processor s, at most {bar:g}"
        found.append((run.processor_s <= bar, said))
    for one in races:
        if one.epochs == EPOCHS[0]:
            said = f"{one.update}: {one.ratio:.2f} of PPO's update of {one.epochs} epochs, at most {BAR_RATIO:g}"
            found.append((one.ratio <= BAR_RATIO, said))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a demand is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer repeats")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(argv)
    os.environ.update(dict.fromkeys(SINGLE, "1"))
    hold_to_one_core()
    torch.set_num_threads(1)
    steps, repeats = (100, 10) if given.quick else (STEPS, REPEATS)
    with threadpool_limits(1):
        runs = [whole(estimator, update, steps) for estimator in BARS_S for update in UPDATES]
        races = [race(update, epochs, repeats) for update in UPDATES for epochs in EPOCHS]
        grown = [growth(*shape, repeats=max(repeats // 5, 5)) for shape in shapes()]
    demands = [] if given.quick else bars(runs, races)
    if given.json:
        found: dict[str, Any] = {"head": head(), "load": os.getloadavg()[0], "demands": demands}
        for name, some in (("runs", runs), ("races", races), ("growth", grown)):
            found[name] = [one._asdict() for one in some]
        print(json.dumps(found))
    else:
        print(f"{head()}, torch {torch.__version__}; one core; load average {os.getloadavg()[0]:.1f}\n")
        print("\n".join(lines(runs, races, grown, steps)) + "\n")
        print("\n".join(f"{'ok    ' if met else 'MISSED'} {said}" for met, said in demands))
    return int(not all(met for met, _ in demands))


if __name__ == "__main__":
    sys.exit(main())
