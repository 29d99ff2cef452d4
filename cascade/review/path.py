"""Selects the pairs that decide a certificate, along the path of thresholds that it tests.

The thresholds are those that `calibrate_policy` tests, from the strictest to the most lenient, so that no questions are
needed to order them. At each threshold only the questions count on which an output is served that differs from the
reference's. Their labels are requested until the threshold passes for any values of the missing labels, or fails
(`conformal.labels.walk`). So the later labels are never requested, and the certificate is the same as with all labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cascade.calibration.calibrating import certifying
from cascade.calibration.samples import unseen
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import Bools, Ints
from cascade.conformal.labels import KEPT, LOST, NO_LOSS, UNLABELLED, Walked, is_drawn, most_labelled_losses, walk
from cascade.conformal.served import PathPoint, Served
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.served_answer import ServedAnswer, every_threshold
from cascade.policies.artifact import PolicyArtifact
from cascade.policies.base import Policy
from cascade.review.labels import Harmless, tables_with
from cascade.review.pairs import Compared, Pair, PairId
from cascade.review.reviews import Terms


@dataclass(slots=True)
class Along:
    """A path of thresholds over the questions that certify.

    Attributes:
        path: the thresholds, the strictest first.
        pairs: for each question its pairs, by the number of the output.
        drawn: bool (n,), whether the question was drawn for review.
        most: the largest number of labelled losses that still proves the promise; None if not even 0 losses prove it.
    """

    path: Sequence[PathPoint]
    pairs: Sequence[Mapping[int, Pair]]
    drawn: Bools
    most: int | None
    _ways: Sequence[Served] = field(repr=False, default=())
    _outputs: list[Ints] = field(repr=False, default_factory=list)

    @property
    def n(self) -> int:
        """Questions that certify."""
        return len(self.pairs)

    def outputs(self, at: int) -> Ints:
        """Return the output served at a point, int64 (n,): a pair's number, `NO_LOSS`, or C if lost in any case.

        C is the maximum number of outputs of a question. As an entry it means that the output counts as lost without a
        judgement, as when the reference's output is not logged.
        """
        while len(self._outputs) <= at:
            point = self.path[len(self._outputs)]
            lost = [one.at(point) for one in self._ways]
            surely = lost[-1].loss | lost[-1].cut
            served = np.full(self.n, NO_LOSS, dtype=np.int64)
            for number, way in enumerate(lost[:-1]):
                served[way.loss] = number
            served[surely] = len(self._ways) - 1
            served[~self.drawn] = NO_LOSS
            self._outputs.append(served)
        return self._outputs[at]

    def known(self, losses: Mapping[PairId, bool]) -> Ints:
        """Return the judgement of each output, int64 (n, C + 1)."""
        found = np.full((self.n, len(self._ways)), UNLABELLED, dtype=np.int64)
        found[:, -1] = LOST
        for row, held in enumerate(self.pairs):
            for number, pair in held.items():
                said = losses.get(pair.id)
                if said is not None:
                    found[row, number] = LOST if said else KEPT
        return found

    def walked(self, losses: Mapping[PairId, bool]) -> Walked:
        """Return how far the judgements decide the path."""
        return walk(_Lazy(self), self.known(losses), self.most)

    def wanted(self, losses: Mapping[PairId, bool], passed: frozenset[PairId] = frozenset()) -> list[Pair]:
        """Return the pairs that decide the next point; none if no judgement changes the certificate.

        Args:
            losses: the judgements.
            passed: pairs that will not be judged and count as lost.
        """
        found = self.walked({**losses, **dict.fromkeys(passed, True)})
        if not found.open.any():
            return []
        served = self.outputs(found.certified)
        return [self.pairs[row][int(served[row])] for row in np.flatnonzero(found.open).tolist()]

    def most_labels(self) -> int:
        """Return the maximum number of pairs that the whole path can request."""
        seen = {
            (row, number)
            for at in range(len(self.path))
            for row, number in enumerate(self.outputs(at).tolist())
            if 0 <= number < len(self._ways) - 1
        }
        return len({self.pairs[row][number].id for row, number in seen})


class _Lazy(Sequence[Ints]):
    """The outputs at each point, computed on access, since a walk mostly ends early."""

    def __init__(self, along: Along) -> None:
        self._along = along

    def __len__(self) -> int:
        return len(self._along.path)

    def __getitem__(self, at: int | slice) -> Ints:  # type: ignore[override]
        assert isinstance(at, int)  # noqa: S101 - a path is not sliced
        if at >= len(self):
            raise IndexError(at)
        return self._along.outputs(at)


def along_path(
    compared: Compared, policy: Policy, held: PolicyArtifact | None, guarantee: Guarantee, terms: Terms
) -> Along:
    """Return the path along which a policy's certificate would be tested, on the questions of a log.

    Args:
        compared: the log, with its pairs.
        policy: the policy, which gives the scores.
        held: the contents of its directory; the caller leaves out the questions that made the policy.
        guarantee: the guarantee that will be requested.
        terms: the terms of the review, with the draw of questions.

    Raises:
        UsageError: the thresholds are ordered on questions, which would need labels of their own; or as
            `calibrate_policy`.
    """
    rules = guarantee.rules
    assert isinstance(rules, ServedAnswer)  # noqa: S101 - whoever calls has asked for a kind that people review
    each = compared.pairs()
    many = 1 + max((pair.number for pair in each), default=-1)
    ways = []
    for number in range(many + 1):
        made = tables_with(compared, _all_but(number))
        tables = [_to_certify(table, guarantee.kind, held) for table in made]
        chosen = certifying(tables, policy, guarantee, held)
        sample = sample_of(chosen.table, policy)
        if chosen.path is not None or not rules.strict_first(sample.table, guarantee):
            raise UsageError(
                "The thresholds of this policy are ordered on questions, which also need judgements. Review without "
                "--policy: every differing output is then shown."
            )
        ways.append(rules.served(sample))
    by_question: dict[str, dict[int, Pair]] = {}
    table = chosen.table
    for (dataset, name), one in compared.episodes.items():
        for pair in one.pairs():
            by_question.setdefault(f"{dataset}/{name}", {})[pair.number] = pair
    names = [name if len(tables) > 1 else f"{table.dataset}/{name}" for name in table.ids]  # as `joined` calls them
    drawn = np.array([is_drawn(terms.key, question, terms.rate) for question in table.questions], dtype=np.bool_)
    most = most_labelled_losses(table.n, guarantee.alpha or 0.0, guarantee.delta or 0.1, terms.rate)
    path = every_threshold(sample.levels)
    return Along(path, [by_question.get(name, {}) for name in names], drawn, most, ways)


def _all_but(number: int) -> Harmless:
    """Return a function by which every output loses nothing except those of this number."""
    return lambda _, other: other != number


def _to_certify(table: EpisodeTable, kind: str, held: PolicyArtifact | None) -> EpisodeTable:
    """Return the questions of a table that may certify, with the truth of a future review."""
    assert table.truth is not None  # noqa: S101 - a relabelled table has one
    asked = replace(table, truth=table.truth._replace(asked=kind))
    return asked if held is None else unseen(asked, held)
