"""A look: fits a policy on the fitting rows, certifies it on the certifying rows, and computes the saving.

It is a pure function of rows and drawn requests. A row without an outcome counts as a loss at every threshold. No mean
of costs includes such a row, or a row of unknown cost.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cascade.calibration.scores import sample_of
from cascade.config import CascadeConfig
from cascade.conformal.binomial import most_losses
from cascade.conformal.served import PathPoint
from cascade.conformal.split import needed_n
from cascade.episodes.schema import COLUMNS, ECHOED, FINGERPRINT, SCHEMA_VERSION, Dropped, chat_of, replay_of
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.episodes.truth import labelled_by_reference
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee, get
from cascade.modes.draws import look_level
from cascade.modes.histories import NAMED, continued, histories, shuffled
from cascade.modes.people import judged, losses_of
from cascade.modes.plan import LEAST_FIT
from cascade.modes.state import Draw, InForce, Opened, pair_name
from cascade.policies.artifact import write
from cascade.review.pairs import compare
from cascade.review.reviews import Reviews
from cascade.training.dividing import Divided
from cascade.training.fitting import FitSettings, Fitted, fit_parts

Row = Mapping[str, Any]


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

    def promise(self, look: int) -> Guarantee:
        """Return the promise that a look may certify."""
        return Guarantee(self.guarantee, self.alpha, look_level(self.delta, look))


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
        drawn: the requests; those without an outcome, or without rows, are missing.
        models: of the ladder, the guide last.
        asked: the promise to make.
    """

    def __init__(self, rows: Iterable[Row], drawn: Sequence[Draw], models: Sequence[str], asked: Asked) -> None:
        whole = {one.trace_id: one for one in drawn if one.outcome == "complete"}
        held: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            one = whole.get(row["episode_id"])
            if one is not None and row["walk"] is None:
                held[row["episode_id"]].append({**row, "dataset": one.cascade, "split": None, "segment": None})
        self.missing = frozenset(one.trace_id for one in drawn if len(held.get(one.trace_id, ())) < len(models))
        complete = {name: some for name, some in held.items() if name not in self.missing}
        self.conversations = _conversations(drawn, complete, models[-1], asked)
        self._rows = [{**row, "group": self.conversations[name]} for name, some in complete.items() for row in some]
        self._rows += [  # an incomplete record, which counts as a loss
            dict.fromkeys(COLUMNS)
            | {"episode_id": one.trace_id, "dataset": one.cascade, "group": self.conversations[one.trace_id]}
            | {"question": f"missing: {one.trace_id}", "step": 1, "horizon": len(models), "source": models[0]}
            | {"model": models[0], "text": "", "signals": {}, "schema_version": SCHEMA_VERSION}
            for one in drawn
            if one.trace_id in self.missing
        ]
        self._asked, self._drawn = asked, drawn
        self.models, self.builds = self._signs(ECHOED), self._signs(FINGERPRINT)

    def _signs(self, name: str) -> dict[str, tuple[str, ...]]:
        found: dict[str, set[str]] = defaultdict(set)
        for row in self._rows:
            said = replay_of(row).get(name)
            if isinstance(said, str):
                found[row["model"]].add(said)
        return {model: tuple(sorted(said)) for model, said in sorted(found.items())}

    def one_of_each(self, drawn: Iterable[Draw]) -> list[Draw]:
        """Return one row of each conversation, drawn by its random name alone.

        Were it the first row, and every request drawn, no later turn would certify, though the policy serves them.
        """
        found: dict[str, Draw] = {}
        for one in sorted(drawn, key=lambda one: shuffled(one.trace_id)):
            found.setdefault(self.conversations[one.trace_id], one)
        return list(found.values())

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
        """Return all rows as a table, and the comparator. Raises UsageError if there are none.

        A question that two conversations ask appears twice: each is a draw from the traffic that the promise covers.
        """
        table, comparator = self._judged()
        each = [f"{group}\x1f{question}" for group, question in zip(table.groups, table.questions, strict=True)]
        names = [hashlib.sha256(one.encode("utf-8", "replace")).hexdigest()[:16] for one in each]
        return replace(table, questions=tuple(names)), comparator

    def _judged(self) -> tuple[EpisodeTable, str]:
        if get(self._asked.guarantee).reviewed:
            compared = compare(lambda: iter(self._rows), self._asked.comparator)
            return judged(compared, self._drawn, self._asked.reviews), compared.comparator
        found = labelled_by_reference(lambda: iter(self._rows), self._asked.comparator)
        dropped = Dropped()
        table = tables_from_rows(found.rows(dropped), dropped)[0]
        truth = found.truths[table.dataset]
        return replace(table, truth=truth), truth.comparator


def _conversations(
    drawn: Sequence[Draw], complete: Mapping[str, list[dict[str, Any]]], guide: str, asked: Asked
) -> dict[str, str]:
    """Return the conversation of each draw, by its trace; unnamed later turns join the first turn they continue."""
    modes = None if asked.config is None else asked.config.modes
    examples = 0 if modes is None else modes.examples
    ended, begun = {}, {}
    for one in drawn:
        said = next((row for row in complete.get(one.trace_id, ()) if row["model"] == guide), {})
        request = chat_of(said) if said else None
        if request is None or one.conversation.startswith(NAMED):
            continue
        digests = histories(request.messages, None, examples)
        if digests:
            begun[one.conversation] = digests[0]
        elif said["text"] is not None:
            ended[one.conversation] = histories([*request.messages, json.loads(said["text"])], None, examples)[-1]
    joined = continued(ended, begun)
    return {one.trace_id: joined.get(one.conversation, one.conversation) for one in drawn}


def too_few(asked: Asked, look: int, fit: int, conversations: int) -> str | None:
    """Return why a look cannot succeed, judged by the counts; None if it may succeed."""
    needed = needed_n(asked.alpha, look_level(asked.delta, look))
    if conversations < needed:
        return (
            f"look {look} needs at least {needed} certifying conversations, none of them different from the guide's; "
            f"there are {conversations}"
        )
    return f"a fit needs at least {LEAST_FIT} rows, and there are {fit}" if fit < LEAST_FIT else None


def look_at(rows: Rows, certifying: Sequence[Draw], asked: Asked, look: int) -> Found:
    """Look: fit on the fitting rows, certify on the others, and see whether the policy saves money.

    Args:
        rows: all drawn rows, including those that certify.
        certifying: the certifying rows, which no earlier look has used.
        asked: the request for the look.
        look: its number k, which determines how much of delta it may spend.
    """
    promise = asked.promise(look)
    table, comparator = rows.table()
    wanted = {one.trace_id for one in rows.one_of_each(certifying)}
    groups = {rows.conversations[one.trace_id] for one in certifying}
    is_missing = np.array([name in rows.missing for name in table.ids])
    certify = np.array([name in wanted for name in table.ids])
    fits = np.array([group not in groups for group in table.groups]) & ~is_missing
    parts = Divided(table.take(np.flatnonzero(fits)).costed(), table.take(np.flatnonzero(certify)), 0)
    page: dict[str, Any] = {
        **_asked_for(asked, look),
        "comparator": comparator,
        "fit_rows": parts.training.n,
        "certifying_conversations": parts.calibration.n,
        "missing": int(np.count_nonzero(is_missing & certify)),
        "losses_allowed": most_losses(parts.calibration.n, asked.alpha, look_level(asked.delta, look)),
    }
    try:
        fitted = fit_parts(parts, promise, FitSettings(config=asked.config))
    except (NotCertifiedError, UsageError) as error:
        return Found({**page, "why": f"no certificate: {error}"})
    page |= {"policy": fitted.choice.chosen.name}
    if fitted.refused is not None or fitted.policy.method == "reference":
        why = fitted.refused or "no policy that is cheaper than the guide can be certified"
        return Found({**page, "why": f"no certificate: {why}"})
    if not parts.calibration.priced.any():
        return Found({**page, "why": "no saving: no cost of a certifying row is known"})
    return _saving(fitted, parts, page, asked, rows)


def unseen(asked: Asked, opened: Opened, why: str) -> dict[str, Any]:
    """Return the page of a look that ends without reading a row."""
    return {
        **_asked_for(asked, opened.look),
        "certifying_conversations": len({one.conversation for one in opened.certifying}),
        "why": why,
    }


def _asked_for(asked: Asked, look: int) -> dict[str, Any]:
    return {
        "look": look,
        "guarantee": asked.guarantee,
        "alpha": asked.alpha,
        "delta": asked.delta,
        "delta_of_this_look": look_level(asked.delta, look),
    }


def _saving(fitted: Fitted, parts: Divided, page: dict[str, Any], asked: Asked, rows: Rows) -> Found:
    """Put a certified policy in force if it saves money on the certifying rows, after the cost of audits."""
    segment, table = fitted.calibrated.segments[0], parts.calibration
    certificate, kappa = segment.certificate, segment.found.kappa
    rules: Any = asked.promise(page["look"]).rules
    served = rules.served(sample_of(table, fitted.policy), kappa=kappa).at(PathPoint(kappa))
    guide, every = table.arrays.cost[:, -1], table.arrays.cost.sum(axis=1)
    saving = float(np.mean((guide - served.cost - asked.audit * (every - served.cost))[table.priced]))
    page |= {
        "losses": segment.found.misses,
        "threshold": kappa if np.isfinite(kappa) else None,
        "served_by_cheaper": float(np.mean(~served.asks_last[table.priced])),
        "guide_usd": float(guide[table.priced].mean()) / 1e9,
        "saving_usd": saving / 1e9,
        "audit": asked.audit,
        "certificate": certificate.calibration_id,
    }
    if saving <= 0:
        return Found({**page, "why": "no saving: with the cost of audits the policy is no cheaper than the guide"})
    held = InForce(
        certificate.calibration_id,
        page["look"],
        asked.alpha,
        page["delta_of_this_look"],
        certificate.n,
        page["comparator"],
        rows.models,
        rows.builds,
        asked.guarantee,
    )
    return Found(page, held, _files(fitted))


def _files(fitted: Fitted) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="cascade-policy-") as folder:
        write(folder, fitted.artifact)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
