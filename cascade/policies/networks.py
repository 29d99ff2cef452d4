"""CPO, CPO batch, CPO online and CCPO: a network over the actions of a step, trained by exact gradients.

After each step the actions are {keep an answer, …, go on}, or {stop, go on} where every answer is kept (promises on the
answer served). The network gives them probabilities π. What is served is the prediction set {a : π(a) ≥ κ}, which
always has the likeliest action; the scores of the policy are log π, and κ is certified as for every other policy.

CPO trains π to take one action per step, and serves the likeliest; CPO batch is the same network at a certified κ; in
CPO online κ follows the misses of training. CCPO trains π through the sets at κ, together with κ.

A log shows what every action would have led to. So with m_t(a) the share to which action a is in the set at step t,
and B_t(a) = 1 for a right answer, cost, size and coverage are exact, from the last step to the first:

    covered_t = 1 − Π_a (1 − m_t(a) B_t(a)) · (1 − m_t(on) covered_{t+1})
    cost_t    = c_t + m_t(on) cost_{t+1}                  size_t = Σ_a m_t(a) + m_t(on) size_{t+1}

Where a policy takes one action per step, m is π, and hit_t = Σ_a m_t(a) B_t(a) + m_t(on) hit_{t+1}.

Training uses torch, on one thread and in float64, so that a seed gives the same policy; serving needs only numpy.
Guarantee: none; any scores are valid, and κ is certified on requests that training has not seen.

Reference: Conformal Constrained Policy Optimization (arXiv 2511.11828); `design/networks.md` says where this departs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from cascade.conformal.path import Scores, newest
from cascade.conformal.promise import Promise
from cascade.errors import MissingExtraError, UsageError
from cascade.policies.features import columns_of, offered, read, signals_of
from cascade.policies.policy import Policy, ranked
from cascade.table import Bools, Floats, Ints, Log

if TYPE_CHECKING:
    import torch
    from torch import Tensor

METHODS = ("cpo", "cpo_batch", "cpo_online", "ccpo")
_MOVES = ("cpo_online", "ccpo")
"""The methods whose κ is moved by the misses of training."""
Units = Annotated[int, Field(ge=1, le=4_096)]
_MEMORISED = (
    "words", "mean_word", "long_words", "capitals", "digits", "marks", "numbers", "lines", "negated", "amount", "who",
    "when_where", "which", "why_how", "yes_no", "has_context",
)  # fmt: skip
"""Features of a request's text that are not offered: a network trained on a thousand requests memorises them."""
_OUTLIERS = (0.01, 0.99)
"""A feature is clipped at these quantiles: one outlier in a hundred must not set the slope of all others."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class NetworkSettings(BaseModel):
    """How a network is trained. Frozen; unknown names are refused. "Paper" gives the paper's value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: Annotated[tuple[Units, ...], Field(min_length=1, max_length=16)] = (64, 64, 64)
    """Units of each hidden layer. Paper: three of 64."""
    steps: int = Field(default=1_000, ge=1, le=10_000_000)
    """Updates. Paper: 1,500 to 2,000. Exact gradients of a hundred requests need fewer."""
    batch: int = Field(default=100, ge=1)
    """Requests per update. Paper: 10."""
    mask_width: Positive = 0.05
    """ε, the width of the soft mask σ((π − κ)/ε). Paper: 0.01, at which gradients vanish beyond 0.03 from κ."""
    lambda_set: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """λ, the charge for each answer kept, in mean steps."""
    learning_rate: Positive = 2e-3
    """Adam's learning rate, which falls to 0 over the steps."""
    multiplier: Positive = 0.5
    """μ at the start: the price of the whole allowed loss, in mean steps. With ten times as much the policy first goes
    on everywhere, and recovers late if later steps are expensive."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$")
    """Where it is trained: cpu, cuda or cuda:N. On "cpu" the same seed gives the same bytes."""


class Scaling(NamedTuple):
    """How each of S steps reads d features: (clip(x, low, high) − centre) · gain, and 0 where x is unknown.

    float64 (S, d) each. A gain of 0: the step does not read the feature. `gap` is 1 where it was missing in training:
    whether it is unknown is then an input too.
    """

    low: Floats
    high: Floats
    centre: Floats
    gain: Floats
    gap: Floats

    @classmethod
    def of(cls, log: Log, features: Sequence[str], by_step: Sequence[Sequence[str]]) -> Scaling:
        """Return the scaling of a log; `by_step` has the features that each step reads.

        A feature is clipped at two quantiles, and then has about mean 0 and variance 1.
        """
        scaling = np.zeros((len(cls._fields), len(by_step), len(features)))
        for step, (node, names) in enumerate(zip(np.flatnonzero(log.decides).tolist(), by_step, strict=True)):
            columns, rows = [features.index(name) for name in names], log.bought[:, node]
            if columns and rows.any():
                raw = read_at(log, names, node)[rows]
                scaling[:4, step, columns] = np.array([_spread(values) for values in raw.T]).T
                scaling[4, step, columns] = np.isnan(raw).any(axis=0)
        return cls(*scaling)

    def inputs(self, log: Log, features: Sequence[str]) -> tuple[Floats, Bools]:
        """Return a network's inputs, float64 (n, S, J), and where it must not be asked, bool (n, S).

        The inputs are the features, then 1 where one of `gap` is unknown, then S of which the step's own is 1. It must
        not be asked where a feature is unknown that was always known in training.
        """
        last, gaps = np.flatnonzero(log.decides), self.gap.any(axis=0)
        rows = np.zeros((log.n, last.size, len(features) + int(gaps.sum()) + last.size))
        rows[:, :, -last.size :] = np.eye(last.size)
        unforeseen = np.zeros((log.n, last.size), dtype=np.bool_)
        for step in np.flatnonzero(log.bought[:, last].any(axis=0)).tolist():
            low, high, centre, gain, gap = (row[step] for row in self)
            raw = read_at(log, features, int(last[step]))
            unknown = np.isnan(raw) & (gain != 0)
            scaled = np.where(np.isnan(raw), 0.0, (np.clip(raw, low, high) - centre) * gain)
            joined = np.concatenate([scaled, (unknown * gap)[:, gaps]], axis=1)
            rows[:, step, : -last.size] = joined * log.bought[:, [last[step]]]
            unforeseen[:, step] = (unknown & (gap == 0)).any(axis=1)
        return rows, unforeseen


def _spread(values: Floats) -> tuple[float, float, float, float]:
    """Return low, high, centre and gain of a feature in training; where it is never known, 0, 0, 0 and 1."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 0.0, 0.0, 1.0
    low, high = np.quantile(finite, _OUTLIERS, method="nearest").tolist()
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    clipped = np.clip(finite, low, high)
    return low, high, float(clipped.mean()), 1.0 / (float(clipped.std()) or 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Networks(Policy):
    """One network for all steps.

    Attributes:
        method: one of `METHODS`.
        features: d features of a walk (`policies.features`), with nodes counted back from the one decided on: `p_yes@0`
            is its own signal. So all steps share a feature's weights.
        scaling: how each step reads them.
        weights, biases: of each layer, float64 (out, in) and (out,); the last has an output for each place of an answer
            in a step, or one for "stop", and then one for going on.
        keeps_all: whether every answer is kept, so that the actions are {stop, go on}.
        kappa: the threshold of its training, on log π, which applies without a certificate.
        price: μ at the end of training, the price of a miss in mean steps; its maximum means too many misses.
    """

    kind: ClassVar[str] = "network"
    method: str
    features: tuple[str, ...]
    scaling: Scaling
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    keeps_all: bool
    kappa: float
    price: float
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        """Return log π of going on as doubt, and, unless all are kept, that of keeping each answer."""
        logs, actions = self.log_probabilities(log), StepActions.of(log)
        doubt = np.full(log.answer.shape, np.nan)
        doubt[:, log.decides] = logs[:, :, -1]
        return Scores(doubt, None if self.keeps_all else logs[:, actions.step, actions.slot])

    def log_probabilities(self, log: Log) -> Floats:
        """Return log π of every action on the grid of scores, float64 (n, S, k); −2²⁰ for one that does not exist.

        It is +∞, so that the action is taken, where a feature is unknown that was always known in training.
        """
        hidden, unforeseen = self.scaling.inputs(log, self.features)
        allowed = StepActions.of(log).allowed(self.keeps_all)
        for number, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            if number:
                hidden = hidden / (1.0 + np.abs(hidden))  # softsign
            hidden = np.einsum("nsi,oi->nso", hidden, weights) + biases  # a matrix product may sum one row unlike many
        logits = np.where(allowed, hidden, -np.inf)
        logits = logits - logits.max(axis=2, keepdims=True)
        logs = ranked(logits - np.log(np.exp(logits).sum(axis=2, keepdims=True)))
        return np.where(unforeseen[:, :, None] & allowed, np.inf, logs)

    @property
    def columns(self) -> frozenset[str]:
        """The signals that its features are made of."""
        return columns_of(self.features)

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that were never missing in training."""
        always = ((self.scaling.gain != 0) & (self.scaling.gap == 0)).any(axis=0)
        return signals_of(name for name, needed in zip(self.features, always.tolist(), strict=True) if needed)

    def settings(self) -> dict[str, Any]:
        """Return everything but the arrays."""
        own = {"method": self.method, "keeps_all": self.keeps_all, "kappa": self.kappa, "price": self.price}
        return {"features": list(self.features), **own}

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return scaling and layers."""
        layers = {f"weights.{at}": values for at, values in enumerate(self.weights)}
        return self.scaling._asdict() | layers | {f"biases.{at}": values for at, values in enumerate(self.biases)}

    @classmethod
    def read(cls, settings: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Networks:
        """Return the policy that was written; the directory's hashes prove that it is unchanged."""
        layers = range((len(tensors) - len(Scaling._fields)) // 2)
        weights, biases = (tuple([tensors[f"{name}.{at}"] for at in layers]) for name in ("weights", "biases"))
        scaling = Scaling(*[tensors[name] for name in Scaling._fields])
        nodes = None if settings["nodes"] is None else tuple(settings["nodes"])
        own = {**settings, "features": tuple(settings["features"]), "nodes": nodes}
        return cls(**own, scaling=scaling, weights=weights, biases=biases)


_NODES = re.compile(r"@(-?[0-9]+)(?:,(-?[0-9]+))?$")


def counted_back(name: str, newest: int) -> str:
    """Return a feature's name with its nodes counted back from a node instead of from the first, or the reverse.

    >>> counted_back("same@0,2", 2), counted_back("p_yes@1", 1), counted_back("votes", 1)
    ('same@2,0', 'p_yes@0', 'votes')
    """
    return _NODES.sub(lambda at: "@" + ",".join(str(newest - int(node)) for node in at[0][1:].split(",")), name)


def read_at(log: Log, features: Sequence[str], newest: int) -> Floats:
    """Return features after a node, float64 (n, d): unknown where one reads a node before the first."""
    columns, names = _named(tuple(features), newest)
    values = np.full((log.n, len(features)), np.nan)
    values[:, columns] = read(log, range(newest + 1), names)
    return values


@cache
def _named(features: tuple[str, ...], newest: int) -> tuple[list[int], list[str]]:
    """Return the features whose nodes exist, and their names with nodes counted from the first."""
    names = [counted_back(name, newest) for name in features]
    columns = [at for at, name in enumerate(names) if not (nodes := _NODES.search(name)) or "-" not in nodes[0]]
    return columns, [names[at] for at in columns]


class StepActions(NamedTuple):
    """The actions of a plan: each node's step, from 0 without gaps, and its place in the step; int64 (T,)."""

    step: Ints
    slot: Ints

    @classmethod
    def of(cls, log: Log) -> StepActions:
        """Return the actions of a log's plan."""
        _, first, step = np.unique(log.steps, return_index=True, return_inverse=True)
        return cls(step, np.arange(log.width) - first[step])

    def allowed(self, keeps_all: bool) -> Bools:
        """Return which actions each step has, bool (S, k); the last step cannot go on."""
        mask = np.zeros((int(self.step[-1]) + 1, 2 if keeps_all else int(self.slot.max()) + 2), dtype=np.bool_)
        mask[self.step, 0 if keeps_all else self.slot] = True
        mask[:-1, -1] = True
        return mask

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a column of nodes by step and place, (n, T) -> (n, S, m); 0 where a step has no such place."""
        out = np.zeros((len(values), int(self.step[-1]) + 1, int(self.slot.max()) + 1), dtype=values.dtype)
        out[:, self.step, self.slot] = values
        return out


# --- the results of a policy on a log: exact recursions ---

_CLIPPED_AT = 0.98
"""The quantile at which a step's costs are clipped, since a few requests would otherwise set the slopes of all."""
_START, _LOWEST = 0.6, 0.3
"""κ at the start, and the least κ, as shares of 1/k for k actions: at the start every action is in the set. Below the
least the mask of a confident policy has no gradient; above 1/k sets may be empty. Paper: not given; 0 to 1."""
_LEAST, _ABOVE_ALL = 1e-300, math.e
"""The least κ of CPO online, so that log κ is a number; and a κ that no π reaches, so only the likeliest is taken."""
_ETA, _XI = 0.1, 0.1
"""κ moves by η₁ t^(−½−ξ) per miss. Paper: not given; 0.1."""
_FOLLOWS, _AT_ONCE, _SMOOTHED = 0.05, 0.5, 0.9
"""How μ follows the violation v, in limits and cut at ±1: log μ rises by the first times v. The second times v is added
at once: a proportional part beside the integral damps oscillations (Stooke et al., Responsive Safety in Reinforcement
Learning by PID Lagrangian Methods, ICML 2020). The third is the weight of earlier batches in v."""
_PRICES = 1e-3, 200.0
"""The range of μ: a policy of one action per step may be unable to keep its promise at any price."""
_LEAST_LIMIT = 0.01
"""The least unit of violations, which are in units of the limit: at a risk of 0 each miss would be infinite."""


class Outcomes(NamedTuple):
    """The results of every action, for n requests, S steps, m places of answers: tensors of float64.

    Attributes:
        inputs: (n, S, J), the network's inputs.
        possible: bool (n, S, k), the actions that can be taken: answers that exist, and going on before the end.
        right: (n, S, m), 1 for a right answer; where every answer is kept, 1 − the loss of stopping, and m is 1.
        counts: (n,), 1 where the request is lost unless a right answer is kept.
        cost: (n, S), the cost of each step, in mean steps.
    """

    inputs: Tensor
    possible: Tensor
    right: Tensor
    counts: Tensor
    cost: Tensor

    @classmethod
    def of(cls, log: Log, promise: Promise, inputs: Floats, device: str = "cpu") -> Outcomes:
        """Return the outcomes of a log for a promise.

        A record that ends early goes on: its later steps cost their mean, and lose what stopping at its end loses.
        """
        import torch

        actions, bought, rules = StepActions.of(log), log.bought[:, log.decides], promise.rules
        answered, counts = np.ones((*bought.shape, 1), dtype=np.bool_), np.ones(log.n, dtype=np.bool_)
        if rules.of_set:
            right = actions.spread(log.right == 1)
            answered, counts = actions.spread(log.answers) | ~bought[:, :, None], ~log.complete | right.any(axis=(1, 2))
        else:
            loss, serve = rules.losses(log), newest(log)
            loss = np.where(serve >= 0, np.take_along_axis(loss, np.maximum(serve, 0), axis=1), loss)
            right = 1.0 - loss[:, log.decides, None]
        onward = ~log.complete[:, None] | np.roll(bought, -1, axis=1)
        possible = np.concatenate([answered, onward[:, :, None]], axis=2) & actions.allowed(not rules.of_set)
        possible[:, :, 0] |= ~possible.any(axis=2)  # an action that changes nothing
        columns = (inputs, possible, right, counts, _step_costs(log, bought))
        tensors = [torch.from_numpy(np.ascontiguousarray(column, dtype=np.float64)).to(device) for column in columns]
        return cls(*tensors)._replace(possible=tensors[1] > 0)


def _step_costs(log: Log, bought: Bools) -> Floats:
    """Return the cost of each step in mean steps, float64 (n, S); 1 each where costs are unknown or 0."""
    priced = bool((log.cost_nano_usd >= 0).all()) and bool(log.cost_nano_usd.any())
    paid = np.add.reduceat(log.cost_nano_usd, np.unique(log.steps, return_index=True)[1], axis=1)
    cost = np.where(bought, paid if priced else 1.0, np.nan)
    cost[:, ~bought.any(axis=0)] = 0.0  # a step that no request reached
    cost = np.minimum(cost, np.nanquantile(cost, _CLIPPED_AT, axis=0))
    cost = np.where(bought, cost, np.where(log.complete[:, None], 0.0, np.nanmean(cost, axis=0)))
    return np.asarray(cost / (cost[bought].mean() or 1.0))


def brought(member: Tensor, outcomes: Outcomes, *, counted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return cost, in mean steps, size of the set and loss of each request, (n,) each: linear in each m.

    `member` is m, (n, S, k). With `counted` one action per step is taken, and the shares of right ones add up.
    """
    cost = size = hit = member.new_zeros(len(member))
    for step in range(member.shape[1] - 1, -1, -1):
        keep, onward = member[:, step, :-1], member[:, step, -1]
        cost, size = outcomes.cost[:, step] + onward * cost, keep.sum(-1) + onward * size
        if counted:
            hit = (keep * outcomes.right[:, step]).sum(-1) + onward * hit
        else:
            hit = 1.0 - (1.0 - keep * outcomes.right[:, step]).prod(-1) * (1.0 - onward * hit)
    return cost, size, outcomes.counts * (1.0 - hit)


def soft_sets(
    logs: Tensor, outcomes: Outcomes, kappa: float | None, width: float, *, keeps_all: bool = False
) -> Tensor:
    """Return m, (n, S, k): σ((π − κ)/ε) of the possible actions; without κ their π."""
    able = logs.masked_fill(~outcomes.possible, -math.inf)
    if kappa is None:
        return able.softmax(-1)
    soft = ((able.exp() - kappa) / width).sigmoid() * outcomes.possible
    return _or_stop(soft) if keeps_all else soft


def served_sets(logs: Tensor, outcomes: Outcomes, kappa: float, *, keeps_all: bool = False) -> Tensor:
    """Return m of what is served at κ, 0 or 1: {a : π(a) ≥ κ} with the likeliest action, and only that for κ > 1."""
    able = logs.masked_fill(~outcomes.possible, -math.inf)
    chosen = (able.exp() >= kappa) & outcomes.possible
    if keeps_all:
        return _or_stop(chosen.to(logs.dtype))
    return chosen.scatter(-1, able.argmax(-1, keepdim=True), True).to(logs.dtype)


def _or_stop(member: Tensor) -> Tensor:
    """Return m where every answer is kept: a walk that does not go on stops."""
    onward = member[..., -1:]
    return onward * onward.new_tensor([-1.0, 1.0]) + onward.new_tensor([1.0, 0.0])


# --- training: torch ---


def train(
    log: Log,
    promise: Promise,
    method: str = "ccpo",
    settings: NetworkSettings | None = None,
    seed: int = 0,
) -> Networks:
    """Train a network on a log, and return its policy.

    An update draws a batch, counts what its sets at κ miss, prices a miss by how far training exceeds the limit (dual
    ascent of μ), takes a step of Adam down cost + λ size + μ loss, and moves κ by the misses counted: κ ← κ − η_t
    (misses − α). So κ does not depend on the update of the policy from the same requests.

    Args:
        log: the requests, none of which may certify.
        promise: what will be promised: of a set, each answer has a score of its own; else every answer is kept.
        method: one of `METHODS`.
        settings: how the network is trained.
        seed: the seed of weights and batches.

    Raises:
        MissingExtraError: torch is not installed.
        UsageError: there is no request, one step only, or no such method or device.
    """
    use = settings or NetworkSettings()
    _check(log, method, use)
    numbers = {name: values for name, values in log.features.items() if name not in _MEMORISED}
    visible, last = replace(log, features=numbers), np.flatnonzero(log.decides).tolist()
    features = [[counted_back(name, at) for name in offered(visible, range(at + 1))] for at in last]
    names = tuple(dict.fromkeys(name for step in features for name in step))
    scaling = Scaling.of(log, names, features)
    run = _Run(log, scaling.inputs(log, names)[0], promise, method, use, seed)
    return Networks(method, names, scaling, *run.train(), run.keeps_all, math.log(run.kappa), run.price)


def _check(log: Log, method: str, settings: NetworkSettings) -> None:
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "Training a policy network")
    import torch

    gpus, steps = torch.cuda.device_count(), int(log.decides.sum())
    problems = [f"there is no policy network {method!r}; there are {', '.join(METHODS)}"] * (method not in METHODS)
    if settings.device != "cpu" and int(settings.device.partition(":")[2] or 0) >= gpus:
        problems.append(f"there is no device {settings.device}: torch finds {gpus} GPUs here")
    if not log.bought.any() or steps < 2:
        problems.append(f"{log.name} has {log.n} requests of {steps} steps, or no call: there is nothing to decide")
    if problems:
        raise UsageError(f"This cannot be trained: {'; '.join(problems)}.")


class _Run:
    """A run of training: the network, κ, the price μ of a miss, and the smoothed violation, in limits."""

    def __init__(
        self, log: Log, inputs: Floats, promise: Promise, method: str, use: NetworkSettings, seed: int
    ) -> None:
        import torch

        self.keeps_all, self.joint, self.moves = not promise.rules.of_set, method == "ccpo", method in _MOVES
        self.outcomes, self.use, self.seed = Outcomes.of(log, promise, inputs, use.device), use, seed
        self.allowed = torch.from_numpy(StepActions.of(log).allowed(self.keeps_all)).to(use.device)
        actions = self.allowed.shape[1]
        self.net = _network((inputs.shape[2], *use.layers, actions), seed).to(use.device)
        self.adam = torch.optim.Adam(self.net.parameters(), use.learning_rate)
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.adam, lambda done: 1.0 - done / use.steps)
        self.average = torch.optim.swa_utils.AveragedModel(self.net)
        self.range = (_LOWEST / actions, 1.0 / actions) if self.joint else (_LEAST, 1.0)
        self.kappa = _START / actions if self.moves else 0.5 if self.keeps_all else _ABOVE_ALL
        self.limit, self.unit = promise.tested_risk, max(promise.tested_risk, _LEAST_LIMIT)
        self.price, self.violation = float(np.clip(use.multiplier / self.unit, *_PRICES)), math.nan

    def train(self) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
        """Update to the last step; return the weights and the biases of the layers."""
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums then have one order, and small batches are no slower
        try:
            for number in range(1, self.use.steps + 1):
                self._update(number)
                if number > self.use.steps // 2:  # the paper takes the last weights
                    self.average.update_parameters(self.net)
        finally:
            torch.set_num_threads(threads)
        net = self.average.module if int(self.average.n_averaged) else self.net
        values = tuple([value.detach().cpu().numpy().copy() for value in net.parameters()])
        if not all(np.isfinite(array).all() for array in values):
            raise UsageError("Training diverged: a weight is not finite. Lower learning_rate.")
        return values[::2], values[1::2]

    def _update(self, number: int) -> None:
        """Update the network, κ and the price once, on a batch that depends only on the seed and `number`."""
        use, n = self.use, len(self.outcomes.counts)
        rows = np.random.default_rng([self.seed % 2**63, number]).choice(n, min(use.batch, n), replace=False)
        batch = Outcomes(*[column[np.sort(rows)] for column in self.outcomes])
        logs = log_policy(self.net(batch.inputs), self.allowed)
        served = served_sets(logs.detach(), batch, self.kappa, keeps_all=self.keeps_all)
        missed = float(brought(served, batch, counted=self.keeps_all)[2].mean())
        soft = soft_sets(logs, batch, self.kappa if self.joint else None, use.mask_width, keeps_all=self.keeps_all)
        cost, size, loss = brought(soft, batch, counted=self.keeps_all or not self.joint)
        over = (float(loss.detach().mean()) - self.limit) / self.unit
        self.violation = over if number == 1 else _SMOOTHED * self.violation + (1 - _SMOOTHED) * over
        cut = float(np.clip(self.violation, -1.0, 1.0))
        charge = 0.0 if self.keeps_all else use.lambda_set  # one answer is served, whatever is kept
        self.adam.zero_grad()
        (cost + charge * size + self.price * math.exp(_AT_ONCE * cut) * loss).mean().backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        self.rate.step()
        self.price = float(np.clip(self.price * math.exp(_FOLLOWS * cut), *_PRICES))
        if self.moves:
            lower = _ETA * number ** (-0.5 - _XI) * (missed - self.limit)
            self.kappa = float(np.clip(self.kappa - lower, *self.range))


def log_policy(logits: Tensor, allowed: Tensor) -> Tensor:
    """Return log π of the actions, (n, S, k); −∞ for an action that a step does not have."""
    return logits.masked_fill(~allowed, -math.inf).log_softmax(-1)


def _network(sizes: Sequence[int], seed: int) -> torch.nn.Module:
    """Return a network with weights of He's scale, a tenth of Glorot's in the last layer, and biases of 0."""
    import torch

    chance, layers = torch.Generator().manual_seed(seed % 2**63), list[torch.nn.Module]()
    for number, (fan, out) in enumerate(pairwise(sizes)):
        layer = torch.nn.Linear(fan, out, dtype=torch.float64)
        scale = 0.1 if number == len(sizes) - 2 else math.sqrt(2.0)  # the first policy is nearly uniform
        torch.nn.init.normal_(layer.weight, std=scale / math.sqrt(fan), generator=chance)
        torch.nn.init.zeros_(layer.bias)
        layers += [layer, torch.nn.Softsign()]
    return torch.nn.Sequential(*layers[:-1])
