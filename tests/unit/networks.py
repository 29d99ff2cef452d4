"""Random policy networks: for raw features, for random walks, and for a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.policies.base import History
from cascade.policies.design import Design
from cascade.policies.estimators import Logistic
from cascade.policies.features import FeatureSet, offered
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.policies.network import Action, Network
from unit.policies import learned_made as made

ACTIVATIONS = ("relu", "softsign")


def network(
    rng: np.random.Generator,
    design: Design,
    allowed: Sequence[bool],
    *,
    hidden: Sequence[int] | None = None,
    activation: str = "",
    scale: float = 1.0,
) -> Network:
    """Return a network of these outputs; hidden layers and the activation by chance where none are given.

    Weights are `scale` times √(2 / inputs), so that at 1 the logits of scaled columns are about 1.
    """
    units = [int(one) for one in rng.integers(1, 9, size=int(rng.integers(1, 4)))] if hidden is None else list(hidden)
    sizes = [design.columns, *units, len(allowed)]
    layers = [rng.normal(size=(out, into)) * scale * np.sqrt(2 / max(1, into)) for into, out in pairwise(sizes)]
    biases = [rng.normal(size=out) * scale * 0.3 for out in sizes[1:]]
    chosen = activation or str(rng.choice(ACTIVATIONS))
    return Network(design, tuple(layers), tuple(biases), chosen, np.array(allowed, dtype=np.bool_))


def rule(
    rng: np.random.Generator,
    features: FeatureSet,
    design: Design,
    *,
    last: bool,
    judges: bool = False,
    first: bool = False,
    keeps: bool | None = None,
    hidden: Sequence[int] | None = None,
    activation: str = "",
    raw: Floats | None = None,
) -> StepRule:
    """Return a step's rule of one network; `keeps` says whether every answer is kept, None: by chance.

    With raw features, float64 (n, d), all actions are as likely at the median.
    """
    many = len(features.sources)
    everything = bool(rng.random() < 0.3) if keeps is None else keeps
    allowed = [True, not last] if everything else [True] * many + [not last]
    shared = network(rng, design, allowed, hidden=hidden, activation=activation)
    if raw is not None:
        usual = np.median(shared.log_probabilities(raw), axis=0)
        last_bias = shared.biases[-1] - np.where(shared.allowed, usual, 0.0)
        shared = replace(shared, biases=(*shared.biases[:-1], last_bias))
    onward = None if last else Action(shared, shared.outputs - 1)
    include = (None,) * many if everything else tuple([Action(shared, at) for at in range(many)])
    chances: list[Logistic | None] = [made.logistic(rng, design) if judges else None for _ in range(many)]
    incumbent = made.logistic(rng, design) if judges and not first else None
    return StepRule(features, onward, include, tuple(chances), incumbent)


def policy(
    rng: np.random.Generator,
    sources: tuple[str, ...] = made.PAIR,
    horizon: int = 4,
    *,
    judges: bool = False,
    keeps: bool | None = None,
) -> LearnedPolicy:
    """Return a policy of networks with a rule a step, each of its own features (`learned_made.names`)."""
    rules = []
    for number in range(1, horizon + 1):
        features = FeatureSet(made.names(rng, sources, number), sources)
        shared = made.design(rng, len(features.names))
        last, first = number == horizon, number == 1
        rules.append(rule(rng, features, shared, last=last, first=first, judges=judges, keeps=keeps))
    return LearnedPolicy("ccpo", tuple(rules), kappa=float(np.log(rng.uniform(0.05, 0.5))))


def on_log(
    history: History,
    seed: int = 0,
    *,
    hidden: Sequence[int] = (64, 64, 64),
    activation: str = "relu",
    judges: bool = True,
    keeps: bool = False,
) -> LearnedPolicy:
    """Return a policy of networks for a log's steps: features that the log has, scaled by it; weights by chance."""
    rng = np.random.default_rng(seed)
    rules = []
    for number in range(1, history.horizon + 1):
        told = [name for name in offered(history, number) if not name.startswith("asked.")][:9]
        names = tuple(dict.fromkeys((*told, "asked.words", "cost_so_far", "tokens_so_far")))
        features = FeatureSet(names, history.sources)
        raw = features.table(history, number)
        full = made.scaled(raw)
        shared = Design(full.centre, full.scale, full.low, full.high, full.indicators, np.empty((0, 2), dtype=np.int64))
        last, first = number == history.horizon, number == 1
        rules.append(
            rule(
                rng, features, shared, last=last, first=first, judges=judges, keeps=keeps, hidden=hidden,
                activation=activation, raw=raw,
            )
        )  # fmt: skip
    return LearnedPolicy("ccpo", tuple(rules), kappa=float(np.log(0.3)))
