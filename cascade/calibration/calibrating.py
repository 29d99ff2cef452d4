"""Make a policy directory with certificates from a policy, a log and the guarantee that a user asks for.

The order of things is what makes the guarantee true: questions that the policy has seen are refused, each question
counts once, a path for the single answer is ordered on questions that are then left out, and the rest is looked at
once, by one rule that was fixed before (`guarantees`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cascade.calibration.fingerprint import MadeFor, holds_for, refuse_other_cascade, unknown
from cascade.calibration.samples import absent, among, as_promised, data_sha256, joined, once, one_a_group, selected
from cascade.calibration.scores import (
    Realised,
    Sample,
    check_fits,
    play_everything,
    play_found,
    priced_said,
    realised,
    reference_cost,
    sample_of,
    taken,
)
from cascade.conformal.arrays import hopeless
from cascade.conformal.served import PathPoint
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import expiry, make
from cascade.guarantees.questions import Found, Truth, check_told, untold
from cascade.money import dollars
from cascade.policies.artifact import PolicyArtifact, Seen
from cascade.policies.base import Policy
from cascade.text import counted
from cascade.types import Certificate

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.section import Section

_SELECTION = 0.3
"""The share of the questions that order a path, where one is needed and there is none."""
_NAMED = 5
"""Questions and groups that a message names before it only counts."""
_APART = ("The policy and its settings were chosen without the calibration questions.",)


class SegmentResult(NamedTuple):
    """The result for one segment of questions, or for all questions.

    Attributes:
        segment: its name; None for all questions, or for all segments without a threshold of their own.
        rows: calibration questions of the segment; n of the certificate may be less (`solvable` counts those alone).
        found: the threshold and how it came about.
        certificate: the promise.
        realised: what the policy does on those questions at the threshold; None without questions.
    """

    segment: str | None
    rows: int
    found: Found
    certificate: Certificate
    realised: Realised | None


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibrated policy and how it came about.

    Attributes:
        artifact: to be written with `policies.artifact.write`.
        guarantee: what was asked for.
        segments: the results, one entry for each certificate.
        n: calibration questions, one of each group.
        repeated: episodes left out because their question is there already.
        selection: questions that ordered the path, and were left out.
        realised: what the policy does on the calibration questions, each at its threshold.
        everything: the outcomes on them of keeping every answer of every step.
        reference_cost_nano_usd: the mean cost of the guide alone, or of a ladder's last model, where it is on record.
        notes: notes to print with the result.
    """

    artifact: PolicyArtifact
    guarantee: Guarantee
    segments: tuple[SegmentResult, ...]
    n: int
    selection: int
    realised: Realised
    everything: Realised
    reference_cost_nano_usd: float | None
    repeated: int = 0
    notes: tuple[str, ...] = ()


def calibrate_policy(
    tables: Sequence[EpisodeTable],
    policy: Policy,
    section: Section | Mapping[str, Any],
    guarantee: Guarantee,
    *,
    config: CascadeConfig | None = None,
    seed: int = 0,
    expires_days: int | None = None,
    selection_share: float = _SELECTION,
    held: PolicyArtifact | None = None,
    allow_everything: bool = False,
    today: date | None = None,
    unknown: int = 0,
) -> Calibrated:
    """Calibrate a policy on a log, and certify its promise.

    Args:
        tables: the log; several data sets of one cascade are taken as one.
        policy: what scores; its own threshold is replaced.
        section: the settings that `policy` was made from, for `policy.json`.
        guarantee: what is asked for.
        config: the cascade that will serve, for `Certificate.made_for`; without it only what the log says is known.
        seed: draws the questions that order a path.
        expires_days: how long the certificates hold; without end by default.
        selection_share: the share of questions that order a path, where the guarantee needs one and there is none.
        held: what the policy directory held before: the questions that made the policy, which are refused, and the
            path, which is used again where it was ordered for this promise. Else those that ordered it order another
            if the log has them all; if not, it is tested as it is.
        allow_everything: accept that everything is kept where the questions are too few for a threshold.
        today: the day of the certificates, UTC; the same day, data and seed give the same bytes.
        unknown: questions that were left out of the tables already (`guarantees.base.Kind.looked_at`).

    Guarantee: what `guarantees.certificate.statement` says of each certificate, if the calibration questions and fresh
    ones are exchangeable (with delta: independent draws of one law).

    Raises:
        UsageError: the log cannot calibrate this policy: it was seen, is of another cascade, or lacks what is needed.
        NotCertifiedError: the questions are too few, or the policy misses too many at every threshold; `needed_n` says
            how many would do.

    Reference: `conformal.calibrate`, `conformal.risk` and `conformal.ltt`, by kind; `design/certificates.md`.
    """
    settings = dict(section) if isinstance(section, Mapping) else section.model_dump(mode="json")
    _refuse_place(settings)
    before = held or PolicyArtifact(settings)
    rows = _rows(joined(tables), policy, guarantee, before, config)
    chosen = _chosen(rows.table, policy, guarantee, before, Draw(selection_share, seed))
    groups = one_a_group(rows.table, separate=guarantee.separate, seed=seed).n
    sample = sample_of(chosen.table, policy)
    found = guarantee.rules.calibrate(sample, guarantee, chosen.path)
    if guarantee.single:
        check_told(found, chosen.table)
    _demand(found, chosen, guarantee, groups, allow_everything=allow_everything)
    day = today or datetime.now(UTC).date()
    dates = day.isoformat(), expiry(day, expires_days)
    made = holds_for(chosen.table, config, guarantee, before, walked=taken(policy, chosen.table))
    unknown = unknown or rows.unknown
    said = (left_out_said(unknown, guarantee),) if unknown else ()
    artifact = certified(found, chosen, settings, guarantee, made, dates, (*_APART, *said))
    return replace(
        report(sample, found, replace(artifact, files=before.files), guarantee),
        repeated=rows.repeated,
        notes=(
            *said,
            *priced_said(chosen.table),
            *(() if chosen.table.own is None else (chosen.table.own.said,)),
            *chosen.notes,
            *_pooled(found, chosen.table, guarantee),
            *_guessed(sample, guarantee),
        ),
    )


def certifying(
    tables: Sequence[EpisodeTable], policy: Policy, guarantee: Guarantee, held: PolicyArtifact | None, seed: int = 0
) -> Chosen:
    """Return the questions from which `calibrate_policy` would certify, and the path that it would test.

    Raises:
        UsageError: as `calibrate_policy` does.
    """
    before = held or PolicyArtifact({})
    rows = _rows(joined(tables), policy, guarantee, before, None)
    return _chosen(rows.table, policy, guarantee, before, Draw(_SELECTION, seed))


def _chosen(table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, draw: Draw) -> Chosen:
    """Return one question of each group, and a path, which may be ordered on all questions of its groups."""
    chosen = choose(table, policy, guarantee, before, draw)
    return chosen._replace(table=one_a_group(chosen.table, separate=guarantee.separate, seed=draw.seed or 0))


def _pooled(found: Sequence[Found], table: EpisodeTable, guarantee: Guarantee) -> Iterator[str]:
    """Yield that no segment has a promise of its own, where several segments were to have one."""
    many = len(set(table.segments))
    if guarantee.separate and many > 1 and all(one.segment is None for one in found):
        yield f"no segment has enough questions for a promise of its own: {many} segments are pooled"


def _guessed(sample: Sample, guarantee: Guarantee) -> Iterator[str]:
    """Yield that a figure beside the certificate is a guess. A promise on the single answer would have been refused."""
    many = 0 if guarantee.single else untold(sample)
    if many:
        yield (
            f"votes decide which one answer is served on {many} questions, and which of their answers are the same is "
            "not on record: how often it is wrong is a guess"
        )


def certified(
    found: Sequence[Found],
    chosen: Chosen,
    settings: Mapping[str, Any],
    guarantee: Guarantee,
    made: MadeFor,
    dates: tuple[str, str | None],
    how: tuple[str, ...] = _APART,
) -> PolicyArtifact:
    """Return the policy with the certificates of what was found.

    Args:
        found: the thresholds, one a certificate.
        chosen: the questions that they come from, and those that made the policy.
        settings: the policy's, for `policy.json`.
        guarantee: what the certificates promise.
        made: what they hold for.
        dates: their first day and their last.
        how: what the promise rests on by the way the policy was made, a sentence each.
    """
    table, questions = chosen.table, tuple(sorted(set(chosen.table.questions)))
    bare = PolicyArtifact(settings, chosen.seen, chosen.path, chosen.ordered_for, questions=questions, asked=guarantee)
    data = data_sha256(table, separate=guarantee.separate)
    frame = _Frame(
        guarantee, data, bare.policy_sha256, made, *dates, _drawn(table), len(set(table.segments)), how, table.truth
    )
    signed = tuple([_certificate(one, frame) for one in found])
    return replace(bare, certificates=signed, unanswered=int(np.count_nonzero(hopeless(table.arrays))))


class _Rows(NamedTuple):
    """A table with one row for each question, and the number of episodes left out for it."""

    table: EpisodeTable
    repeated: int
    unknown: int = 0


def _rows(
    table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, config: CascadeConfig | None
) -> _Rows:
    """Return the questions that a promise can be made from, or refuse."""
    # Questions that ordered a path are set aside where a path is needed, and refused where none is.
    guarantee.rules.check_truth(table)
    made = frozenset(before.seen.training) if guarantee.rules.tests_a_path else before.seen.all
    _refuse(table, policy, made, before, config)
    whole = as_promised(table, guarantee)
    table = looked_at(whole, guarantee)
    rows = once(table, separate=guarantee.separate)
    return _Rows(table.take(rows), table.n - rows.size, left_out(whole, guarantee))


def left_out(table: EpisodeTable, guarantee: Guarantee) -> int:
    """Return how many questions a calibration does not look at: the log lacks what the promise is about."""
    return len(set(table.questions) - set(looked_at(table, guarantee).questions))


def left_out_said(many: int, guarantee: Guarantee) -> str:
    """Return the sentence in a certificate about the questions that were left out."""
    be = "is" if many == 1 else "are"
    return f"{counted(many, 'question')} of the log {be} left out, because {guarantee.rules.left_out}."


def looked_at(table: EpisodeTable, guarantee: Guarantee) -> EpisodeTable:
    """Return the questions that a calibration reads."""
    rows = guarantee.rules.looked_at(table)
    return table if rows.all() else table.take(rows)


def _refuse_place(settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a policy named by its path: the directory to be written could not be read again."""
    if ":" in str(settings.get("kind")):
        from cascade.policies.config import HELD  # what a fit learns has a kind of its own

        try:
            HELD.class_of(settings["kind"])
        except ValueError as error:
            raise UsageError(f"This policy cannot be certified: {error}.") from None


def _refuse(
    table: EpisodeTable, policy: Policy, made: frozenset[str], before: PolicyArtifact, config: CascadeConfig | None
) -> None:
    """Refuse a policy that cannot be calibrated, and questions or another cascade’s that may not calibrate it."""
    if policy.depends_on_kappa:
        raise UsageError(
            "This policy's scores depend on its threshold (keep: judged serves what was judged right at that "
            "threshold), so no "
            "other threshold can be set on them. Use keep: both, which keeps every answer of every step."
        )
    check_fits(policy, table)
    logged = set(table.questions)
    overlap = sorted(set(table.take(among(table, made)).questions))
    if overlap:
        certify = len(set(table.take(among(table, frozenset(before.questions))).questions))
        which = f"; {certify} of this log certify it already (cascade verify)" if certify else f": {_named(overlap)}"
        raise UsageError(
            f"{len(overlap)} of {len(logged)} questions were used to make this policy, and may not certify it{which}. "
            "Calibrate on questions that it has not seen."
        )
    refuse_other_cascade(table, config)


def _named(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _demand(
    found: Sequence[Found], chosen: Chosen, guarantee: Guarantee, logged: int, *, allow_everything: bool
) -> None:
    """Raise NotCertifiedError naming every group that gets no promise. `logged` is the number of all questions."""
    table, besides = chosen.table, "".join(f" {note[:1].upper()}{note[1:]}." for note in chosen.notes)
    refused = [one for one in found if one.refused is not None]
    if refused:
        said = "; ".join(f"{_whom(one, table, guarantee)}{one.refused}" for one in refused)
        needed = _most_needed(refused)
        chance = min((one.chance for one in refused if one.chance is not None), default=None)
        would = "" if needed is None else f" {_would_do(needed, chance, chosen.table.n, logged)}"
        why = f"{_not_certified(guarantee, said)}{besides}"
        raise NotCertifiedError(f"{why}{would}", needed_n=needed, chance=chance, why=why)
    # A group of which no question is on record keeps everything without a choice: its certificate says so.
    few = [one for one in found if one.keeps_everything and one.rows.any() and not allow_everything]
    if few:
        each = ", one of each group," if (table.drawn_from > 1).any() else ""
        said = "; ".join(
            f"{_whom(one, table, guarantee)}{one.n} calibration questions{each} are too few" for one in few
        )
        needed = _most_needed(few)
        would = "" if needed is None else f" {needed} would be enough."
        why, advice = _not_certified(guarantee, said), "Or keep every answer of every step: --allow-everything."
        raise NotCertifiedError(
            f"{why}{would} {advice}", needed_n=needed, why=f"{why} --allow-everything keeps every answer of every step."
        )


def _whom(found: Found, table: EpisodeTable, guarantee: Guarantee) -> str:
    if not guarantee.separate:
        return ""
    if found.segment is not None:
        return f"segment {found.segment}: "
    others = sorted({table.segments[row] or "none" for row in np.flatnonzero(found.rows)})
    return f"all other segments ({_named(others)}): "


def _would_do(needed: int, chance: float | None, n: int, logged: int) -> str:
    """Return, in words, how many questions would be enough, if others order the path and leave n of those logged."""
    from cascade.conformal.ltt import would_do

    likely = would_do(chance)
    if n == logged:
        return f"{needed} {likely}, if they are like these."
    whole = -(-needed * logged // n)
    return (
        f"{needed} {likely}, not counting those that order the thresholds: a log of about {whole}, "
        "if its questions are like these."
    )


def _not_certified(guarantee: Guarantee, said: str) -> str:
    shares = "".join(
        f", {name} {share:g}"
        for name, share in (("alpha", guarantee.alpha), ("delta", guarantee.delta))
        if share is not None
    )
    return f"Not certified ({guarantee.kind}{shares}): {said}."


def _most_needed(found: Sequence[Found]) -> int | None:
    return max((one.needed_n for one in found if one.needed_n is not None), default=None)


class _Frame(NamedTuple):
    """The fields that all certificates of one calibration share."""

    guarantee: Guarantee
    data_sha256: str
    policy_sha256: str
    made_for: MadeFor
    created: str
    expires: str | None
    drawn: str
    segments: int
    how: tuple[str, ...]
    truth: Truth | None


def _drawn(table: EpisodeTable) -> str:
    """Return, in words, from how many questions one of each group was drawn; "" if no group had several."""
    many = int(table.drawn_from.sum())
    return f"{table.n} of {many} questions, one of each group" if many > table.n else ""


def _certificate(found: Found, frame: _Frame) -> Certificate:
    asked = frame.guarantee
    return make(
        Certificate(
            kind=asked.kind,
            alpha=asked.alpha,
            n=found.n,
            calibration_id="",
            delta=asked.each_delta(frame.segments),
            k=found.k,
            kappa=found.kappa,
            abstain_below=found.abstain_below,
            budget_nano_usd=asked.budget_nano_usd,
            group=found.segment if asked.by_group else None,
            pool=asked.separate and found.segment is None,
            keeps_everything=found.keeps_everything,
            data_sha256=frame.data_sha256,
            policy_sha256=frame.policy_sha256,
            made_for=frame.made_for,
            created=frame.created,
            expires=frame.expires,
            assumptions=tuple(_assumptions(found, frame)),
            segment=found.segment if asked.by_segment else None,
            unit="group" if frame.drawn else "question",
            together=frame.segments if asked.together else None,
            reference=None if frame.truth is None else frame.truth.reference,
            comparator=None if frame.truth is None else frame.truth.comparator,
        )
    )


def _assumptions(found: Found, frame: _Frame) -> Iterator[str]:
    asked = frame.guarantee
    what = "groups of questions" if frame.drawn else "questions"
    if asked.delta is None:
        yield f"Fresh {what} and those of the calibration are exchangeable: of one kind, in no particular order."
    else:
        yield f"Fresh {what} and those of the calibration are independent draws of one kind."
    if frame.drawn:
        yield f"Questions of one group hang together; one of each was drawn, whatever the answers: {frame.drawn}."
    yield from frame.how
    if asked.tested_before is not None:
        yield (
            f"Another policy was tested first, on {counted(asked.tested_before, 'question')}, and either could be "
            f"served: this one's threshold was tested at {asked.level:.9g}, what the first test leaves of delta."
        )
    yield from (
        ("Whether an answer is right is judged as in the log.",) if frame.truth is None else frame.truth.assumptions()
    )
    yield "Every step that the policy asks for is run: no budget, time limit or failing provider cuts a question short."
    yield from asked.rules.assumptions
    if asked.abstain:
        yield "Serving nothing is no error."
    if asked.most_nano_usd is not None:
        yield f"No question costs more than {dollars(asked.most_nano_usd)}: the cap per question sees to it."
    if asked.separate and found.segment is None:
        yield "It speaks of all segments that have no certificate of their own, taken together."
    unseen = unknown(frame.made_for)
    if unseen:
        yield f"Not on record, so that a change would go unseen: {', '.join(unseen)}."


def report(sample: Sample, found: Sequence[Found], artifact: PolicyArtifact, guarantee: Guarantee) -> Calibrated:
    """Return what was certified, with what the policy does on the questions of a sample at the thresholds found."""
    table, played = sample.table, play_found(sample, found)
    whole, everything = realised(table, played), realised(table, play_everything(sample))
    assert whole is not None  # noqa: S101 - there is a question
    assert everything is not None  # noqa: S101 - the same
    segments = [
        SegmentResult(one.segment, int(np.count_nonzero(one.rows)), one, certificate, realised(table, played, one.rows))
        for one, certificate in zip(found, artifact.certificates, strict=True)
    ]
    return Calibrated(
        artifact=artifact,
        guarantee=guarantee,
        segments=tuple(segments),
        n=table.n,
        selection=0 if artifact.path is None else len(artifact.seen.selection),
        realised=whole,
        everything=everything,
        reference_cost_nano_usd=reference_cost(table),
    )


class Draw(NamedTuple):
    """How to draw the questions that order a path."""

    share: float | None
    seed: int | None


class Chosen(NamedTuple):
    """The questions that are left to certify, and the path that others ordered."""

    table: EpisodeTable
    seen: Seen
    path: tuple[PathPoint, ...] | None = None
    ordered_for: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def choose(table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, draw: Draw) -> Chosen:
    """Set the questions aside that order a path, and return it with the rest.

    Any path that the rest did not order is valid. One that was ordered for this promise certifies the most; one for
    another budget may begin with points that it forbids, and one without abstention has no point that abstains.
    """
    rules = guarantee.rules
    if not rules.tests_a_path or (
        before.path is None and rules.strict_first(sample_of(table, policy).table, guarantee)
    ):
        return Chosen(table, before.seen)
    ordered = frozenset(before.seen.selection)
    aside = among(table, ordered)
    picked, table = table.take(aside), table.take(~aside)
    if not table.n:
        raise UsageError(f"All {picked.n} questions ordered the thresholds, and may not certify them too; add others.")
    kept = Chosen(table, before.seen, before.path, before.ordered_for)
    if before.path is not None and _is_order(before.ordered_for, guarantee):
        return kept
    if ordered and not absent(picked, ordered):
        told = before.ordered_for or {}
        again = order_terms(guarantee, Draw(told.get("share"), told.get("seed")))
        note = f"the {picked.n} questions that ordered the thresholds before order them anew, for this promise"
        path = rules.order(sample_of(picked, policy), guarantee)
        return kept._replace(path=path, ordered_for=again, notes=(note,) if before.path is not None else ())
    if before.path is not None and _is_order(before.ordered_for, guarantee, ("abstain", "budget_nano_usd")):
        note = "the thresholds were ordered for another promise, and may certify less than others would"
        return kept._replace(notes=(f"{note}: the questions that ordered them are not all in this log",))
    chosen = selected(table, draw.share or 0.0, draw.seed or 0)
    picked, table = table.take(chosen), table.take(~chosen)
    seen = Seen(tuple(sorted({*before.seen.training, *ordered})), tuple(sorted(picked.questions)))
    return Chosen(table, seen, rules.order(sample_of(picked, policy), guarantee), order_terms(guarantee, draw))


_ORDERS = ("kind", "alpha", "abstain", "budget_nano_usd")
"""What of a guarantee the order of a path depends on; neither delta nor the cap bears on it."""


def _is_order(ordered_for: Mapping[str, Any] | None, guarantee: Guarantee, names: Sequence[str] = _ORDERS) -> bool:
    """Whether a path was ordered for this promise, or for one that agrees with it so far."""
    return ordered_for is not None and all(ordered_for.get(name) == getattr(guarantee, name) for name in names)


def order_terms(guarantee: Guarantee, draw: Draw) -> dict[str, Any]:
    """Return what the order of a path depends on besides the questions; `ordering` reads it."""
    return {**{name: getattr(guarantee, name) for name in _ORDERS}, **draw._asdict()}


def ordering(ordered_for: Mapping[str, Any]) -> Guarantee:
    """Return a guarantee that a path is ordered for in the same way.

    Raises:
        UsageError, KeyError: it says something else.
    """
    budget = ordered_for["budget_nano_usd"]
    return Guarantee(ordered_for["kind"], ordered_for["alpha"], 0.1, budget, budget, abstain=ordered_for["abstain"])
