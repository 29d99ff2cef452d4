"""The request for a promise (`Guarantee`), and the methods of every kind of guarantee (`Kind`).

A kind is a class with one object and no state: it calibrates, verifies, audits and describes itself. What is asked for
and what is promised (`types.Certificate`) name it; both are given to its methods. Derive a new kind from one of

| base | what it promises about | risk control |
|---|---|---|
| `kept_answers.KeptAnswers` | the set of answers kept: a right one is among them | split conformal prediction |
| `served_answer.ServedAnswer` | the one answer served: it is not wrong where that counts | Learn then Test |
| `Kind` itself | anything else | your own |

`docs/write-a-guarantee.md` has an example. numpy is imported where it is used: most configurations promise nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

from cascade.checks import did_you_mean, shown_name
from cascade.errors import UsageError
from cascade.money import dollars, exact_dollars
from cascade.registry import Registry, subclass_of
from cascade.text import percent

if TYPE_CHECKING:
    from cascade.conformal.arrays import Bools, Floats, StepFunctions
    from cascade.guarantees.laws import Told
    from cascade.guarantees.questions import Found, Misses, Path, Questions, Scored
    from cascade.types import Answer, Certificate


Judge: TypeAlias = Callable[[str], bool | None]
"""Says whether a text is right; None where that cannot be told."""


class Audit(NamedTuple):
    """The facts about an audited answer that the answer itself does not hold.

    Attributes:
        right: the truth.
        complete: whether all steps were run that the strategy has.
        reference_right: whether the reference alone would have been right; None if unknown.
        last_step: the number of the step that asks the reference, as a ladder's last does; None where no step does.
    """

    right: Judge
    complete: bool
    reference_right: bool | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise that a user asks for, checked.

    Attributes:
        kind: one of `KINDS.names`.
        alpha: the share that may be missed, read as the decimal number that it is written as; None for "budget".
        delta: the share of calibrations that may mislead; None for a promise on average over calibrations.
        budget_nano_usd: the bound on the mean cost of a question, nano-USD.
        most_nano_usd: the hard cap on the cost of each question, nano-USD; a promise on a mean rests on it.
        by_group: as `by_segment`, with the column `group` as the segment and every question for itself; until 0.7.
        abstain: whether no answer may be served where the best one's confidence is low.
        by_segment: whether each segment of questions gets a promise, and a threshold, of its own.
        together: whether the promises for all K segments must hold at once with probability 1 − delta: each is then
            made with delta/K. Else delta holds for each segment by itself.
        tested_before: the questions on which another policy was tested exactly at this delta before this one. The test
            of this one gets what that leaves (`level`), so that the two hold at once. None where there is no other.

    Raises:
        UsageError: everything that is wrong with it.

    >>> Guarantee("coverage", 0.05).alpha
    0.05
    >>> Guarantee("error", 1.5)
    Traceback (most recent call last):
    cascade.errors.UsageError: alpha is 1.5; it must lie between 0 and 1. error needs delta, the share of calibrations that may mislead, as in delta 0.1.
    """  # noqa: E501 - a message stands on one line

    kind: str
    alpha: float | None = 0.1
    delta: float | None = None
    budget_nano_usd: int | None = None
    most_nano_usd: int | None = None
    by_group: bool = False
    abstain: bool = False
    by_segment: bool = False
    together: bool = False
    tested_before: int | None = None

    def __post_init__(self) -> None:
        if self.rules.on_cost:
            object.__setattr__(self, "alpha", None)
        problems = [*_about_shares(self), *_about_money(self), *_about_options(self)]
        if problems:
            raise UsageError(" ".join(problems))

    @property
    def rules(self) -> Kind:
        """The object of its kind, which calibrates, serves and monitors the promise."""
        return get(self.kind)

    @property
    def single(self) -> bool:
        """Whether the promise is about the one answer served, not about the set."""
        return self.rules.single

    @property
    def plain(self) -> bool:
        """Whether it neither abstains nor comes with a budget."""
        return not self.abstain and self.budget_nano_usd is None

    @property
    def reference_keeps_it(self) -> bool:
        """Whether asking the reference alone keeps it, without a test."""
        return self.plain and self.rules.reference_keeps_it

    @property
    def separate(self) -> bool:
        """Whether each segment of questions gets a promise of its own."""
        return self.by_segment or self.by_group

    @property
    def level(self) -> float | None:
        """The part of delta at which a threshold is tested: all of it, or what the test before left unspent."""
        if self.tested_before is None or self.alpha is None or self.delta is None:
            return self.delta
        from cascade.conformal.binomial import unspent

        return unspent(self.tested_before, self.alpha, self.delta)

    def each_delta(self, segments: int) -> float | None:
        """Return the delta of one segment's promise, if the log has this many segments."""
        return self.delta if self.delta is None or not self.together else self.delta / max(segments, 1)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1


def _about_shares(asked: Guarantee) -> Iterator[str]:
    if not asked.rules.on_cost and not _is_share(asked.alpha):
        yield f"alpha is {asked.alpha}; it must lie between 0 and 1."
    if asked.delta is not None and not _is_share(asked.delta):
        yield f"delta is {asked.delta}; it must lie between 0 and 1."
    if asked.rules.needs_delta and asked.delta is None:
        yield f"{asked.kind} needs delta, the share of calibrations that may mislead, as in delta 0.1."


def _about_money(asked: Guarantee) -> Iterator[str]:
    budget, most = asked.budget_nano_usd, asked.most_nano_usd
    if asked.rules.on_cost and budget is None:
        yield f"{asked.kind} needs the bound on the mean cost of a question."
    if budget is not None and not _may_have_budget(asked.rules):
        yield f"A budget goes with {kinds_that(_may_have_budget)}, not with {asked.kind}."
    if budget is not None and most is None:
        yield (
            "A budget needs the most that a question can cost: a mean can be bounded only if the cost of each "
            "question is."
        )
    if budget is None and most is not None:
        yield "The most that a question can cost matters only beside a budget."
    for name, amount in (("The budget", budget), ("The most that a question can cost", most)):
        if amount is not None and amount <= 0:
            yield f"{name} is {exact_dollars(amount)}; it is at least {exact_dollars(1)}."


def _may_have_budget(kind: Kind) -> bool:
    return kind.on_cost or kind.single


def _about_options(asked: Guarantee) -> Iterator[str]:
    if asked.separate and not asked.rules.by_segment:
        yield f"Segments go with {kinds_that(lambda kind: kind.by_segment)}, not with {asked.kind}."
    if asked.by_segment and asked.by_group:
        yield "Ask for a promise by segment or by group, not both."
    if asked.together and not (asked.separate and asked.delta is not None):
        yield "All segments together goes with a promise by segment and a delta."
    before = asked.tested_before
    if before is not None and (before < 1 or not asked.single or None in {asked.alpha, asked.delta}):
        yield f"A test before, here on {before} questions, goes with an alpha, a delta and a promise on the one answer."
    if asked.abstain and not asked.single:
        yield f"Abstaining goes with {kinds_that(lambda kind: kind.single)}, not with {asked.kind}."


def kinds_that(able: Callable[[Kind], bool]) -> str:
    """Return which of the kinds that are built in can do something, in words.

    >>> kinds_that(lambda kind: kind.by_segment)
    'coverage and solvable'
    """
    *most, last = (name for name in KINDS.built_in if able(get(name)))
    return f"{', '.join(most)} and {last}" if most else last


class Kind(ABC):
    """One kind of guarantee.

    Attributes:
        name: what certificates, configurations and the command line call it.
        speaks_of: the set of answers kept, the single one served, or money.
        event: what happens with a question where the promise is kept, in words, as in "the answer served is not wrong";
            None for a promise on a mean, which no single question breaks.
        kept: what a plot or a card counts where the promise is kept, in words.
        worst: what one broken promise is called. A calibration that certifies nothing is not counted as one.
        unspoken: what an audit did not show where the promise does not speak of its question, in words.
        left_out: why the questions that `looked_at` leaves out are left out, in words.
        assumptions: what the promise rests on beside what all promises rest on, a sentence each.
        monotone: whether a lower threshold never breaks it.
        by_segment: whether each segment of questions may have a promise of its own.
        needs_delta: whether it exists only for most calibrations, not on average over them.
        needs_quality: whether it reads how good each answer is, not only which are right.
        needs_reference: whether it reads what the reference answers.
        tests_a_path: whether it tests points one after the other, in an order that other questions give.
        crossable: whether cross-calibration has a bound for it (`design/cross-calibration.md`).
        reference_keeps_it: whether the reference alone keeps it by definition, so that it needs no test.
        counts_unanswered: whether a question counts against it that no step answers rightly.
        compares: whether a right answer is one that equals the reference's output, so that no label is needed.
        reviewed: whether people's judgements can say what counts against it; `labelled` whether labels can.
    """

    name: ClassVar[str]
    speaks_of: ClassVar[Literal["set", "single", "money"]]
    event: ClassVar[str | None] = None
    kept: ClassVar[str]
    worst: ClassVar[str] = "miss"
    unspoken: ClassVar[str] = "found nothing to be right about"
    left_out: ClassVar[str] = "the promise does not speak of them"
    assumptions: ClassVar[tuple[str, ...]] = ()
    monotone: ClassVar[bool] = False
    by_segment: ClassVar[bool] = False
    needs_delta: ClassVar[bool] = False
    needs_quality: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    tests_a_path: ClassVar[bool] = False
    crossable: ClassVar[bool] = False
    reference_keeps_it: ClassVar[bool] = False
    counts_unanswered: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    reviewed: ClassVar[bool] = False
    labelled: ClassVar[bool] = True

    @property
    def monitored(self) -> bool:
        """Whether it is broken question by question, so that audits can count it."""
        return self.event is not None

    @property
    def followed(self) -> bool:
        """Whether a threshold may follow its audits downwards."""
        return self.monitored and self.monotone

    @property
    def single(self) -> bool:
        """Whether the promise is about the one answer served, not about the set."""
        return self.speaks_of == "single"

    @property
    def on_cost(self) -> bool:
        """Whether it bounds a mean cost, and has no alpha."""
        return self.speaks_of == "money"

    @property
    def graded(self) -> bool:
        """Whether its losses are graded, not 0 or 1."""
        return self.event is None and not self.on_cost

    @property
    def counts_misses(self) -> bool:
        """Whether its loss on a question is 1 if no right answer is kept, and else 0."""
        return not self.single and not self.graded

    @property
    def fallback(self) -> Literal["everything", "guide"]:
        """The default fallback after an alarm: the way to serve that keeps the promise whatever has changed."""
        return "guide" if self.single else "everything"

    # --- which questions, and what they lose ---

    def check_truth(self, table: Questions) -> None:
        """Refuse a table in which "right" does not mean what the promise is about.

        Raises:
            UsageError: the promise needs labels and the table has none, or it compares and the table has labels.
        """
        truth, where = table.truth, table.dataset
        if truth is None and self.compares:
            raise UsageError(
                f"{self.name} compares with the reference's output, and in {where} right means what the labels "
                "say. Read the log with --reference guide, or --reference MODEL."
            )
        if truth is None and not self.labelled:
            raise UsageError(f"{self.name} needs what people said of the outputs: cascade review, then --reviews FILE.")
        if truth is None or truth.asked == self.name or (truth.asked is None and self.compares):
            return
        if truth.asked is not None:
            raise UsageError(f"In {where} right means that people found no loss of {truth.asked}, not of {self.name}.")
        advice = (
            "ask for --guarantee agreement, or read a log with labels without --reference, or name the matcher that "
            "judges by the accepted answers where the log has them (column gold): --matcher exact"
        )
        advice += (
            ", or have the outputs that differ judged: cascade review, then --reviews FILE" if self.reviewed else ""
        )
        raise UsageError(
            f"{self.name} needs labels, and in {where} right means equal to what {truth.reference} gives: {advice}."
        )

    def counted(self, table: Questions) -> Bools:
        """Return the questions that the promise is about, as far as the log shows: bool (n,)."""
        import numpy as np

        return np.ones(table.n, dtype=np.bool_)

    def looked_at(self, table: Questions) -> Bools:
        """Return the questions that a calibration reads, bool (n,). Figures beside the promise use the others too.

        Raises:
            UsageError: the log lacks what the promise needs.
        """
        import numpy as np

        return np.ones(table.n, dtype=np.bool_)

    def last_is_safe(self, table: Questions) -> bool:  # noqa: ARG002 - kinds that look at the log derive from this
        """Whether the answer of the log's last step never counts against it, so that the newest answer is served."""
        return False

    @abstractmethod
    def loss(self, table: Questions, confidence: Floats | None = None) -> Floats:
        """Return the loss of stopping after each step with every answer so far kept: float64 (n, T) in 0..1.

        Beyond the end of a record the last loss is repeated. Policies are fitted to these losses.

        Args:
            table: the questions.
            confidence: float64 (n, T, m), what ranks the answers; the strategy's own by default.

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
        """Return on which questions a way to answer breaks the promise: float64 (n,), NaN where no promise is made.

        Args:
            table: the questions.
            right: (n,), whether the one answer served is right, or none is served on purpose; 0..1.
            in_set: (n,), whether a right answer is among those kept; 0..1.
            reference_right: bool (n,), whether the reference is right; None where that is not known.

        Returns:
            None where it cannot be told from these.
        """
        del table, right, in_set, reference_right
        return None

    # --- from questions to a threshold, and back ---

    @abstractmethod
    def calibrate(self, sample: Scored, guarantee: Guarantee, path: Path | None) -> list[Found]:
        """Return the thresholds at which it can be promised: one, or one a segment and one for all others.

        Args:
            sample: the calibration questions.
            guarantee: what is asked for.
            path: the points to test, fixed without these questions; None where there are none.

        Raises:
            UsageError: the questions lack what the promise needs: a reference, confidences, costs.
        """

    def strict_first(self, table: Questions, guarantee: Guarantee) -> bool:  # noqa: ARG002 - as above
        """Whether points are tested from the strictest to the laxest, so that no question has to order them."""
        return False

    def order(self, sample: Scored, guarantee: Guarantee) -> Path:
        """Return the order that some questions suggest, which then do not certify, where it tests a path."""
        del sample
        raise UsageError(f"{guarantee.kind} tests no path, so that there is nothing to order.")

    def certain_loss(self, n: int, alpha: float, delta: float | None) -> float:
        """Return the mean loss that n calibration questions allow; 0 if they are too few for a threshold."""
        from cascade.conformal.binomial import most_losses

        return (most_losses(n, alpha, 0.5 if delta is None else delta) or 0) / max(n, 1)

    def verify(self, certificate: Certificate, sample: Scored) -> Iterator[Told]:
        """Test a promise on fresh questions, and yield a result for each thing that is promised.

        Args:
            certificate: what is promised.
            sample: questions that it is about, one or more, which neither the policy nor the calibration has seen.

        Guarantee: a promise that is kept is refuted with probability at most 5 %, one with delta with delta more.
        """
        from cascade.guarantees.laws import on_cost, on_share

        if self.monitored:
            yield on_share(certificate, self.misses(certificate, sample))
        if certificate.budget_nano_usd is not None:
            yield on_cost(certificate, sample)

    def misses(self, certificate: Certificate, sample: Scored) -> Misses:
        """Return which questions count against a promise as it is served.

        Raises:
            UsageError: the promise is on a mean, or the log lacks what it needs.
        """
        del certificate, sample
        raise UsageError(f"No single question breaks a promise of {self.name}.")

    # --- audits ---

    def reads_all_steps(self, audit: Audit) -> bool:  # noqa: ARG002 - as above
        """Whether an audit shows whether a question was missed only where every step of it is as at calibration."""
        return not self.single

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether an audited question was missed; None if the promise is not about this question.

        Raises:
            UsageError: what is needed was not said.
        """
        del answer, audit
        raise UsageError(f"No single answer breaks a promise of {self.name}.")

    # --- in words ---

    def describe(self, certificate: Certificate) -> str:
        """Return the promise in a sentence."""
        least = percent(certificate.alpha or 0.0, rest=True)
        said = f"With probability at least {least} over {one_question(certificate)}, {self.event}"
        budget = certificate.budget_nano_usd
        return f"{said}." if budget is None else f"{said}; and a question costs at most {dollars(budget)} on average."

    def impossible(self, lost: str, reference: str) -> str:  # noqa: ARG002 - as above
        """Return why no policy can keep it, on a log where every policy loses the share `lost` of the questions.

        Args:
            lost: the share, as a percentage.
            reference: what the reference is called.
        """
        return f"the records of {lost} of the questions end without a right answer"


KINDS: Registry[type[Kind]] = Registry(
    "guarantee",
    "cascade.guarantees",
    {
        "coverage": "cascade.guarantees.kept_answers:Coverage",
        "solvable": "cascade.guarantees.kept_answers:Solvable",
        "f1": "cascade.guarantees.f1:F1",
        "budget": "cascade.guarantees.budget:Budget",
        "regret": "cascade.guarantees.served_answer:Regret",
        "error": "cascade.guarantees.served_answer:Error",
        "agreement": "cascade.guarantees.served_answer:Agreement",
        "preference": "cascade.guarantees.served_answer:Preference",
    },
    subclass_of(Kind),
)
"""Every kind by its name. No name is a place in code: certificates name kinds, and reading one runs nothing of it."""
DEFAULT = "coverage"
"""What is promised where no kind is named, and no budget given."""


def default_kind(*, budget: bool, compared: bool = False) -> str:
    """Return the default kind: `agreement` without labels, else `budget` if there is a budget, else `DEFAULT`."""
    return "agreement" if compared else "budget" if budget else DEFAULT


def is_known(name: object) -> bool:
    """Whether there is a kind of guarantee of that name."""
    return name in KINDS.built_in or name in KINDS.names


@cache
def get(name: str) -> Kind:
    """Return the kind of guarantee of a name.

    Raises:
        UsageError: no guarantee has that name, or an installed one cannot be used.

    >>> get("coverage").event
    'a right answer is among those kept, or no step would have brought one'
    """
    found = KINDS.find(name)
    if found is None:
        raise UsageError(f"There is no guarantee {shown_name(name)}{did_you_mean(name, KINDS.names)}.")
    if found.name != name:
        raise UsageError(f"The guarantee {name!r} calls itself {found.name!r}: its class must have name = {name!r}.")
    return found()


def one_question(certificate: Certificate) -> str:
    """Return, in words, over what a certificate's probability is taken."""
    one = "a random question of a random fresh group" if certificate.unit == "group" else "a fresh question"
    return one if certificate.delta is not None else f"the calibration and {one}"


def many_questions(certificate: Certificate) -> str:
    """Return, in words, over what a certificate's mean is taken."""
    many = "random questions of random fresh groups" if certificate.unit == "group" else "fresh questions"
    return many if certificate.delta is not None else one_question(certificate)
