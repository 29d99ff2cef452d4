"""Make a policy directory with certificates from a policy, a log and the guarantee that a user requests.

The guarantee holds because of the order of the work: questions that the policy has seen are refused; each question
counts once; a path for the single answer is ordered on questions that are then left out; the remaining questions are
used once, by a rule that was fixed before (`guarantees`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cascade.calibration.fingerprint import MadeFor, holds_for, refuse_other_cascade, unknown
from cascade.calibration.samples import absent, among, data_sha256, joined, once, one_a_group, places, selected, tied
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
from cascade.policies.artifact import PolicyArtifact, Seen
from cascade.policies.base import Policy
from cascade.text import counted
from cascade.types import Certificate

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.section import Section

_SELECTION = 0.3
"""The share of the questions that order a path, if a path is needed and none exists."""
_NAMED = 5
"""The maximum number of questions and groups that a message names; it counts the rest."""
_KEEP_ALL = "Or keep every answer of every step: allow_everything=True."
_APART = ("The policy and its settings were chosen without the calibration questions.",)


class SegmentResult(NamedTuple):
    """The result for one segment of questions, or for all questions.

    Attributes:
        segment: its name; None for all questions.
        rows: the number of calibration questions of the segment.
        found: the threshold and the details of its calibration.
        certificate: the promise.
        realised: the policy's figures on those questions at the threshold; None without questions.
    """

    segment: str | None
    rows: int
    found: Found
    certificate: Certificate
    realised: Realised | None


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibrated policy and the details of its calibration.

    Attributes:
        artifact: the policy directory; `policies.artifact.write` writes it.
        guarantee: the requested guarantee.
        segments: the results, one entry for each certificate.
        n: the number of calibration questions, one of each group.
        repeated: the number of episodes left out because another one has the same question.
        selection: the number of questions that ordered the path, and were left out.
        realised: the policy's figures on the calibration questions that a certificate covers, each at its threshold.
        everything: the figures on the same questions if every answer of every step is kept.
        reference_cost_nano_usd: their mean cost by the guide alone, or by a ladder's last model; None if unknown.
        too_small: the segments with too few questions for a certificate: the guide answers their requests.
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
    too_small: tuple[Found, ...] = ()
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
    held: PolicyArtifact | None = None,
    allow_everything: bool = False,
    today: date | None = None,
    unknown: int = 0,
) -> Calibrated:
    """Calibrate a policy on a log, and certify its promise.

    Args:
        tables: the log; several data sets of one cascade are taken as one.
        policy: the policy, which gives the scores; its own threshold is replaced.
        section: the settings that `policy` was made from, for `policy.json`.
        guarantee: the requested guarantee.
        config: the cascade that will serve, for `Certificate.made_for`; without it, only the log's facts are known.
        seed: the seed of the draw of questions that order a path.
        expires_days: the number of days for which the certificates are valid; by default they do not expire.
        held: the earlier contents of the policy directory: the questions that made the policy, which are refused, and
            the path. The path is used again if it was ordered for this promise. Otherwise its questions order a new
            path if the log has all of them; if not, the old path is tested as it is.
        allow_everything: if the questions are too few for a threshold, keep everything instead of failing; but not in
            place of a segment's threshold.
        today: the day of the certificates, UTC; the same day, data and seed give the same bytes.
        unknown: the number of questions already left out of the tables (`guarantees.base.Kind.looked_at`).

    Guarantee: the `guarantees.certificate.statement` of each certificate, if the calibration questions and fresh ones
    are exchangeable (with delta: independent draws from one distribution).

    Raises:
        UsageError: the log cannot calibrate this policy: the policy has seen it, it is of another cascade, or it lacks
            something that is needed.
        NotCertifiedError: the questions are too few, those of every segment with promises by segment, or the policy
            misses too many at every threshold; `needed_n` says how many would be enough.

    Reference: `conformal.calibrate`, `conformal.risk` and `conformal.ltt`, by kind; `design/certificates.md`.
    """
    settings = dict(section) if isinstance(section, Mapping) else section.model_dump(mode="json")
    _refuse_place(settings)
    before = held or PolicyArtifact(settings)
    rows = _rows(joined(tables), policy, guarantee, before, config)
    chosen = _chosen(rows.table, policy, guarantee, before, Draw(_SELECTION, seed))
    groups = one_a_group(rows.table, separate=guarantee.by_segment, seed=seed).n
    sample = sample_of(chosen.table, policy)
    found, too_small = certifiable(guarantee.rules.calibrate(sample, guarantee, chosen.path), guarantee)
    if guarantee.single:
        check_told(found, chosen.table)
    if not found:
        raise _none_large(too_small, guarantee)
    _demand(found, chosen, guarantee, groups, allow_everything=allow_everything)
    day = today or datetime.now(UTC).date()
    dates = day.isoformat(), expiry(day, expires_days)
    made = holds_for(chosen.table, config, before, walked=taken(policy, chosen.table))
    unknown = unknown or rows.unknown
    said = (left_out_said(unknown, guarantee),) if unknown else ()
    artifact = certified(found, chosen, settings, guarantee, made, dates, (*_APART, *said))
    return replace(
        report(sample, found, replace(artifact, files=before.files), guarantee),
        repeated=rows.repeated,
        too_small=tuple(too_small),
        notes=(
            *(one.removesuffix(".") for one in said),
            *priced_said(chosen.table),
            *chosen.notes,
            *_about_small(too_small),
            *_guessed(sample, guarantee),
        ),
    )


def certifying(
    tables: Sequence[EpisodeTable], policy: Policy, guarantee: Guarantee, held: PolicyArtifact | None
) -> Chosen:
    """Return the questions that `calibrate_policy` would use to certify, and the path that it would test."""
    before = held or PolicyArtifact({})
    rows = _rows(joined(tables), policy, guarantee, before, None)
    return _chosen(rows.table, policy, guarantee, before, Draw(_SELECTION, 0))


def _chosen(table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, draw: Draw) -> Chosen:
    """Return one question of each group, and a path, which may be ordered on all questions of its groups."""
    chosen = choose(table, policy, guarantee, before, draw)
    return chosen._replace(table=one_a_group(chosen.table, separate=guarantee.by_segment, seed=draw.seed or 0))


def certifiable(every: Sequence[Found], guarantee: Guarantee) -> tuple[list[Found], list[Found]]:
    """Return the thresholds that get a certificate, and those of segments that are too small for one."""
    if not guarantee.by_segment:
        return list(every), []
    return [one for one in every if not one.keeps_everything], [one for one in every if one.keeps_everything]


def _about_small(too_small: Sequence[Found]) -> Iterator[str]:
    """Yield a note on the segments with too few questions: how many each has, and how many it needs."""
    if too_small:
        few = f"segments with fewer than {_most_needed(too_small)} calibration questions"
        yield f"{few} are not certified, so the guide answers their requests: {_each_n(too_small)}"


def _each_n(found: Sequence[Found]) -> str:
    return _named([f"{one.segment} ({one.n})" for one in found])


def _none_large(too_small: Sequence[Found], guarantee: Guarantee) -> NotCertifiedError:
    """Return the error for promises by segment if no segment has enough questions."""
    if not too_small:
        return NotCertifiedError(_not_certified(guarantee, "no calibration question names its segment"))
    why = _not_certified(guarantee, f"every segment has too few calibration questions: {_each_n(too_small)}")
    needed = _most_needed(too_small)
    return NotCertifiedError(f"{why} {needed} of one segment would be enough.", needed_n=needed, why=why)


def _guessed(sample: Sample, guarantee: Guarantee) -> Iterator[str]:
    """Yield a note if the printed error rate is a guess. A promise on the single answer would have been refused."""
    many = 0 if guarantee.single else untold(sample)
    if many:
        yield (
            f"votes decide which answer is served on {many} questions, but the log does not show which of their "
            "answers are the same: the error rate is a guess"
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
    """Return the policy with the certificates of its thresholds.

    `chosen` has the questions that the thresholds come from, and those that made the policy. `dates` has the first and
    the last day. `how` has the assumptions that follow from how the policy was made, a sentence each.
    """
    table, questions = chosen.table, tuple(sorted(set(chosen.table.questions)))
    bare = PolicyArtifact(settings, chosen.seen, chosen.path, chosen.ordered_for, questions=questions, asked=guarantee)
    data = data_sha256(table, separate=guarantee.by_segment)
    how = (*how, *unjudged_said(table))
    frame = _Frame(guarantee, data, bare.policy_sha256, made, *dates, _drawn(table), how, table.truth)
    signed = tuple([_certificate(one, frame) for one in found])
    return replace(bare, certificates=signed, unanswered=int(np.count_nonzero(hopeless(table.arrays))))


def _rows(
    table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, config: CascadeConfig | None
) -> Questions:
    """Return the questions that a calibration may use; raise an error if there are none."""
    # Questions that ordered a path are set aside if a path is needed, and refused otherwise.
    guarantee.rules.check_truth(table)
    made = frozenset(before.seen.training) if guarantee.rules.tests_a_path else before.seen.all
    _refuse(table, policy, made, before, config)
    return questions_in(tied(table), guarantee)


class Questions(NamedTuple):
    """The questions of a log, and how many were left out.

    Attributes:
        table: the questions, one row each.
        repeated: the number of episodes left out because another one has the same question.
        unknown: the number of questions for which the log lacks what the promise is about, such as the reference's
            answer.
    """

    table: EpisodeTable
    repeated: int
    unknown: int = 0


def questions_in(whole: EpisodeTable, guarantee: Guarantee) -> Questions:
    """Return the questions of a whole log (`tied`) that a promise could be about."""
    table = looked_at(whole, guarantee)
    rows = once(table, separate=guarantee.by_segment)
    return Questions(table.take(rows), table.n - rows.size, left_out(whole, guarantee))


def left_out(table: EpisodeTable, guarantee: Guarantee) -> int:
    """Return how many questions a calibration leaves out, since the log lacks the data of the promise."""
    return len(set(table.questions) - set(looked_at(table, guarantee).questions))


def left_out_said(many: int, guarantee: Guarantee) -> str:
    """Return the sentence in a certificate about the questions that were left out."""
    be = "is" if many == 1 else "are"
    return f"{counted(many, 'question')} of the log {be} left out, because {guarantee.rules.left_out}."


def unjudged_said(table: EpisodeTable) -> Iterator[str]:
    """Yield the sentence in a certificate about the episodes that lack a judgement, if there are any."""
    if table.unjudged:
        yield (
            f"{counted(table.unjudged, 'more question')} of the log {'has' if table.unjudged == 1 else 'have'} an "
            "answer without a judgement: the promise covers such questions only if chance decided which were judged."
        )


def looked_at(table: EpisodeTable, guarantee: Guarantee) -> EpisodeTable:
    """Return the questions that a calibration reads."""
    rows = guarantee.rules.looked_at(table)
    return table if rows.all() else table.take(rows)


def _refuse_place(settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a policy class given by its path: the written directory could not be read again."""
    if ":" in str(settings.get("kind")):
        from cascade.policies.config import HELD  # fitted policies have kinds of their own

        try:
            HELD.class_of(settings["kind"])
        except ValueError as error:
            raise UsageError(f"This policy cannot be certified: {error}.") from None


def _refuse(
    table: EpisodeTable, policy: Policy, made: frozenset[str], before: PolicyArtifact, config: CascadeConfig | None
) -> None:
    """Raise UsageError if a policy cannot be calibrated, has seen the questions, or is of another cascade."""
    if policy.depends_on_kappa:
        raise UsageError(
            "This policy's scores depend on its threshold (keep: judged serves the answers judged right at that "
            "threshold), so no other threshold can be set on them. Use keep: both, which keeps every answer of every "
            "step."
        )
    check_fits(policy, table)
    logged = set(table.questions)
    overlap = sorted(set(table.take(among(table, made)).questions))
    if overlap:
        certify = len(set(table.take(among(table, frozenset(before.questions))).questions))
        which = f"; {certify} of this log certify it already (cascade verify)" if certify else f": {_named(overlap)}"
        raise UsageError(
            f"{len(overlap)} of {len(logged)} questions were used to make this policy and may not certify "
            f"it{which}. Calibrate on questions that it has not seen."
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
        said = "; ".join(f"{'' if one.segment is None else f'segment {one.segment}: '}{one.refused}" for one in refused)
        needed = _most_needed(refused)
        chance = min((one.chance for one in refused if one.chance is not None), default=None)
        would = "" if needed is None else f" {_would_do(needed, chance, chosen.table.n, logged)}"
        why = f"{_not_certified(guarantee, said)}{besides}"
        raise NotCertifiedError(f"{why}{would}", needed_n=needed, chance=chance, why=why)
    few = [one for one in found if one.keeps_everything and not allow_everything]
    if few:
        each = ", one of each group," if (table.drawn_from > 1).any() else ""
        said = "; ".join(f"{one.n} calibration questions{each} are too few" for one in few)
        needed = _most_needed(few)
        would = "" if needed is None else f" {needed} would be enough."
        why = _not_certified(guarantee, said)
        raise NotCertifiedError(f"{why}{would} {_KEEP_ALL}", needed_n=needed, why=why, advice=_KEEP_ALL)


def _would_do(needed: int, chance: float | None, n: int, logged: int) -> str:
    """Return a note on how many questions would be enough, if others order the path and leave n of those logged."""
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
    """The fields that all certificates of a calibration share."""

    guarantee: Guarantee
    data_sha256: str
    policy_sha256: str
    made_for: MadeFor
    created: str
    expires: str | None
    drawn: str
    how: tuple[str, ...]
    truth: Truth | None


def _drawn(table: EpisodeTable) -> str:
    """Return a note on how many questions the draw of one per group had; "" if no group had several."""
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
            delta=asked.delta,
            k=found.k,
            kappa=found.kappa,
            abstain_below=found.abstain_below,
            keeps_everything=found.keeps_everything,
            data_sha256=frame.data_sha256,
            policy_sha256=frame.policy_sha256,
            made_for=frame.made_for,
            created=frame.created,
            expires=frame.expires,
            assumptions=tuple(_assumptions(frame)),
            segment=found.segment,
            unit="group" if frame.drawn else "question",
            reference=None if frame.truth is None else frame.truth.reference,
            comparator=None if frame.truth is None else frame.truth.comparator,
        )
    )


def _assumptions(frame: _Frame) -> Iterator[str]:
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
    if _form_unsaid(frame.made_for.get("requests")):
        yield "Fresh questions are asked as the log's were: in cascade's prompt or as chat requests, it does not say."
    unseen = unknown(frame.made_for)
    if unseen:
        yield f"Not on record, so that a change would go unseen: {', '.join(unseen)}."


def _form_unsaid(requests: Mapping[str, Any] | None) -> bool:
    """Return whether the log does not say in which form the models saw its requests."""
    if requests is None or not requests["kinds"]:
        return False
    from cascade.conformal.scope import form_unsaid  # a log of plain questions needs none of it

    return form_unsaid(requests)


def report(sample: Sample, found: Sequence[Found], artifact: PolicyArtifact, guarantee: Guarantee) -> Calibrated:
    """Return the certified policy, with its figures on the questions of a sample at the thresholds found."""
    table, played = sample.table, play_found(sample, found)
    covered = places([one.segment for one in found], table) >= 0
    whole, everything = realised(table, played, covered), realised(table, play_everything(sample), covered)
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
        reference_cost_nano_usd=reference_cost(table.take(covered)),
    )


class Draw(NamedTuple):
    """How to draw the questions that order a path."""

    share: float | None
    seed: int | None


class Chosen(NamedTuple):
    """The questions left to certify, and the path that other questions ordered."""

    table: EpisodeTable
    seen: Seen
    path: tuple[PathPoint, ...] | None = None
    ordered_for: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def choose(table: EpisodeTable, policy: Policy, guarantee: Guarantee, before: PolicyArtifact, draw: Draw) -> Chosen:
    """Set aside the questions that order a path; return the path with the remaining questions.

    Every path is valid whose order does not depend on the remaining questions. A path ordered for this promise usually
    certifies the most. A path without
    abstention has no point that abstains.
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
        raise UsageError(f"All {picked.n} questions ordered the thresholds and may not also certify them; add others.")
    kept = Chosen(table, before.seen, before.path, before.ordered_for)
    if before.path is not None and _is_order(before.ordered_for, guarantee):
        return kept
    if ordered and not absent(picked, ordered):
        told = before.ordered_for or {}
        again = order_terms(guarantee, Draw(told.get("share"), told.get("seed")))
        note = f"the {picked.n} questions that ordered the thresholds before now order them again for this promise"
        path = rules.order(sample_of(picked, policy), guarantee)
        return kept._replace(path=path, ordered_for=again, notes=(note,) if before.path is not None else ())
    if before.path is not None and _is_order(before.ordered_for, guarantee, ("abstain",)):
        note = "the thresholds were ordered for another promise, and may certify less than a new order would"
        return kept._replace(notes=(f"{note}: the questions that ordered them are not all in this log",))
    chosen = selected(table, draw.share or 0.0, draw.seed or 0)
    picked, table = table.take(chosen), table.take(~chosen)
    seen = Seen(tuple(sorted({*before.seen.training, *ordered})), tuple(sorted(picked.questions)))
    return Chosen(table, seen, rules.order(sample_of(picked, policy), guarantee), order_terms(guarantee, draw))


_ORDERS = ("kind", "alpha", "abstain")
"""The fields of a guarantee on which the order of a path depends; delta has no influence."""


def _is_order(ordered_for: Mapping[str, Any] | None, guarantee: Guarantee, names: Sequence[str] = _ORDERS) -> bool:
    """Whether a path was ordered for this promise, or for one with the same order."""
    return ordered_for is not None and all(ordered_for.get(name) == getattr(guarantee, name) for name in names)


def order_terms(guarantee: Guarantee, draw: Draw) -> dict[str, Any]:
    """Return the inputs of a path's order other than the questions; `ordering` reads them."""
    return {**{name: getattr(guarantee, name) for name in _ORDERS}, **draw._asdict()}


def ordering(ordered_for: Mapping[str, Any]) -> Guarantee:
    """Return a guarantee that leads to the same order of a path."""
    return Guarantee(ordered_for["kind"], ordered_for["alpha"], 0.1, abstain=ordered_for["abstain"])
