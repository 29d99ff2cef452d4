"""A look: chooses a policy on the fitting rows, certifies it on whole conversations, and computes the saving.

It is a pure function of rows and drawn requests. A turn without an outcome counts as kept and lost at every threshold.
No mean of costs includes such a turn, or one of unknown cost.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade.config import CascadeConfig
from cascade.config.schema import ModesConfig
from cascade.conformal.binomial import needed_without_loss
from cascade.conformal.certificate import Certificate
from cascade.conformal.fingerprint import certified_for
from cascade.conformal.promise import Promise
from cascade.episodes.reading import labelled_by_reference, reviewed
from cascade.episodes.rows import Facts, joined, reads_of
from cascade.errors import UsageError
from cascade.fitting.certificates import ASSUMPTIONS, sha256_of
from cascade.fitting.divide import divided
from cascade.fitting.menu import menu
from cascade.logs.schema import ECHOED, FINGERPRINT, Dropped, replay_of, uncached_nano_usd
from cascade.modes.certify import Lenient, Outcome, Proof, Turns, grid, most_lenient
from cascade.modes.people import judgements
from cascade.modes.plan import LEAST_FIT
from cascade.modes.state import BY_PEOPLE, Draw, InForce, Opened
from cascade.policies.directory import PolicyDirectory, Requests, hashed
from cascade.policies.policy import Policy
from cascade.review.pairs import Compared, compare
from cascade.review.reviews import Reviews
from cascade.serving.made_for import made_for
from cascade.table import Bools, Floats, Ints, Log

Row = Mapping[str, Any]
CHOOSES, LEARNS = 0.5, 0.3
"""The level at which a policy must keep the promise where it is chosen, which proves nothing; and the share of these
conversations from which a rule is learned that is tried on the others."""
_HOW = (
    "The policy and its thresholds were chosen without these conversations.",
    "Whole conversations were drawn, and replayed as they are served: after a kept turn the guide answers the rest.",
)


class Asked(NamedTuple):
    """The request for a look.

    Attributes:
        modes: the settings of the promise.
        config: the cascade that will serve; None in a simulation.
        reviews: people's judgements, if the promise needs them; None if there are none.
    """

    modes: ModesConfig
    config: CascadeConfig | None = None
    reviews: Reviews | None = None

    @property
    def promise(self) -> Promise:
        """What is promised, with the confidence of all looks together."""
        return Promise(self.modes.promise, self.modes.risk, self.modes.confidence)


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a look.

    Attributes:
        page: the arithmetic, as plain JSON values.
        in_force: the certificate, if it is promoted.
        files: the policy directory, by plain names.
    """

    page: Mapping[str, Any]
    in_force: InForce | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def promoted(self) -> bool:
        """Whether there is a certificate and a saving."""
        return self.in_force is not None


class Observed(NamedTuple):
    """Drawn requests with an outcome, in which the guide's output counts as right.

    Attributes:
        log: one row for each; their groups are the conversations.
        traces: the trace of each row.
        drawn_s: float64 (n,), when each was drawn, in seconds since 1970.
        uncached: float64 (n,), what the guide's call would have cost without a prompt cache, nano-USD; NaN: unknown.
        comparator: when two answers are the same.
        facts: about the calls; None in a simulation.
    """

    log: Log
    traces: tuple[str, ...]
    drawn_s: Floats
    uncached: Floats
    comparator: str
    facts: Facts | None = None


class Rows:
    """The rows of drawn requests.

    Args:
        rows: rows of the traces, with the other models' answers.
        drawn: the requests; those without an outcome, or without rows, are left out.
        models: of the ladder, the guide last.
        asked: the promise to make.
    """

    def __init__(self, rows: Iterable[Row], drawn: Sequence[Draw], models: Sequence[str], asked: Asked) -> None:
        whole = {draw.trace_id: draw for draw in drawn if draw.outcome == "complete"}
        episodes: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            draw = whole.get(row["episode_id"])
            if draw is not None and row["walk"] is None:
                placed = {"dataset": draw.cascade, "group": draw.trace_id, "split": None, "segment": None}
                episodes[draw.trace_id].append({**row, **placed})
        self._rows = [row for each in episodes.values() if len(each) >= len(models) for row in each]
        self._asked, self._drawn = asked, drawn
        self.models, self.builds = self._signs(ECHOED), self._signs(FINGERPRINT)

    def _signs(self, name: str) -> dict[str, tuple[str, ...]]:
        signs: dict[str, set[str]] = defaultdict(set)
        for row in self._rows:
            sign = replay_of(row).get(name)
            if isinstance(sign, str):
                signs[row["model"]].add(sign)
        return {model: tuple(sorted(each)) for model, each in sorted(signs.items())}

    def unjudged(self) -> float:
        """Return the share of the rows whose answers differ and that nobody has judged."""
        if not self._rows:
            return 0.0
        outputs = self._outputs()
        settled = {draw.trace_id for draw in self._drawn if draw.lost is not None}
        losses = {} if self._asked.reviews is None else self._asked.reviews.losses(BY_PEOPLE)
        waiting = [
            trace not in settled and any(pair.lost(losses) is None for pair in pairs.values())
            for (_, trace), pairs in outputs.differing.items()
        ]
        return sum(waiting) / len(waiting) if waiting else 0.0

    def _outputs(self) -> Compared:
        return compare(lambda: iter(self._rows), self._asked.modes.comparator)

    def observed(self) -> Observed:
        """Return all rows as a log. Raises UsageError if there are none."""
        if not self._rows:
            raise UsageError("no drawn request has an outcome.")
        dropped = Dropped()
        if self._asked.modes.promise == BY_PEOPLE:
            outputs = self._outputs()
            reads = reviewed(outputs.labelled, judgements(outputs, self._drawn, self._asked.reviews), dropped)
        else:
            labelled = labelled_by_reference(lambda: iter(self._rows), self._asked.modes.comparator)
            reads = reads_of(labelled.rows(dropped), dropped, labelled.truths)
        log, facts, _ = joined(reads)
        assert facts.truth is not None  # noqa: S101 - the guide's output is the truth
        draws = {draw.trace_id: draw for draw in self._drawn}
        last = {row["episode_id"]: uncached_nano_usd(row) for row in self._rows if row["step"] == row["horizon"]}
        uncached = np.array([last.get(trace) for trace in log.groups], dtype=np.float64)
        grouped = replace(log, groups=tuple([draws[trace].conversation for trace in log.groups]))
        drawn_s = np.array([draws[trace].drawn_s for trace in log.groups])
        return Observed(grouped, log.groups, drawn_s, uncached, facts.truth.comparator, facts)


def too_few(asked: Asked, look: int, level: float, fit_rows: int, conversations: int) -> str | None:
    """Return why a look cannot succeed, judged by the counts; None if it may succeed."""
    needed = needed_without_loss(asked.modes.risk, level)
    if conversations < needed:
        return (
            f"look {look} needs at least {needed} certifying conversations, none of them different from the guide's; "
            f"there are {conversations}"
        )
    return f"a fit needs at least {LEAST_FIT} rows, and there are {fit_rows}" if fit_rows < LEAST_FIT else None


class Part(NamedTuple):
    """Whole conversations.

    Attributes:
        log: their recorded turns.
        uncached: as in `Observed`.
        turns: all of their turns.
    """

    log: Log
    uncached: Floats
    turns: Turns

    @classmethod
    def of(cls, log: Log, uncached: Floats) -> Part:
        """Return conversations whose turns are all on record, one conversation after the other."""
        return cls(log, uncached, Turns(np.arange(log.n), np.unique(log.groups, return_inverse=True)[1]))


def look_at(rows: Rows, opened: Opened, asked: Asked) -> Found:
    """Look: choose on the other rows, certify on whole conversations, and see whether the policy saves money.

    Args:
        rows: the rows to fit and those that certify.
        opened: the look; no earlier one has used its conversations.
        asked: the request for the look.
    """
    page = {**_asked_for(asked, opened), "requests": len(opened.certifying)}
    try:
        observed = rows.observed()
        chooses, certifies = _divided(observed, opened.certifying)
        missing = int(np.count_nonzero(certifies.turns.row < 0))
        page |= {"comparator": observed.comparator, "fit_rows": chooses.log.n, "missing": missing}
        policy = _chosen(chooses, asked)
    except UsageError as error:
        return Found({**page, "why": f"no certificate: {error}"})
    page |= {"policy": "reference" if policy is None else policy.kind}
    if policy is None:
        return Found({**page, "why": "no certificate: no policy is cheaper than the guide"})
    if not certifies.log.priced.any():
        return Found({**page, "why": "no saving: no cost of a certifying row is known"})
    lengths = certifies.turns.lengths
    proof = Proof.best(asked.modes.risk, opened.level, lengths.size, chooses.turns.lengths)
    page |= {"losses_allowed": max(0, proof.allowed(lengths))}
    lenient = _lenient(policy, chooses, certifies, proof, asked)
    if lenient is None:
        return Found({**page, "why": "no certificate: too many requests are lost at the strictest threshold"})
    kappa, _, replay = lenient
    page |= {"losses": int(np.count_nonzero(replay.lost))} | ({"threshold": kappa} if np.isfinite(kappa) else {})
    page |= _saving(certifies, lenient, asked.modes.audit)
    if page["saving_usd"] <= 0:
        return Found({**page, "why": "no saving: with the cost of audits the policy is no cheaper than the guide"})
    directory = _directory(policy, observed, (chooses.log, certifies.log), asked, {**page, "threshold": kappa})
    (certificate,) = directory.certificates.values()
    held = InForce(
        *(certificate.id, opened.look, asked.modes.risk, opened.level, certificate.n, observed.comparator),
        *(rows.models, rows.builds, asked.modes.promise),
        longest=int(max(*chooses.turns.lengths, *lengths)),
    )
    return Found({**page, "certificate": certificate.id}, held, _files(directory))


def unseen(asked: Asked, opened: Opened, why: str) -> Found:
    """Return the outcome of a look that ends without reading a row."""
    return Found({**_asked_for(asked, opened), "why": why})


def _asked_for(asked: Asked, opened: Opened) -> dict[str, Any]:
    return {
        "look": opened.look,
        "promise": asked.modes.promise,
        "risk": asked.modes.risk,
        "confidence": asked.modes.confidence,
        "level": opened.level,
        "certifying_conversations": len({draw.conversation for draw in opened.certifying}),
    }


def _divided(observed: Observed, certifying: Sequence[Draw]) -> tuple[Part, Part]:
    """Return the conversations that choose, and those that certify. Raises UsageError if there are none."""
    log, place = observed.log, {name: row for row, name in enumerate(observed.traces)}
    ordered = sorted(certifying, key=lambda draw: (draw.conversation, draw.drawn_s))
    recorded = np.array([place[draw.trace_id] for draw in ordered if draw.trace_id in place], dtype=np.int64)
    in_turn = np.lexsort((observed.drawn_s, np.array(log.groups)))
    others = in_turn[~np.isin(in_turn, recorded)]
    if not recorded.size or not others.size:
        raise UsageError("none of the requests that fit, or of those that certify, has an outcome.")
    known = np.array([draw.trace_id in place for draw in ordered])
    of = np.unique([draw.conversation for draw in ordered], return_inverse=True)[1]
    turns = Turns(np.where(known, np.cumsum(known) - 1, -1), of)
    chooses = Part.of(log.take(others), observed.uncached[others])
    return chooses, Part(log.take(recorded), observed.uncached[recorded], turns)


def _chosen(part: Part, asked: Asked) -> Policy | None:
    """Return the policy that saves most where it keeps the promise on these conversations; None if none saves."""
    several = part.turns.lengths.size > 1
    learns = divided(part.log, LEARNS, 0).learns if several else part.log.take(np.zeros(0, dtype=np.int64))
    best, most = None, 0.0
    for member in menu(part.log, learns, asked.promise, CHOOSES):
        rows = np.arange(part.log.n) if member.rows is None else member.rows
        tries, policy = Part.of(part.log.take(rows), part.uncached[rows]), member.make()
        lengths = tries.turns.lengths
        lenient = _lenient(policy, tries, tries, Proof.best(asked.modes.risk, CHOOSES, lengths.size, lengths), asked)
        if lenient is not None and tries.log.priced.any():
            saving = _saving(tries, lenient, asked.modes.audit)["saving_usd"]
            best, most = (policy, saving) if saving > most else (best, most)
    return best


def _lenient(policy: Policy, others: Part, part: Part, proof: Proof, asked: Asked) -> Lenient | None:
    """Return the most lenient threshold of other conversations that passes on a part."""
    served = Served.of(policy, part.log, asked.promise)
    return most_lenient(proof, part.turns, grid(policy.walks(others.log).reach), served.at)


@dataclass(frozen=True, slots=True)
class Served:
    """What a policy loses and spends on each request at any threshold.

    Attributes:
        reach: float64 (n, k), the highest threshold at which each node is bought.
        cost: int64 (n, k), of the nodes in the order of purchase, nano-USD.
        lost: bool (n, k), whether a walk that ends there is lost.
        guide: int64 (n,), the place of the guide in the order of purchase.
    """

    reach: Floats
    cost: Ints
    lost: Bools
    guide: Ints

    @classmethod
    def of(cls, policy: Policy, log: Log, promise: Promise) -> Served:
        """Return what a policy does on requests whose last node is the guide."""
        walked = policy.walks(log)
        last, order = walked.log.width - 1, None if policy.nodes is not None else policy.scores(log).order
        guide = np.full(log.n, last) if order is None else np.argmax(order == last, axis=1)
        spent = np.maximum(walked.log.cost_nano_usd, 0).cumsum(axis=1)
        return cls(walked.reach, spent, promise.rules.at_stop(walked) > 0, guide)

    def at(self, kappa: float) -> Outcome:
        """Return the outcome of each request at a threshold."""
        rows, stop = np.arange(self.guide.size), np.count_nonzero(self.reach >= kappa, axis=1) - 1
        return Outcome(self.lost[rows, stop] | (stop < 0), self.cost[rows, stop], self.guide <= stop)


def _saving(part: Part, lenient: Lenient, audit: float) -> dict[str, float]:
    """Return what the replay costs and saves a request, after the cost of audits.

    The first turn that the guide answers after a kept one pays the prompt in full: its cache lacks that turn.
    """
    log, turns, (_, at, replay) = part.log, part.turns, lenient
    known = (turns.row >= 0) & log.priced[turns.row]
    row, since = turns.row[known], replay.since[known]
    guide, every = log.cost_nano_usd[row, -1].astype(np.float64), log.cost_nano_usd[row].sum(axis=1)
    decided = at.cost[row] + audit * (every - at.cost[row])
    uncached = np.fmax(guide, part.uncached[row])
    paid = np.where(since <= 0, decided, np.where(since == 1, uncached, guide))
    return {
        "served_by_cheaper": float(np.mean((since == 0) & ~at.asks_last[row])),
        "guide_usd": float(guide.mean()) / 1e9,
        "saving_usd": float((guide - paid).mean()) / 1e9,
        "audit": audit,
    }


def _directory(
    policy: Policy, observed: Observed, logs: tuple[Log, Log], asked: Asked, page: Mapping[str, Any]
) -> PolicyDirectory:
    """Return the policy with its certificate; `logs` has the rows that chose it and those that certify."""
    (chose, certify), facts, truth, made = logs, observed.facts, None, {}
    if facts is not None:
        bought = certify.only(range(certify.width) if policy.nodes is None else policy.nodes)
        cascade = None if asked.config is None else made_for(asked.config)
        truth, made = facts.truth, dict(certified_for(certify, bought, facts, cascade))
    requests = Requests(fitted=hashed(set(chose.ids) - set(certify.ids)), certified=hashed(certify.ids))
    bare = PolicyDirectory(observed.log.nodes, policy, asked.promise, {}, requests)
    certificate = Certificate(
        *(asked.promise, page["threshold"], page["certifying_conversations"], float(page["losses"])),
        *(sha256_of(certify), bare.policy_sha256, datetime.now(UTC).date().isoformat()),
        level=page["level"],
        attempts=page["look"],
        unit="group",
        reference=None if truth is None else truth.reference,
        comparator=observed.comparator,
        made_for=made,
        assumptions=(*ASSUMPTIONS, *_HOW),
    )
    return bare.certified(certificate)


def _files(directory: PolicyDirectory) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="cascade-policy-") as folder:
        directory.write(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
