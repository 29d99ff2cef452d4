"""Methods of answering requests that a study compares: single calls, simple rules, recorded walks, networks, and `fit`.

Each is prepared on requests as a user would prepare it, and then played on others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from cascade.conformal.certify import certify
from cascade.conformal.path import UNITS, Scores, hopeless, loss_jumps, reaches, strict_to_lenient
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError
from cascade.fitting.divide import divided, drawn, usable
from cascade.fitting.fit import Fit, FitSettings, fit, thresholds
from cascade.policies.base import OF_FIRST, ONWARD
from cascade.policies.live import STRICTEST
from cascade.policies.networks import Networks, NetworkSettings, train
from cascade.policies.policy import (
    ACTION,
    NETWORKS,
    VERDICT,
    Depth,
    Policy,
    Prompted,
    ReferenceOnly,
    Threshold,
    Uala,
    drawn_number,
    score_policy,
)
from cascade.studies.diagnosis import Signal, limited, signals_of
from cascade.table import Bools, Floats, Log, Node, Reference
from cascade.types import BASE_ONLY

NETWORK_LEARNS = 0.7
"""The share of the groups that trains a network; the others certify its threshold."""
CHARGE = 0.1
"""λ of the second CCPO, in mean steps per answer kept."""


class Played(NamedTuple):
    """The results of a method on n requests, float64 (n,) each.

    Attributes:
        loss: the promise's loss; NaN: unknown.
        right: whether what is served is right; NaN: unknown.
        cost: nano-USD; NaN: unknown.
        length: the nodes bought; for a recorded walk, its steps.
        size: the number of different answers kept.
    """

    loss: Floats
    right: Floats
    cost: Floats
    length: Floats
    size: Floats


class Method(Protocol):
    """A method of answering requests: `prepare` returns a function that plays it on other requests."""

    @property
    def name(self) -> str:
        """The name of the method in tables."""
        ...

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Choose and certify on these requests. Raises NotCertifiedError if nothing is proven."""
        ...


def play(policy: Policy, kappa: float | Floats, log: Log, promise: Promise, *, single: bool = False) -> Played:
    """Play a policy on requests, at one threshold for all or at one for each request.

    With `single` it keeps only the answer served, even if the promise is about a set.
    """
    walked = policy.walks(log).ending(kappa)
    stop, rows, bought = walked.stop(kappa), np.arange(log.n), walked.log
    keeps = bought.answers & reaches(walked.keep, kappa)
    served = walked.serve[rows, stop]
    right = np.where(served >= 0, bought.right[rows, np.maximum(served, 0)], 0.0)
    if promise.rules.of_set:  # a request is hopeless by all calls of the log, even if the policy has fewer
        covers = right == 1 if single else (keeps & (bought.right == 1)).any(axis=1)
        loss = np.where(covers | hopeless(log), 0.0, 1.0)
    else:
        loss = promise.rules.at_stop(walked)[rows, stop]
    priced = (bought.cost_nano_usd >= 0).all(axis=1)
    cost = np.where(priced, walked.cost.at(kappa), np.nan)
    ordered = np.sort(np.where(keeps, bought.answer, -1), axis=1)  # kept answers are 0 or more
    size = np.count_nonzero(np.diff(ordered, axis=1, prepend=-1), axis=1)
    counts = (column.astype(np.float64) for column in (stop + 1, served >= 0 if single else size))
    return Played(loss, right, cost, *counts)


class Served(NamedTuple):
    """A policy and its threshold for each segment; without `kappas`, every request is served at `kappa`.

    A segment without a threshold asks the reference at once, as in service; if there is none, it makes every call.
    """

    policy: Policy
    kappa: float = STRICTEST
    kappas: Mapping[str, float] = {}

    def covers(self, log: Log) -> Bools:
        """Return whether each request is served at a threshold, bool (n,)."""
        return np.array([not self.kappas or (name or "") in self.kappas for name in log.segments], dtype=np.bool_)

    def play(self, log: Log, promise: Promise) -> Played:
        """Play the policy on requests; NaN where the log lacks a call that it makes."""
        listed = [self.kappas.get(name or "", STRICTEST) if self.kappas else self.kappa for name in log.segments]
        kappa = np.array(listed)
        walked = self.policy.walks(log).ending(kappa)
        played, stop = play(self.policy, kappa, log, promise), walked.stop(kappa)
        logged = (stop >= 0) & ~walked.log.open_end[np.arange(log.n), np.maximum(stop, 0)]
        played = Played._make(np.where(logged, column, np.nan) for column in played)
        covered = self.covers(log)
        if covered.all() or log.reference is None:
            return played
        alone = Served(ReferenceOnly()).play(log, promise)
        return Played._make(np.where(covered, *columns) for columns in zip(played, alone, strict=True))


@dataclass(frozen=True, slots=True)
class Fitted:
    """What `fit` serves, at its certified thresholds."""

    settings: FitSettings | None = None
    name: str = "cascade fit"
    part: Callable[[Log], Log] = copy  # the part of a log that it sees

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:  # noqa: ARG002 - of the protocol
        """Fit and certify."""
        done = fit(self.part(log), promise, self.settings)
        return lambda requests: play_fit(done, self.part(requests))


NO_SIGNAL = "fit, no signal"


def by_signal(log: Log) -> Iterator[Method]:
    """Yield `fit` without a signal and, if the log has several, with each of them alone."""
    every = signals_of(log)
    some: list[tuple[str, tuple[Signal, ...]]] = [(NO_SIGNAL, ())] * bool(every)
    some += [(f"fit, {signal.name}", (signal,)) for signal in every if len(every) > 1]
    for name, signals in some:
        yield Fitted(name=name, part=partial(limited, signals=signals, every=every))


def play_fit(done: Fit, log: Log) -> Played:
    """Play a fit on requests, at its certified thresholds."""
    kappa = thresholds(log, done.certified, by_segment=done.settings.by_segment, default=done.default)
    return play(done.policy, np.fmax(kappa, STRICTEST), log, done.promise)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy and a threshold that `choose` derives from requests; with `single`, only the answer served is kept."""

    name: str
    choose: Callable[[Log, Promise, int], tuple[Policy, float]]
    single: bool = False

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Choose the policy and the threshold."""
        policy, kappa = self.choose(log, promise, seed)
        return lambda requests: play(policy, kappa, requests, promise, single=self.single)


def fixed(name: str, policy: Policy, kappa: float = STRICTEST) -> Chosen:
    """Return a policy at a fixed threshold, such as the reference alone, a single call, or every call."""
    return Chosen(name, partial(_fixed, policy, kappa))


def _fixed(policy: Policy, kappa: float, _log: Log, _promise: Promise, _seed: int) -> tuple[Policy, float]:
    return policy, kappa


@dataclass(frozen=True, slots=True)
class Recorded:
    """A walk that the log has beside its plan, such as a model that decides when to stop; unknown where absent."""

    name: str

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:  # noqa: ARG002 - of the protocol
        """Return what is on record."""
        return lambda requests: self._play(requests, promise)

    def _play(self, log: Log, promise: Promise) -> Played:
        walk = log.baselines[self.name]
        right = np.where(walk.known, walk.right, np.nan)
        if promise.rules.of_set:
            loss = np.where(walk.covered | hopeless(log), 0.0, 1.0)
        else:
            alone = replace(log, reference=Reference(right, walk.cost_nano_usd, is_last=True)).reference_only()
            loss = promise.rules.losses(replace(alone, nodes=(Node(self.name, 0),), reference=log.reference))[:, 0]
        cost = np.where(walk.cost_nano_usd >= 0, walk.cost_nano_usd, np.nan)
        columns = (loss, right, cost, walk.length, walk.size)
        return Played(*(np.where(walk.known, column, np.nan) for column in columns))


@dataclass(frozen=True, slots=True)
class Uniform(Policy):
    """Choose uniformly at random after each step: its first answer, its last, or to go on. The paper's Random."""

    kind: ClassVar[str] = "uniform"
    seed: int = 0
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        """Return the scores of a model that draws its action at random."""
        several = np.array([np.count_nonzero(log.steps == step) > 1 for step in log.steps])
        draws = np.array([[drawn_number(f"{self.seed}|{name}|{at}") for at in range(log.width)] for name in log.ids])
        action = np.where(several, OF_FIRST + np.floor(3 * draws), np.where(draws < 0.5, OF_FIRST, ONWARD))
        return Prompted().scores(replace(log, signals={ACTION: action}))


def drawn_uniform(_log: Log, _promise: Promise, seed: int) -> tuple[Policy, float]:
    """Return the paper's Random, with new draws for each split."""
    return Uniform(seed), STRICTEST


def one_test(name: str, policy: Policy) -> Chosen:
    """Return a policy that learns nothing, tested at the whole level on one request of each group.

    It is what a skilled engineer writes in an afternoon.
    """
    return Chosen(name, partial(_tested, name, policy))


def _tested(name: str, policy: Policy, log: Log, promise: Promise, seed: int) -> tuple[Policy, float]:
    return policy, _certified(name, policy, drawn(usable(log, promise).log, seed), promise)


def _certified(name: str, policy: Policy, log: Log, promise: Promise) -> float:
    """Return the last threshold that is proven at the whole level."""
    walked = policy.walks(log)
    proven = certify(strict_to_lenient(walked, promise.rules.jumps(walked)), promise, midway=False)
    if proven is None:
        raise NotCertifiedError(f"{name}: not even the strictest threshold is proven.")
    return proven.kappa


ROUTER, ROUTED = "router before the call", "routed"
"""The name of the method, and of the signal that holds its estimate."""


@dataclass(frozen=True, slots=True)
class Router:
    """A router before the call: it sends a request to the first model or straight to the last, and reads no answer.

    A ridge regression on the features of the request estimates the loss of the first model's answer. The requests that
    it did not learn from certify a threshold on the estimate, exactly and at the whole level.
    """

    name: str = ROUTER

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Learn from the share of the groups that `fit` would learn from, and certify on the others."""
        from cascade.policies.learned import router

        parts = divided(usable(log, promise).log, FitSettings().train_share, seed)
        policy = Threshold(ROUTED, 1.0, tie=None)
        doubt = router(parts.training.only((0, log.width - 1)), promise.rules)
        kappa = _certified(self.name, policy, drawn(_routed(parts.calibration, doubt), seed), promise)

        def playing(requests: Log) -> Played:
            played = play(policy, kappa, _routed(requests, doubt), promise, single=True)
            base = requests.cost_nano_usd[:, 0]
            skipped = played.length > 1
            cost = np.where(skipped, played.cost - np.where(base < 0, np.nan, base), played.cost)
            return played._replace(cost=cost, length=np.ones(requests.n))

        return playing


def _routed(log: Log, doubt: Callable[[Log], Floats]) -> Log:
    """Return the first and the last node of a log, with the estimate as a signal of the first."""
    pair = log.only((0, log.width - 1))
    return replace(pair, signals={**pair.signals, ROUTED: np.stack([doubt(pair), np.full(log.n, np.nan)], axis=1)})


def _can_be_routed(log: Log) -> bool:
    """Return whether the requests have features, and the last node is the reference and reads no other."""
    ends = log.reference is not None and log.reference.is_last and log.nodes[-1].reads == ()
    return bool(ends and log.features and log.width > 1 and log.decides.all())


def tuned(policy: Policy, log: Log, promise: Promise, _seed: int) -> tuple[Policy, float]:
    """Return a policy and its cheapest threshold within the risk on the same requests, if it serves one answer.

    It promises nothing; if no threshold is within the risk, it takes the one with the fewest losses.
    """
    walked = policy.walks(log)
    right = np.take_along_axis(log.right, np.maximum(walked.serve, 0), axis=1)
    covers = ((walked.serve >= 0) & (right == 1)) | hopeless(log)[:, None]
    losses = np.where(covers, 0.0, 1.0) if promise.rules.of_set else promise.rules.at_stop(walked)
    path = strict_to_lenient(walked, loss_jumps(walked, losses))
    cost = np.where(path.loss <= promise.risk * log.n * UNITS, path.cost_nano_usd, np.iinfo(np.int64).max)
    return policy, float(path.kappas[np.lexsort((path.cost_nano_usd, path.loss, cost))[0]])


@dataclass(slots=True)
class Trainer:
    """Trains a network once for the methods that share it."""

    method: str
    settings: NetworkSettings
    _last: tuple[tuple[tuple[str, ...], int], Networks] | None = field(default=None, repr=False)

    def network(self, log: Log, promise: Promise, seed: int) -> Networks:
        """Return the network of these requests."""
        key = log.ids, seed
        if self._last is None or self._last[0] != key:
            self._last = key, train(log, promise, self.method, self.settings, seed)
        return self._last[1]


def trained(name: str, trainer: Trainer, served: str) -> Chosen:
    """Return a policy network at a certified threshold, at that of its training (CPO online), or without one (CPO).

    Some of the requests train it; the others certify.
    """
    return Chosen(name, partial(_trained, name, trainer, served))


def _trained(name: str, trainer: Trainer, served: str, log: Log, promise: Promise, seed: int) -> tuple[Policy, float]:
    division = divided(usable(log, promise).log, NETWORK_LEARNS, seed)
    policy = trainer.network(division.training, promise, seed)
    if served in NETWORKS:
        return policy, _certified(name, policy, drawn(division.calibration, seed), promise)
    likeliest = 1.0 if promise.rules.of_set else float(np.log(0.5))  # log π: for a set above any threshold, else log ½
    return policy, policy.kappa if served == "cpo_online" else likeliest


def network_methods(promise: Promise, settings: NetworkSettings) -> list[Method]:
    """Return CPO, CPO batch and CPO online, which share one network, and CCPO; for a set also with a charge λ."""
    shared, joint = Trainer("cpo_online", settings), Trainer("ccpo", settings.model_copy(update={"lambda_set": 0.0}))
    listed = [("CPO", shared, "cpo"), ("CPO batch", shared, "cpo_batch"), ("CPO online", shared, "cpo_online")]
    listed.append(("CCPO", joint, "ccpo"))
    if promise.rules.of_set:  # if one answer is served, the size of the set costs nothing
        charge = settings.lambda_set or CHARGE
        charged = Trainer("ccpo", settings.model_copy(update={"lambda_set": charge}))
        listed.append((f"CCPO, λ = {charge:g}", charged, "ccpo"))
    return [trained(*row) for row in listed]


def methods(log: Log, promise: Promise, networks: NetworkSettings | None = None) -> list[Method]:
    """Return the methods for which a log has the data: the simple ones, the paper's, then `fit`."""
    last = log.width - 1 if log.reference is not None and log.reference.is_last else log.width
    alone = [at for at in range(last) if _stands_alone(log, at)]
    playing: list[Method] = [fixed(f"{log.nodes[at].name} alone", Depth((at,))) for at in alone]
    listed = [name for name, walk in log.baselines.items() if walk.known.any() and not (alone and name == BASE_ONLY)]
    playing += [Recorded(name) for name in listed]
    if log.width > 1:
        playing.append(Chosen("random", drawn_uniform))
    if not np.isnan(log.signals.get(VERDICT, np.nan)).all():
        playing.append(Chosen("UALA, tuned", partial(tuned, Uala()), single=True))
    playing.append(fixed("every call", Depth()))
    simple = score_policy(promise.rules.readable(log))
    if simple is not None and log.width > 1:
        playing.append(one_test("one threshold", replace(simple, tie=None)))
        playing.append(one_test("one threshold, ties broken", simple))
    if _can_be_routed(log) and not promise.rules.of_set:
        playing.append(Router())
    if networks is not None:
        playing += network_methods(promise, networks)
    if not promise.rules.of_set:
        playing += by_signal(log)
    return [*playing, Fitted()]


def _stands_alone(log: Log, at: int) -> bool:
    """Return whether a node is a step of its own that reads no other, so that it can be asked alone."""
    single = np.count_nonzero(log.steps == log.nodes[at].step) == 1
    return bool(single) and (at == 0 or log.nodes[at].reads == ())
