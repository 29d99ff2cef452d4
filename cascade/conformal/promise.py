"""What can be promised about served answers: each promise is a loss column and two sentences.

A promise limits the share of requests that may be lost (`Promise.risk`), on average over calibrations or with a
confidence. Its kind defines a loss. A new kind is a class with a name, two sentences and `loss`:

>>> class Answered(Kind):
...     name, kept_when, lost_when = "answered", "an answer is served", "no answer is served"
...     def loss(self, log):
...         return np.where(log.answer >= 0, 0.0, 1.0)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from cascade.checks import did_you_mean, refuse, share_problems
from cascade.conformal.path import Jumps, Walks, hopeless, loss_jumps, missed_jumps, stopped
from cascade.errors import UsageError
from cascade.registry import Registry, code_of, of_ones_own, subclass_of
from cascade.table import ALONE, COST, Floats, Log

Judge: TypeAlias = Callable[[str], bool | None]
"""Returns whether a text is right, or None if unknown. A call may cost money."""


class Kind(ABC):
    """One kind of promise.

    Attributes:
        name: its name in configurations and certificates.
        kept_when: what is true of a request for which the promise is kept.
        lost_when: what is true of a request that is lost.
        of_set: whether the promise is about the set of answers kept, not about the one served.
        covers_all: whether it also covers requests for which the log lacks the reference's answer.
        reference_keeps_it: whether asking only the reference loses nothing by definition.
        graded: whether a loss may lie between 0 and 1, which halves the level of tests; if not, losses are rounded up.
        needs: "labels", "reference" or "judgements": what a log must have besides the answers.
        outcomes: the signals of a log that `loss` reads and that are known only afterwards: no policy may read them.
    """

    name: ClassVar[str]
    kept_when: ClassVar[str]
    lost_when: ClassVar[str]
    of_set: ClassVar[bool] = False
    covers_all: ClassVar[bool] = True
    reference_keeps_it: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("labels",)
    outcomes: ClassVar[tuple[str, ...]] = ()

    @property
    def compares(self) -> bool:
        """Whether "right" means equal to the reference's output, so that no label is needed."""
        return self.needs == ("reference",)

    @property
    def monitored(self) -> bool:
        """Whether losses show without the outcomes, which only a log has, so that audits can count them."""
        return not self.outcomes

    @property
    def reads_all(self) -> bool:
        """Whether a loss depends on calls after the one served, so that only a request run to its end shows it."""
        return self.of_set or "reference" in self.needs or of_ones_own(self)

    def served(self, log: Log, candidates: Sequence[int], node: int | None) -> float | None:
        """Return the loss, in 0..1, of a log's only request, by the node served (None: nothing) and the nodes kept.

        None if the log does not show it: a needed answer has no verdict, or the record ends before the request does.
        """
        if self.reads_all and not log.complete[0]:
            return None
        if self.of_set:
            right = log.right[0, candidates]
            covered = hopeless(log)[0] or (right == 1).any()
            return None if not covered and np.isnan(right).any() else float(not covered)
        loss = self._of_nothing(log)[0] if node is None else self.losses(log)[0, node]
        return None if node is not None and np.isnan(log.right[0, node]) else float(loss)

    @abstractmethod
    def loss(self, log: Log) -> Floats:
        """Return the loss if a node's answer is served, float64 (n, T) in 0..1; 1 where it is unknown.

        Where a node has no answer, it is the loss of serving nothing.
        """

    def losses(self, log: Log) -> Floats:
        """Return `loss` as float64 (n, T), with 1 for NaN (unknown) and 0 for answers that keep it by definition.

        Raises:
            UsageError: the loss has another shape or lies outside 0..1, or a user's own `loss` raises.
        """
        losses, is_reference = self._as_written(log), log.answers & (self.reference_keeps_it and log.nodes == ALONE)
        return np.where(is_reference, 0.0, np.where(np.isnan(losses), 1.0, losses))

    def _as_written(self, log: Log) -> Floats:
        with code_of(self):
            losses = np.asarray(self.loss(log), dtype=np.float64)
        if losses.shape != log.answer.shape:
            raise UsageError(f"The loss of {self.name} must have the shape {log.answer.shape}, not {losses.shape}.")
        if (outside := losses[(losses < 0) | (losses > 1)]).size:
            raise UsageError(f"The loss of {self.name} must lie in 0..1, and one is {outside[0]}.")
        return losses

    def refuse_unlike_loss(self, log: Log) -> None:
        """Raise UsageError as `losses` does, or if a user's kind says that the reference keeps it and `loss` disagrees.

        A loss of 1 is accepted where it is unknown whether the reference is right: it may stand for an unknown loss.
        """
        losses = self._as_written(log)
        if not (self.reference_keeps_it and of_ones_own(self)) or log.reference is None:
            return
        alone = log if log.reference.is_last else log.reference_only()
        loss, right = (losses if alone is log else self._as_written(alone))[:, -1], alone.right[:, -1]
        lost = np.flatnonzero(alone.answers[:, -1] & (loss > 1e-9) & ((loss < 1) | ~np.isnan(right)))
        if lost.size:
            raise UsageError(
                f"{self.name} says that the reference keeps it, and by its own loss the reference loses "
                f"{lost.size:,} of {log.n:,} requests of {log.name}, such as {log.ids[lost[0]]}: say "
                "reference_keeps_it = False, or return NaN where the loss is unknown."
            )

    def at_stop(self, walks: Walks) -> Floats:
        """Return the loss of a walk that ends after each node, float64 (n, T)."""
        lost = stopped(walks, self.losses(walks.log), self._of_nothing(walks.log))
        return lost if self.graded else np.ceil(lost)

    def _of_nothing(self, log: Log) -> Floats:
        """Return the loss where nothing is served, float64 (n,)."""
        nothing = replace(log, answer=np.full_like(log.answer, -1), right=np.full_like(log.right, np.nan))
        return self.losses(nothing)[:, 0]

    def jumps(self, walks: Walks) -> Jumps:
        """Return each request's loss as a function of the threshold."""
        return loss_jumps(walks, self.at_stop(walks))

    def readable(self, log: Log) -> Log:
        """Return the log as policies may read it: no outcomes, and no costs if going on for lack of one may lose."""
        costs = () if self.of_set or self.safe_last(log) else (COST,)
        return replace(log, hidden=log.hidden.union(self.outcomes, costs))

    def safe_last(self, log: Log) -> bool:
        """Return whether a walk to the end loses nothing, so that thresholds are tested from the strictest."""
        return self.reference_keeps_it and log.reference is not None and log.reference.is_last


class Coverage(Kind):
    """A request is lost if no right answer is kept although a node had one, or may have had one."""

    name = "coverage"
    kept_when = "a right answer is among those kept, or no call would have given one"
    lost_when = "no right answer is among those kept, though a call gave one"
    of_set = True

    def loss(self, log: Log) -> Floats:
        """Return 1 until a right answer is bought, and 0 throughout if no call could give one."""
        covered = np.logical_or.accumulate(log.right == 1, axis=1)
        return np.where(covered | hopeless(log)[:, None], 0.0, 1.0)

    def jumps(self, walks: Walks) -> Jumps:
        """Return a loss of 1 above the highest threshold at which a right answer is kept."""
        return missed_jumps(walks)


class OfAnswer(Kind):
    """The kinds that lose a request if the answer served is wrong, whatever "right" means."""

    def loss(self, log: Log) -> Floats:
        """Return 1 − right, or 1 where that is unknown; 0 for requests that were not drawn for people to judge.

        The tested risk is multiplied by the share drawn to allow for that (`Promise.tested_risk`).
        """
        wrong = np.where(np.isnan(log.right) | (log.answer < 0), 1.0, 1.0 - log.right)
        return wrong if log.drawn is None else wrong * log.drawn[:, None]


class Error(OfAnswer):
    """A request is lost if the answer served is wrong."""

    name = "error"
    kept_when = "the answer served is right"
    lost_when = "the answer served is wrong"


class Regret(OfAnswer):
    """A request is lost if the answer served is wrong and the reference alone is right."""

    name = "regret"
    kept_when = "the answer served is right, or the reference is wrong too"
    lost_when = "the answer served is wrong, and the reference alone is right"
    covers_all = False
    reference_keeps_it = True
    needs = ("labels", "reference")

    def loss(self, log: Log) -> Floats:
        """Return 1 for a wrong answer where the reference is right, or may be."""
        if log.reference is None:
            raise UsageError(f"regret compares with the guide alone, and {log.name} has no answer of it.")
        might = np.where(np.isnan(log.reference.right), 1.0, log.reference.right)
        return super().loss(log) * might[:, None]


class Agreement(OfAnswer):
    """A request is lost if the answer served differs from the reference's own: "right" means equal to that."""

    name = "agreement"
    kept_when = "the answer served equals the reference's"
    lost_when = "the answer served differs from the reference's"
    reference_keeps_it = True
    needs = ("reference",)


class Preference(OfAnswer):
    """A request is lost if a person prefers the reference's answer to the one served; a tie loses nothing.

    "Right" means not worse, and an answer that nobody judged is lost.
    """

    name = "preference"
    kept_when = "no reviewer prefers the reference's answer to the one served"
    lost_when = "a reviewer prefers the reference's answer to the one served"
    reference_keeps_it = True
    needs = ("reference", "judgements")


def _lacks(plugin: Any) -> str | None:
    """Return why an object cannot be a kind of promise, with every problem; None if it can."""
    if not (isinstance(plugin, type) and issubclass(plugin, Kind)):
        return subclass_of(Kind)(plugin)
    names = "name", "kept_when", "lost_when"
    problems = [f"its {name} is no text" for name in names if not isinstance(getattr(plugin, name, None), str)]
    for name in ("needs", "outcomes"):
        texts = getattr(plugin, name)
        if not (isinstance(texts, tuple) and all(isinstance(text, str) for text in texts)):
            problems.append(f"its {name} is no tuple of texts, but {texts!r}")
    return "; ".join(filter(None, [subclass_of(Kind)(plugin), *problems])) or None


KINDS: Registry[type[Kind]] = Registry(
    "promise",
    "cascade.promises",
    {kind.name: f"{__name__}:{kind.__qualname__}" for kind in (Coverage, Error, Regret, Agreement, Preference)},
    _lacks,
    by_place=True,
)
"""The kinds of promises; a package may add more, and "module:Class" names one of your own."""


@cache
def kind_of(name: str) -> Kind | None:
    """Return a kind of promise by its name; None if there is none."""
    rules = KINDS.find(name)
    return None if rules is None else rules()


PROMISE = 'a Promise, as in Promise("regret", 0.05, 0.9)'
"""How messages describe the argument to pass as a promise."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise: a kind, with the risk and the confidence.

    Attributes:
        kind: one of `KINDS`, or the place of a class, "module:Class".
        risk: the share of requests that may be lost, read as the decimal that it is written as.
        confidence: the probability, over calibrations, that the share is no larger; None: on average over calibrations.
        rate: the share of requests that were drawn for people to judge; 1 without judgements.

    Raises:
        UsageError: lists every problem.

    >>> Promise("regret", 0.05, 0.9).delta
    0.1
    """

    kind: str
    risk: float = 0.05
    confidence: float | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        problems = share_problems(risk=self.risk, confidence=self.confidence)
        kind = kind_of(str(self.kind))
        if kind is None:
            problems.append(f"there is no promise {self.kind!r}{did_you_mean(str(self.kind), KINDS.names)}")
        elif not kind.of_set and self.confidence is None:
            problems.append(f"{self.kind} needs a confidence, as in 0.9")
        problems += share_problems(ends=True, rate=self.rate)
        refuse(problems, "This cannot be promised")

    @property
    def rules(self) -> Kind:
        """The kind of promise."""
        kind = kind_of(self.kind)
        assert kind is not None  # noqa: S101 - checked when the promise was made
        return kind

    @property
    def delta(self) -> float | None:
        """The probability that the calibration misleads: 1 − confidence, as decimals."""
        return None if self.confidence is None else float(1 - Fraction(repr(self.confidence)))

    def rank(self, n: int) -> int | None:
        """Return the rank of the threshold of a promise on average among n critical values; None with a confidence."""
        return None if self.confidence is not None else math.floor(Fraction(repr(self.risk)) * (n + 1))

    @property
    def tested_risk(self) -> float:
        """The rate of observed losses that stands for the risk: lower if only drawn requests are judged."""
        return float(Fraction(repr(self.risk)) * Fraction(repr(self.rate)))
