"""The request for a promise (`Guarantee`), and the methods of every kind of guarantee (`Kind`).

A kind is a class with one stateless object, which calibrates, verifies, audits and describes a promise. A request
(`Guarantee`) and a certificate (`types.Certificate`) name their kind and are passed to its methods. Derive a new kind
from one of

| base | what it promises about | risk control |
|---|---|---|
| `kept_answers.KeptAnswers` | the set of answers kept: a right one is among them | split conformal prediction |
| `served_answer.ServedAnswer` | the one answer served: it is not lost, as the kind defines it | Learn then Test |
| `Kind` itself | anything else | your own |

`docs/write-a-promise.md` has an example. numpy is imported where it is used: most configurations promise nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

from cascade.checks import did_you_mean, shown_name
from cascade.errors import UsageError
from cascade.registry import Registry, subclass_of
from cascade.text import percent

if TYPE_CHECKING:
    from cascade.conformal.arrays import Bools, Floats, StepFunctions
    from cascade.guarantees.laws import Told
    from cascade.guarantees.questions import Found, Misses, Path, Questions, Scored
    from cascade.types import Answer, Certificate


Judge: TypeAlias = Callable[[str], bool | None]
"""Returns whether a text is right; None if unknown."""


class Audit(NamedTuple):
    """The facts about an audited answer that the answer object does not have.

    Attributes:
        right: whether the answer served is right.
        complete: whether all steps of the strategy were run.
        reference_right: whether the reference alone would have been right; None if unknown.
        last_step: the number of the step that asks the reference, such as a ladder's last; None if no step asks it.
    """

    right: Judge
    complete: bool
    reference_right: bool | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise that a user requests, checked.

    Attributes:
        kind: one of `KINDS.names`.
        alpha: the share of questions that may break the promise, read as a decimal number.
        delta: the share of calibrations that may break the promise; None for a promise on average over calibrations.
        abstain: whether nothing may be served if the best answer's confidence is low.
        by_segment: whether each segment of questions gets a promise, and a threshold, of its own.
        tested_before: the number of questions on which another policy was tested before, exactly at this delta. This
            policy is tested at the remaining part of delta (`level`), so that both promises hold at once. None without
            such a test.

    Raises:
        UsageError: the request is not valid; lists every problem.

    >>> Guarantee("coverage", 0.05).alpha
    0.05
    >>> Guarantee("error", 1.5, 0.1)
    Traceback (most recent call last):
    cascade.errors.UsageError: alpha is 1.5; it must lie between 0 and 1.
    """

    kind: str
    alpha: float = 0.1
    delta: float | None = None
    abstain: bool = False
    by_segment: bool = False
    tested_before: int | None = None

    def __post_init__(self) -> None:
        problems = [*_about_shares(self), *_about_options(self)]
        if problems:
            raise UsageError(" ".join(problems))

    @property
    def rules(self) -> Kind:
        """The kind's object, which calibrates, serves and monitors the promise."""
        return get(self.kind)

    @property
    def single(self) -> bool:
        """Whether the promise is about the one answer served, not about the set."""
        return self.rules.single

    @property
    def reference_keeps_it(self) -> bool:
        """Whether asking the reference alone keeps the promise, so that no test is needed."""
        return not self.abstain and self.rules.reference_keeps_it

    @property
    def level(self) -> float | None:
        """The part of delta at which a threshold is tested: all of it, or what an earlier test did not use."""
        if self.tested_before is None or self.delta is None:
            return self.delta
        from cascade.conformal.binomial import unspent

        return unspent(self.tested_before, self.alpha, self.delta)


def is_share(value: object) -> bool:
    """Whether a value is a number strictly between 0 and 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1


def _about_shares(asked: Guarantee) -> Iterator[str]:
    if not is_share(asked.alpha):
        yield f"alpha is {asked.alpha}; it must lie between 0 and 1."
    if asked.delta is not None and not is_share(asked.delta):
        yield f"delta is {asked.delta}; it must lie between 0 and 1."
    if asked.rules.needs_delta and asked.delta is None:
        yield f"{asked.kind} needs delta, the share of calibrations that may break the promise, as in delta 0.1."


def _about_options(asked: Guarantee) -> Iterator[str]:
    if asked.by_segment and not asked.rules.by_segment:
        yield f"Segments go with {kinds_that(lambda kind: kind.by_segment)}, not with {asked.kind}."
    before = asked.tested_before
    if before is not None and (before < 1 or not asked.single or asked.delta is None):
        yield f"An earlier test, here on {before} questions, needs a delta and a promise on the one answer."
    if asked.abstain and not asked.single:
        yield f"Abstaining goes with {kinds_that(lambda kind: kind.single)}, not with {asked.kind}."


def kinds_that(able: Callable[[Kind], bool]) -> str:
    """Return, in words, the built-in kinds that satisfy a condition.

    >>> kinds_that(lambda kind: kind.by_segment)
    'coverage'
    """
    *most, last = (name for name in KINDS.built_in if able(get(name)))
    return f"{', '.join(most)} and {last}" if most else last


class Kind(ABC):
    """One kind of guarantee.

    Attributes:
        name: its name in certificates, configurations and on the command line.
        speaks_of: the subject of the promise: the set of answers kept, or the single answer served.
        event: what happens on a question for which the promise is kept, in words, such as "the answer served is not
            wrong"; None for a promise on a mean, which no single question can break.
        kept: the kept promise in words, for plots and cards.
        worst: the noun for a broken promise, such as "miss". A calibration that certifies nothing is not counted as
            one.
        unspoken: why a promise does not cover an audited question: a verb phrase after "audits".
        left_out: why `looked_at` leaves out questions, in words.
        assumptions: the assumptions of this kind besides those of all kinds, a sentence each.
        by_segment: whether each segment of questions may have a promise of its own.
        needs_delta: whether the kind requires a delta, because no promise on average over calibrations exists.
        needs_reference: whether the kind reads the reference's answers.
        tests_a_path: whether a calibration tests points in an order that was fixed on other questions.
        reference_keeps_it: whether the reference alone keeps the promise by definition, so that it needs no test.
        counts_unanswered: whether a question that no step answers rightly breaks the promise.
        compares: whether "right" means equal to the reference's output, so that no label is needed.
        reviewed: whether people's judgements can decide which questions break the promise.
        labelled: whether labels can decide it.
    """

    name: ClassVar[str]
    speaks_of: ClassVar[Literal["set", "single"]]
    event: ClassVar[str | None] = None
    kept: ClassVar[str]
    worst: ClassVar[str] = "miss"
    unspoken: ClassVar[str] = "found nothing to be right about"
    left_out: ClassVar[str] = "the promise does not cover them"
    assumptions: ClassVar[tuple[str, ...]] = ()
    by_segment: ClassVar[bool] = False
    needs_delta: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    tests_a_path: ClassVar[bool] = False
    reference_keeps_it: ClassVar[bool] = False
    counts_unanswered: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    reviewed: ClassVar[bool] = False
    labelled: ClassVar[bool] = True

    @property
    def monitored(self) -> bool:
        """Whether a single question can break the promise, so that audits can count the misses."""
        return self.event is not None

    @property
    def single(self) -> bool:
        """Whether the promise is about the one answer served, not about the set."""
        return self.speaks_of == "single"

    @property
    def counts_misses(self) -> bool:
        """Whether a question's loss is 1 if no right answer is kept, and otherwise 0."""
        return not self.single and self.event is not None

    @property
    def fallback(self) -> Literal["everything", "guide"]:
        """The default fallback after an alarm, which keeps the promise even if the models have changed."""
        return "guide" if self.single else "everything"

    # --- questions and losses ---

    def check_truth(self, table: Questions) -> None:
        """Check that "right" in a table means what the promise is about.

        Raises:
            UsageError: the promise needs labels and the table has none, or it compares and the table has labels.
        """
        truth, where = table.truth, table.dataset
        if truth is None and self.compares:
            raise UsageError(
                f"{self.name} compares with the reference's output, but in {where} the labels decide what is right. "
                "Read the log with --reference guide, or --reference MODEL."
            )
        if truth is None and not self.labelled:
            raise UsageError(
                f"{self.name} needs people's judgements of the outputs: cascade review, then --reviews FILE."
            )
        if truth is None or truth.asked == self.name or (truth.asked is None and self.compares):
            return
        if truth.asked is not None:
            raise UsageError(f"In {where} people judged the outputs for {truth.asked}, not for {self.name}.")
        advice = (
            "ask for --promise agreement, or read a log with labels without --reference, or name the matcher that "
            "judges by the accepted answers where the log has them (column gold): --matcher exact"
        )
        advice += (
            ", or have the outputs that differ judged: cascade review, then --reviews FILE" if self.reviewed else ""
        )
        raise UsageError(
            f"{self.name} needs labels, but in {where} right means equal to what {truth.reference} gives: {advice}."
        )

    def counted(self, table: Questions) -> Bools:
        """Return the questions that the promise covers, as far as the log shows: bool (n,)."""
        import numpy as np

        return np.ones(table.n, dtype=np.bool_)

    def looked_at(self, table: Questions) -> Bools:
        """Return the questions that a calibration reads: bool (n,). Other figures also use the remaining questions.

        Raises:
            UsageError: the log lacks what the promise needs.
        """
        import numpy as np

        return np.ones(table.n, dtype=np.bool_)

    def last_is_safe(self, table: Questions) -> bool:  # noqa: ARG002 - kinds that look at the log derive from this
        """Whether the last step's answer never breaks the promise, so that the newest answer is served."""
        return False

    @abstractmethod
    def loss(self, table: Questions, confidence: Floats | None = None) -> Floats:
        """Return the loss of stopping after each step with every answer so far kept: float64 (n, T) in 0..1.

        Beyond the end of a record the last loss is repeated. Policies are fitted to these losses.

        Args:
            table: the questions.
            confidence: float64 (n, T, m), the confidences that rank the answers; by default the strategy's own.

        Raises:
            UsageError: the log lacks what the promise needs.
        """

    @abstractmethod
    def losses(self, sample: Scored) -> StepFunctions:
        """Return each question's loss as the threshold falls; policies are compared by these losses.

        Raises:
            UsageError: the log lacks what the promise needs.
        """

    def broken(
        self,
        table: Questions,
        right: Bools | Floats,
        in_set: Bools | Floats,
        reference_right: Bools | None,
    ) -> Floats | None:
        """Return how often a method breaks the promise on each question: float64 (n,) in 0..1, NaN if not covered.

        Args:
            table: the questions.
            right: (n,), whether the one answer served is right, or the method abstains; a probability in 0..1 for a
                method that draws at random.
            in_set: (n,), whether a right answer is among those kept; also 0..1.
            reference_right: bool (n,), whether the reference is right; None if unknown.

        Returns:
            None if these arguments do not determine it.
        """
        del table, right, in_set, reference_right
        return None

    # --- calibration and verification ---

    @abstractmethod
    def calibrate(self, sample: Scored, guarantee: Guarantee, path: Path | None) -> list[Found]:
        """Return the threshold to certify, or one for each segment, where too few questions keep everything.

        Args:
            sample: the calibration questions.
            guarantee: the requested guarantee.
            path: the points to test, fixed without these questions; None if the kind tests none.

        Raises:
            UsageError: the questions lack what the promise needs: a reference, confidences, costs.
        """

    def strict_first(self, table: Questions, guarantee: Guarantee) -> bool:  # noqa: ARG002 - as above
        """Whether points are tested from the strictest to the most lenient, an order that needs no questions."""
        return False

    def order(self, sample: Scored, guarantee: Guarantee) -> Path:
        """Return a path ordered on selection questions, which may not be calibration questions too."""
        del sample
        raise UsageError(f"{guarantee.kind} tests no path: it has no points to order.")

    def certain_loss(self, n: int, alpha: float, delta: float | None) -> float:
        """Return the mean loss that n calibration questions allow; 0 if n is too small for a threshold.

        If n is enough but allows no loss, return 1 / n: thresholds pass until the first loss.
        """
        from cascade.conformal.binomial import most_losses

        allowed = most_losses(n, alpha, 0.5 if delta is None else delta)
        return 0.0 if allowed is None else min(max(allowed, 1) / n, alpha)

    def verify(self, certificate: Certificate, sample: Scored) -> Iterator[Told]:
        """Test a promise on fresh questions; yield a result for each part of it.

        Args:
            certificate: the promise.
            sample: one or more questions that it covers and that neither the policy nor the calibration has seen.

        Guarantee: a promise that is kept is refuted with probability at most 5 %, or 5 % + delta if it has a delta.
        """
        from cascade.guarantees.laws import on_share

        if self.monitored:
            yield on_share(certificate, self.misses(certificate, sample))

    def misses(self, certificate: Certificate, sample: Scored) -> Misses:
        """Return the questions that break a promise at its threshold.

        Raises:
            UsageError: the promise is on a mean, or the log lacks what it needs.
        """
        del certificate, sample
        raise UsageError(f"No single question breaks a promise of {self.name}.")

    # --- audits ---

    def reads_all_steps(self, audit: Audit) -> bool:  # noqa: ARG002 - as above
        """Whether an audit decides a miss only if the calibration has seen steps like every step of the question."""
        return not self.single

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether an audited question breaks the promise; None if the promise does not cover it.

        Raises:
            UsageError: the audit lacks a fact that is needed.
        """
        del answer, audit
        raise UsageError(f"No single answer breaks a promise of {self.name}.")

    # --- in words ---

    def describe(self, certificate: Certificate) -> str:
        """Return the promise in a sentence."""
        least = percent(certificate.alpha or 0.0, rest=True)
        said = f"With probability at least {least} over {one_question(certificate)}, {self.event}"
        return f"{said}."

    def impossible(self, lost: str, reference: str) -> str:  # noqa: ARG002 - as above
        """Return why no policy can keep the promise on a log where every policy loses the share `lost`.

        Args:
            lost: the share, as a percentage.
            reference: the name of the reference.
        """
        return f"the records of {lost} of the questions end without a right answer"


KINDS: Registry[type[Kind]] = Registry(
    "guarantee",
    "cascade.guarantees",
    {
        "coverage": "cascade.guarantees.kept_answers:Coverage",
        "regret": "cascade.guarantees.served_answer:Regret",
        "error": "cascade.guarantees.served_answer:Error",
        "agreement": "cascade.guarantees.served_answer:Agreement",
        "preference": "cascade.guarantees.served_answer:Preference",
    },
    subclass_of(Kind),
)
"""Every kind by its name. Names are not import paths: reading a certificate must not run code that it names."""
DEFAULT = "coverage"
"""The default kind where the log has labels."""


def default_kind(*, compared: bool = False) -> str:
    """Return the default kind: `agreement` without labels, else `DEFAULT`."""
    return "agreement" if compared else DEFAULT


def is_known(name: object) -> bool:
    """Whether there is a kind of guarantee of that name."""
    return name in KINDS.built_in or name in KINDS.names


@cache
def get(name: str) -> Kind:
    """Return the kind of guarantee of a name.

    Raises:
        UsageError: no guarantee has that name, or an installed one cannot be used.

    >>> get("coverage").event
    'a right answer is among those kept, or no step would have given one'
    """
    found = KINDS.find(name)
    if found is None:
        raise UsageError(f"There is no guarantee {shown_name(name)}{did_you_mean(name, KINDS.names)}.")
    if found.name != name:
        raise UsageError(f"The guarantee {name!r} calls itself {found.name!r}: its class must have name = {name!r}.")
    return found()


def one_question(certificate: Certificate) -> str:
    """Return a phrase for what is random in a certificate's probability."""
    one = "a random question of a random fresh group" if certificate.unit == "group" else "a fresh question"
    return one if certificate.delta is not None else f"the calibration and {one}"
