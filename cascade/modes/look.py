"""A look: choose a policy on the fitting rows, certify it on whole conversations, and compute the saving.

It is a pure function of rows and drawn requests. A turn without an outcome counts as kept and lost at every threshold.
Means of costs leave out such turns, and turns of unknown cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cascade.config import CascadeConfig
from cascade.config.schema import ModesConfig
from cascade.conformal.certificate import Certificate, MadeFor, moving
from cascade.conformal.promise import Promise
from cascade.episodes.reading import labelled_by_reference
from cascade.episodes.rows import Facts, datasets_of, joined
from cascade.errors import UsageError
from cascade.fitting.certificates import ASSUMPTIONS, certified_for, sha256_of
from cascade.fitting.divide import divided
from cascade.fitting.menu import menu
from cascade.logs.schema import DEPLOYMENT, ECHOED, FINGERPRINT, Dropped, replay_of, uncached_nano_usd
from cascade.modes.certify import ConversationTurns, PassingThreshold, Proof, Stops, fixed_sequence_test, grid
from cascade.modes.state import Draw, InForce, Look, Signs, audits_each, signs_of
from cascade.policies.directory import PolicyDirectory, Requests, hashed
from cascade.policies.policy import Policy, as_read
from cascade.serving.conditions import made_for
from cascade.table import Floats, Ints, Log

Row: TypeAlias = dict[str, Any]
CHOOSES, TRAIN_SHARE = 0.5, 0.3
"""The level at which a policy must keep the promise on the conversations that choose it, which proves nothing; and the
share of these conversations on which a rule is learned, to be tried on the others."""
_HOW = (
    "The policy and its thresholds were chosen without these conversations.",
    "Whole conversations were drawn, and replayed as they are served: after a kept turn the guide answers the rest.",
    "Conversations are independent, and so are unnamed requests: related ones need a common name (x-cascade-group).",
)


@dataclass(frozen=True, slots=True)
class LookResult:
    """The outcome of a look.

    Attributes:
        page: the figures, as plain JSON values.
        in_force: the certificate; None if nothing was certified, or if it saves nothing.
        files: the files of the policy directory, by plain names.
    """

    page: Mapping[str, Any]
    in_force: InForce | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class Observed(NamedTuple):
    """Drawn requests with an outcome; the guide's output counts as right.

    Attributes:
        log: one row per request; the groups are the conversations.
        row: the number of each trace's row.
        uncached: float64 (n,), what the guide's call would have cost without a prompt cache, nano-USD; NaN: unknown.
        comparator: the rule that says whether two answers are the same.
        facts: facts about the calls; None in a simulation.
        cascade: what the cascade that was observed, and will serve, is made of; None in a simulation.
        signs: what the replies report about their models.
    """

    log: Log
    row: Mapping[str, int]
    uncached: Floats
    comparator: str
    facts: Facts | None = None
    cascade: MadeFor | None = None
    signs: Signs = MappingProxyType({})


def complete(rows: Iterable[Row], drawn: Sequence[Draw], models: Sequence[str]) -> list[Row]:
    """Return the trace rows of those drawn requests with an outcome that all models (the guide last) answered."""
    settled = {draw.trace_id: draw for draw in drawn if draw.outcome == "complete"}
    episodes: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        draw = settled.get(row["episode_id"])
        if draw is not None and row["walk"] is None:
            labels = {"dataset": draw.cascade, "group": draw.trace_id, "split": None, "segment": None}
            episodes[draw.trace_id].append({**row, **labels})
    return [row for episode in episodes.values() if len(episode) >= len(models) for row in episode]


def observed_in(rows: Sequence[Row], drawn: Sequence[Draw], config: CascadeConfig, modes: ModesConfig) -> Observed:
    """Return `complete` rows as a log of the cascade that will serve. Raises UsageError if there are none."""
    if not rows:
        raise UsageError("no drawn request has an outcome.")
    dropped, labelled = Dropped(), labelled_by_reference(lambda: iter(rows), modes.comparator)
    log, facts, _ = joined(datasets_of(labelled.rows(dropped), dropped, labelled.truths))
    assert facts.truth is not None  # noqa: S101 - the guide's output is the truth
    conversation = {draw.trace_id: draw.conversation for draw in drawn}
    last = {row["episode_id"]: uncached_nano_usd(row) for row in rows if row["step"] == row["horizon"]}
    uncached = np.array([last.get(trace) for trace in log.groups], dtype=np.float64)
    grouped = replace(log, groups=tuple([conversation[trace] for trace in log.groups]))
    number = {trace: number for number, trace in enumerate(log.groups)}
    return Observed(grouped, number, uncached, facts.truth.comparator, facts, made_for(config), _signs(rows))


def _signs(rows: Iterable[Row]) -> Signs:
    signs: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        replay = replay_of(row)
        for deployment in {None, replay.get(DEPLOYMENT)}:
            reply = signs_of(row["model"], replay.get(ECHOED), replay.get(FINGERPRINT), deployment)
            for sign, value in reply.items():
                signs[sign].add(value)
    return {sign: tuple(sorted(values)) for sign, values in signs.items()}


class Conversations(NamedTuple):
    """Whole conversations, one after the other.

    Attributes:
        log: their recorded turns.
        uncached: as in `Observed`.
        turns: all of their turns.
    """

    log: Log
    uncached: Floats
    turns: ConversationTurns

    @classmethod
    def of(cls, observed: Observed, draws: Iterable[Draw]) -> Conversations:
        """Return the conversations of these draws; a draw without an outcome is a turn without a record.

        Raises UsageError if none has an outcome.
        """
        ordered = sorted(draws, key=lambda draw: (draw.conversation, draw.drawn_s))
        row = np.array([observed.row.get(draw.trace_id, -1) for draw in ordered], dtype=np.int64)
        recorded = row >= 0
        if not recorded.any():
            raise UsageError("none of the requests that fit, or of those that certify, has an outcome.")
        turns = ConversationTurns(
            np.where(recorded, recorded.cumsum() - 1, -1), _numbers([draw.conversation for draw in ordered])
        )
        return cls(observed.log.take(row[recorded]), observed.uncached[row[recorded]], turns)

    def take(self, rows: Ints) -> Conversations:
        """Return the turns of chosen rows. Every turn must be on record."""
        log = self.log.take(rows)
        return Conversations(log, self.uncached[rows], ConversationTurns(np.arange(log.n), _numbers(log.groups)))


def _numbers(names: Sequence[str]) -> Ints:
    """Return, for each name, its place among the sorted distinct names."""
    return np.asarray(np.unique(names, return_inverse=True)[1], dtype=np.int64)


def look_at(observed: Observed, drawn: Sequence[Draw], look: Look, modes: ModesConfig, audit: float) -> LookResult:
    """Take a look: choose on the other rows, certify on whole conversations, and check that the policy saves money.

    No earlier look has used the conversations that this one has taken. `audit` is the share that will be audited.
    """
    page = {**_begun(look, modes, drawn), "audit": audit}
    try:
        return _looked(page, observed, drawn, look, modes)
    except UsageError as error:
        return LookResult({**page, "why": f"no certificate: {error}"})


def _looked(
    page: dict[str, Any], observed: Observed, drawn: Sequence[Draw], look: Look, modes: ModesConfig
) -> LookResult:
    """Take a look and put its figures on the page. Raises UsageError, with the reason, if nothing can be promoted."""
    others = [draw for draw in drawn if draw.look != look.look and draw.trace_id in observed.row]
    certifying = [draw for draw in drawn if draw.look == look.look]
    chooses, certifies = (Conversations.of(observed, draws) for draws in (others, certifying))
    missing = int(np.count_nonzero(certifies.turns.row < 0))
    page |= {"comparator": observed.comparator, "fit_rows": chooses.log.n, "missing": missing}
    if not (chooses.log.priced.any() and certifies.log.priced.any()):
        raise UsageError("no cost of these rows is known: a model has no price")
    policy = _chosen(chooses, modes, page["audit"])
    page |= {"policy": "reference" if policy is None else policy.kind}
    if policy is None:
        raise UsageError("no policy that keeps the promise on the rows that fit is cheaper than the guide")
    kappa = _proven(page, policy, (chooses, certifies), look, modes)
    directory = _directory(
        policy, observed, (chooses.log, certifies.log), promise_of(modes), {**page, "threshold": kappa}
    )
    (certificate,) = directory.certificates.values()
    turns = audits_each(page["audit"], int(max(*chooses.turns.lengths, *certifies.turns.lengths)))
    in_force = InForce(
        certificate.id, look.look, modes.risk, look.level, certificate.n, observed.comparator, turns, observed.signs
    )
    files = {name: data for name, data in directory.files().items() if data is not None}
    return LookResult({**page, "certificate": certificate.id}, in_force, files)


def _proven(
    page: dict[str, Any], policy: Policy, both: tuple[Conversations, Conversations], look: Look, modes: ModesConfig
) -> float:
    """Return the certified threshold. Raises UsageError if there is none, or if it saves nothing."""
    chooses, certifies = both
    lengths = certifies.turns.lengths
    proof = Proof.best(modes.risk, look.level, lengths.size, chooses.turns.lengths)
    page |= {"losses_allowed": max(0, proof.allowed(lengths))}
    passing = _passing_threshold(policy, chooses, certifies, proof, promise_of(modes))
    if passing is None:
        raise UsageError("too many requests are lost at the strictest threshold")
    page |= {"losses": int(np.count_nonzero(passing.replay.lost))}
    page |= {"threshold": passing.kappa} if np.isfinite(passing.kappa) else {}
    page |= _saving(certifies, passing, page["audit"])
    if page["saving_usd"] <= 0:
        raise UsageError("with the cost of audits the policy is no cheaper than the guide")
    return passing.kappa


def unseen(look: Look, modes: ModesConfig, drawn: Sequence[Draw], why: str) -> LookResult:
    """Return the outcome of a look that ends without reading a row."""
    return LookResult({**_begun(look, modes, drawn), "why": why})


def _begun(look: Look, modes: ModesConfig, drawn: Sequence[Draw]) -> dict[str, Any]:
    certifying = [draw.conversation for draw in drawn if draw.look == look.look]
    return {
        "look": look.look,
        "promise": "agreement",
        "risk": modes.risk,
        "confidence": modes.confidence,
        "level": look.level,
        "certifying_conversations": len(set(certifying)),
        "requests": len(certifying),
    }


def _chosen(conversations: Conversations, modes: ModesConfig, audit: float) -> Policy | None:
    """Return the policy that saves most of those that keep the promise on these conversations; None if none saves."""
    log = conversations.log
    several = conversations.turns.lengths.size > 1
    training = divided(log, TRAIN_SHARE, 0).training if several else log.take(np.zeros(0, dtype=np.int64))
    best, most = None, 0.0
    for member in menu(log, training, promise_of(modes), CHOOSES):
        tries, policy = conversations if member.rows is None else conversations.take(member.rows), member.make()
        lengths = tries.turns.lengths
        proof = Proof.best(modes.risk, CHOOSES, lengths.size, lengths)
        passing = _passing_threshold(policy, tries, tries, proof, promise_of(modes))
        if passing is not None and tries.log.priced.any():
            saving = _saving(tries, passing, audit)["saving_usd"]
            best, most = (policy, saving) if saving > most else (best, most)
    return best


def promise_of(modes: ModesConfig) -> Promise:
    """Return the promise, with the confidence of all looks together."""
    return Promise("agreement", modes.risk, modes.confidence)


def _passing_threshold(
    policy: Policy, others: Conversations, conversations: Conversations, proof: Proof, promise: Promise
) -> PassingThreshold | None:
    """Return the most lenient threshold, of those that other conversations give, that passes on these."""
    stops = stops_of(policy, conversations.log, promise)
    return fixed_sequence_test(proof, conversations.turns, grid(policy.walks(others.log).reach), stops)


def stops_of(policy: Policy, log: Log, promise: Promise) -> Callable[[float], Stops]:
    """Return a function of the threshold: what a policy does on requests whose last node is the guide."""
    walks = policy.walks(log)
    last, order = walks.log.width - 1, None if policy.nodes is not None else policy.scores(as_read(log)).order
    guide = np.full(log.n, last) if order is None else np.argmax(order == last, axis=1)
    loss, cost = promise.rules.jumps(walks), walks.cost

    def at(kappa: float) -> Stops:
        stop = walks.stop(kappa)
        return Stops((loss.at(kappa) > 0) | (stop < 0), cost.at(kappa), guide <= stop)

    return at


def _saving(conversations: Conversations, passing: PassingThreshold, audit: float) -> dict[str, float]:
    """Return the share of requests that a cheaper model answers, and a request's guide cost and saving after audits.

    The first turn that the guide answers after a kept one pays the prompt in full: its cache lacks that turn.
    """
    log, turns, (_, stops, replay) = conversations.log, conversations.turns, passing
    priced = (turns.row >= 0) & log.priced[turns.row]
    row, since = turns.row[priced], replay.since[priced]
    guide, every = log.cost_nano_usd[row, -1].astype(np.float64), log.cost_nano_usd[row].sum(axis=1)
    decided = stops.cost[row] + audit * (every - stops.cost[row])
    uncached = np.fmax(guide, conversations.uncached[row])
    paid = np.where(since <= 0, decided, np.where(since == 1, uncached, guide))
    return {
        "served_by_cheaper": float(np.mean((since == 0) & ~stops.asks_last[row])),
        "guide_usd": float(guide.mean()) / 1e9,
        "saving_usd": float((guide - paid).mean()) / 1e9,
    }


def _directory(
    policy: Policy, observed: Observed, logs: tuple[Log, Log], promise: Promise, page: Mapping[str, Any]
) -> PolicyDirectory:
    """Return the policy with its certificate; `logs` has the rows that chose it and those that certify."""
    (chose, certify), facts, truth, made_of = logs, observed.facts, None, {}
    if facts is not None:
        bought = certify.only(range(certify.width) if policy.nodes is None else policy.nodes)
        truth, made_of = facts.truth, dict(certified_for(certify, bought, facts, observed.cascade))
    requests = Requests(fitted=hashed(set(chose.ids) - set(certify.ids)), certified=hashed(certify.ids))
    bare = PolicyDirectory(observed.log.nodes, policy, promise, {}, requests)
    certificate = Certificate(
        *(promise, page["threshold"], page["certifying_conversations"], float(page["losses"])),
        *(sha256_of(certify), bare.policy_sha256, datetime.now(UTC).date().isoformat()),
        level=page["level"],
        attempts=page["look"],
        unit="conversation",
        reference=None if truth is None else truth.reference,
        comparator=observed.comparator,
        made_for=made_of,
        assumptions=(*ASSUMPTIONS, *_HOW, *moving(made_of)),
    )
    return bare.certified(certificate)
