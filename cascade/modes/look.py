"""A look: fits a policy on the fitting rows, certifies it on whole conversations, and computes the saving.

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
from typing import Any

import numpy as np

from cascade.calibration.calibrating import Chosen, certified
from cascade.calibration.fingerprint import holds_for
from cascade.calibration.scores import sample_of, taken
from cascade.config import CascadeConfig
from cascade.conformal.arrays import Ints
from cascade.conformal.served import Outcome, PathPoint
from cascade.conformal.split import needed_n
from cascade.episodes.schema import ECHOED, FINGERPRINT, Dropped, replay_of
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.episodes.truth import labelled_by_reference
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee, get
from cascade.guarantees.questions import Found as Threshold
from cascade.guarantees.questions import everywhere
from cascade.modes.certify import Proof, Replay, Turns, grid, most_lenient
from cascade.modes.people import judged, losses_of
from cascade.modes.plan import LEAST_FIT
from cascade.modes.state import Draw, InForce, Opened, pair_name
from cascade.policies import model_file
from cascade.policies.artifact import MODEL_FILE, PolicyArtifact, Seen, write
from cascade.policies.learned import LearnedPolicy
from cascade.review.pairs import compare
from cascade.review.reviews import Reviews
from cascade.training.dividing import Divided
from cascade.training.fitting import check_parts, choice_on, objective_of

Row = Mapping[str, Any]
_HOW = (
    "The policy and its thresholds were chosen without these conversations.",
    "Whole conversations were drawn, and replayed as they are served: after a kept turn the guide answers the rest.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The request for a look.

    Attributes:
        alpha, delta: those of the certificate; delta over all looks.
        audit: the share of requests that will be run to the end while the policy serves.
        comparator: when two answers are the same; None for the default of the requests' form.
        config: the cascade that will serve.
        guarantee: the kind of promise.
        reviews: people's judgements, if the promise needs them; None if there are none.
    """

    alpha: float
    delta: float
    audit: float
    comparator: str | None
    config: CascadeConfig | None
    guarantee: str = "agreement"
    reviews: Reviews | None = None

    def promise(self, level: float) -> Guarantee:
        """Return the promise that a look may certify with its part of delta."""
        return Guarantee(self.guarantee, self.alpha, level)


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


class Rows:
    """Drawn requests as tables, in which the guide's output counts as right.

    Args:
        rows: rows of the traces, with the other models' answers.
        drawn: the requests; those without an outcome, or without rows, are missing in the table.
        models: of the ladder, the guide last.
        asked: the promise to make.
    """

    def __init__(self, rows: Iterable[Row], drawn: Sequence[Draw], models: Sequence[str], asked: Asked) -> None:
        whole = {one.trace_id: one for one in drawn if one.outcome == "complete"}
        held: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            one = whole.get(row["episode_id"])
            if one is not None and row["walk"] is None:
                placed = {"dataset": one.cascade, "group": one.conversation, "split": None, "segment": None}
                held[row["episode_id"]].append({**row, **placed})
        self._rows = [row for some in held.values() if len(some) >= len(models) for row in some]
        self._asked, self._drawn = asked, drawn
        self.models, self.builds = self._signs(ECHOED), self._signs(FINGERPRINT)

    def _signs(self, name: str) -> dict[str, tuple[str, ...]]:
        found: dict[str, set[str]] = defaultdict(set)
        for row in self._rows:
            said = replay_of(row).get(name)
            if isinstance(said, str):
                found[row["model"]].add(said)
        return {model: tuple(sorted(said)) for model, said in sorted(found.items())}

    def unjudged(self) -> float:
        """Return the share of the rows whose answers differ and that nobody has judged."""
        known, told = losses_of(self._asked.reviews), {one.trace_id for one in self._drawn if one.lost is not None}
        episodes = compare(lambda: iter(self._rows), self._asked.comparator).episodes
        waiting = [
            trace_id not in told and any(pair_name(*pair.id) not in known for pair in episode.pairs())
            for (_, trace_id), episode in episodes.items()
        ]
        return sum(waiting) / len(waiting) if waiting else 0.0

    def table(self) -> tuple[EpisodeTable, str]:
        """Return all rows as a table, and the comparator. Raises UsageError if there are none."""
        if not self._rows:
            raise UsageError("no drawn request has an outcome.")
        if get(self._asked.guarantee).reviewed:
            compared = compare(lambda: iter(self._rows), self._asked.comparator)
            return judged(compared, self._drawn, self._asked.reviews), compared.comparator
        found = labelled_by_reference(lambda: iter(self._rows), self._asked.comparator)
        dropped = Dropped()
        table = tables_from_rows(found.rows(dropped), dropped)[0]
        truth = found.truths[table.dataset]
        return replace(table, truth=truth), truth.comparator


def too_few(asked: Asked, look: int, level: float, fit: int, conversations: int) -> str | None:
    """Return why a look cannot succeed, judged by the counts; None if it may succeed."""
    needed = needed_n(asked.alpha, level)
    if conversations < needed:
        return (
            f"look {look} needs at least {needed} certifying conversations, none of them different from the guide's; "
            f"there are {conversations}"
        )
    return f"a fit needs at least {LEAST_FIT} rows, and there are {fit}" if fit < LEAST_FIT else None


def look_at(rows: Rows, certifying: Sequence[Draw], asked: Asked, look: int, level: float) -> Found:
    """Look: fit on the other rows, certify on whole conversations, and see whether the policy saves money.

    Args:
        rows: the rows to fit and those that certify.
        certifying: the turns of the certifying conversations, which no earlier look has used.
        asked: the request for the look.
        look: its number.
        level: the part of delta that it may spend.
    """
    promise = asked.promise(level)
    ordered = sorted(certifying, key=lambda one: (one.conversation, one.drawn_s))
    names, of = np.unique([one.conversation for one in ordered], return_inverse=True)
    page: dict[str, Any] = {
        **_asked_for(asked, look, level),
        "certifying_conversations": names.size,
        "requests": len(ordered),
    }
    try:
        table, comparator = rows.table()
        parts, turns = _divided(table, ordered, of)
        page |= {
            "comparator": comparator,
            "fit_rows": parts.training.n,
            "missing": int(np.count_nonzero(turns.row < 0)),
        }
        check_parts(parts, promise, asked.config)
        promise.rules.check_truth(table)
        choice = choice_on(parts.training, objective_of(parts, promise))
    except UsageError as error:
        return Found({**page, "why": f"no certificate: {error}"})
    policy = choice.chosen.whole(parts.training)
    page |= {"policy": choice.chosen.name}
    if policy.method == "reference":
        return Found({**page, "why": "no certificate: no policy is cheaper than the guide"})
    if not parts.calibration.priced.any():
        return Found({**page, "why": "no saving: no cost of a certifying row is known"})
    lengths = np.unique(parts.training.groups, return_counts=True)[1]
    proof = Proof.best(asked.alpha, level, turns.lengths.size, lengths)
    page |= {"losses_allowed": max(0, proof.allowed(turns.lengths))}
    served = promise.rules.served(sample_of(parts.calibration, policy))  # type: ignore[attr-defined]
    thresholds = grid(sample_of(parts.training, policy).levels.reach)
    found = most_lenient(proof, turns, thresholds, lambda kappa: served.at(PathPoint(kappa)))
    if found is None:
        return Found({**page, "why": "no certificate: too many requests are lost at the strictest threshold"})
    kappa, outcome, replay = found
    page |= {"losses": int(np.count_nonzero(replay.lost))} | ({"threshold": kappa} if np.isfinite(kappa) else {})
    page |= _saving(parts.calibration, turns, outcome, replay, asked)
    if page["saving_usd"] <= 0:
        return Found({**page, "why": "no saving: with the cost of audits the policy is no cheaper than the guide"})
    threshold = Threshold(None, everywhere(parts.calibration.n), turns.lengths.size, kappa, misses=page["losses"])
    artifact = _artifact(
        policy, choice.figures(parts.training.n, parts.calibration.n), parts, threshold, promise, asked
    )
    certificate = artifact.certificates[0].calibration_id
    held = InForce(
        *(certificate, look, asked.alpha, level, turns.lengths.size, comparator, rows.models, rows.builds),
        asked.guarantee,
        longest=int(max(*lengths, *turns.lengths)),
    )
    return Found({**page, "certificate": certificate}, held, _files(artifact))


def _divided(table: EpisodeTable, ordered: Sequence[Draw], of: Ints) -> tuple[Divided, Turns]:
    """Return the rows to fit and those that certify, and the turns that the latter record. Raises UsageError."""
    place = {name: row for row, name in enumerate(table.ids)}
    recorded = np.array([place[one.trace_id] for one in ordered if one.trace_id in place], dtype=np.int64)
    fits = np.setdiff1d(np.arange(table.n), recorded)
    if not recorded.size or not fits.size:
        raise UsageError("none of the requests that fit, or of those that certify, has an outcome.")
    known = np.array([one.trace_id in place for one in ordered])
    row = np.where(known, np.cumsum(known) - 1, -1)
    return Divided(table.take(fits).costed(), table.take(recorded), 0), Turns(row, of)


def unseen(asked: Asked, opened: Opened, why: str) -> dict[str, Any]:
    """Return the page of a look that ends without reading a row."""
    return {
        **_asked_for(asked, opened.look, opened.level),
        "certifying_conversations": len({one.conversation for one in opened.certifying}),
        "why": why,
    }


def _asked_for(asked: Asked, look: int, level: float) -> dict[str, Any]:
    return {
        "look": look,
        "guarantee": asked.guarantee,
        "alpha": asked.alpha,
        "delta": asked.delta,
        "delta_of_this_look": level,
    }


def _saving(table: EpisodeTable, turns: Turns, at: Outcome, replay: Replay, asked: Asked) -> dict[str, float]:
    """Return what the replay costs and saves a request, after the cost of audits.

    The first turn that the guide answers after a kept one pays the prompt in full: its cache lacks that turn.
    """
    known = (turns.row >= 0) & table.priced[turns.row]
    row, since = turns.row[known], replay.since[known]
    guide, every = table.arrays.cost[row, -1].astype(np.float64), table.arrays.cost[row].sum(axis=1)
    uncached = guide if table.uncached is None else np.fmax(guide, table.uncached[row, -1])
    decided = at.cost[row] + asked.audit * (every - at.cost[row])
    paid = np.where(since <= 0, decided, np.where(since == 1, uncached, guide))
    return {
        "served_by_cheaper": float(np.mean((since == 0) & ~at.asks_last[row])),
        "guide_usd": float(guide.mean()) / 1e9,
        "saving_usd": float((guide - paid).mean()) / 1e9,
        "audit": asked.audit,
    }


def _artifact(
    policy: LearnedPolicy, told: Mapping[str, Any], parts: Divided, found: Threshold, promise: Guarantee, asked: Asked
) -> PolicyArtifact:
    """Return the policy with its certificate."""
    numbers, table = model_file.dumps(policy), parts.calibration
    settings = model_file.settings(policy, numbers, told)
    seen, files = Seen(tuple(sorted(set(parts.training.questions)))), {MODEL_FILE: numbers}
    made = holds_for(table, asked.config, PolicyArtifact(settings, seen, files=files), walked=taken(policy, table))
    dates = datetime.now(UTC).date().isoformat(), None
    return replace(certified([found], Chosen(table, seen), settings, promise, made, dates, _HOW), files=files)


def _files(artifact: PolicyArtifact) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="cascade-policy-") as folder:
        write(folder, artifact)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
