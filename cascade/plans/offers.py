"""A strategy as data: a list of offers, each one call to one model for one purpose.

A ladder, two cheap opinions, self-consistency with an adaptive stop, judged rounds, and panels of judges are lists of
offers. A step is one offer, in the order of the list, and has at most one candidate, so that a policy decides before
each call whether it is worth its price. An offer's result depends on its parents alone, never on the policy: a log of
all offers gives the exact result of any policy.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator

from cascade.checks import did_you_mean, shown_name
from cascade.errors import ConfigError, ProviderError, UsageError
from cascade.matching.requests import agreement
from cascade.plans import reply
from cascade.plans import verdict as verdicts
from cascade.plans.base import NOTHING_BOUGHT, ModelUse, Plan, Strategy, following
from cascade.plans.config import StrategyConfig
from cascade.plans.form import Form, form_of
from cascade.plans.ladder import Ladder
from cascade.plans.prompts import Prompts, load, question_text
from cascade.plans.verdict import Verdict
from cascade.policies.base import Takes
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES
from cascade.section import Section
from cascade.text import data_block, defuse
from cascade.types import Candidate, Completion, Message, Question, Request, Step

Purpose: TypeAlias = Literal["answer", "sample", "judge", "verify", "outright"]
JUDGING = frozenset({"judge", "verify"})
_OF_JUDGES = frozenset({"p_yes", "verdict_mass", "judge_share"})
"""The signals of an offer that judges."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One call that can be bought.

    Attributes:
        name: its name in logs and answers.
        use: the model and how it is asked.
        purpose: "answer": the model answers; if the offer has parents, it reads their answer and verdict first.
            "sample": the same prompt is sampled again. "judge": the model says whether its parent's answer is right.
            "verify": it also gives its own answer after a no. "outright": an answer of the model that the other offers
            save.
        parents: the numbers of the offers that it reads, from 1.
    """

    name: str
    use: ModelUse
    purpose: Purpose = "answer"
    parents: tuple[int, ...] = ()


@dataclass(slots=True)
class _Purchase:
    """The result of an offer: its candidate, the reply that gave it, and the verdict, if the offer judges."""

    offer: Offer
    candidate: Candidate | None = None
    said: str | None = None
    reasoning: str = ""
    verdict: Verdict = verdicts.NO_VERDICT


_Making: TypeAlias = Generator[Request, Completion, Step]


@dataclass(frozen=True, slots=True)
class Offers(Strategy):
    """The strategy of a list of offers.

    They are in the order in which they are bought, and the last is the reference. Of the prompts, `answer`, `again` and
    `judge` are used. With `calls` a policy decides before each call which offer is bought next.
    """

    offers: tuple[Offer, ...]
    prompts: Prompts = field(default_factory=load)
    calls: bool = False

    @property
    def horizon(self) -> int:
        """T, the number of offers."""
        return len(self.offers)

    @property
    def models(self) -> tuple[str, ...]:
        """The models, each once."""
        return tuple(dict.fromkeys(offer.use.name for offer in self.offers))

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the offers."""
        return tuple([offer.name for offer in self.offers])

    @property
    def ends_with_reference(self) -> bool:
        """The last offer is the reference."""
        return True

    def only(self, takes: Takes) -> Strategy:
        """Return some of the offers, or the model of the last one alone."""
        if takes.calls:
            return replace(self, calls=True)
        if takes.reference:
            return Ladder((self.offers[-1].use,), self.prompts)
        if not takes.steps or max(takes.steps) > self.horizon:
            listed = ", ".join(map(str, takes.steps))
            raise UsageError(
                f"The policy takes the steps {listed} of a list of offers, but this list has {self.horizon}."
            )
        place = {step: number for number, step in enumerate(takes.steps, 1)}
        chosen = [self.offers[step - 1] for step in takes.steps]
        lacking = [offer.name for offer in chosen if not place.keys() >= {*offer.parents}]
        if lacking:
            raise UsageError(f"The policy leaves out offers that {', '.join(lacking)} must read.")
        kept = [replace(offer, parents=tuple([place[parent] for parent in offer.parents])) for offer in chosen]
        return replace(self, offers=tuple(kept))

    def plan(self, question: Question) -> Plan:
        """Plan one call a step.

        Raises:
            UsageError: an offer would have to read another model's message of a chat request.
        """
        if question.chat is not None and any(offer.purpose in JUDGING or offer.parents for offer in self.offers):
            raise UsageError(
                "Offers that read other offers cannot answer chat requests: use offers of the purposes answer, sample "
                "and outright without parents, kind: ladder or kind: base_guide."
            )
        form, bought = form_of(question, self.prompts), [_Purchase(offer) for offer in self.offers]
        number = following((yield NOTHING_BOUGHT), 0, self.horizon) if self.calls else 1
        while number <= self.horizon:
            last = number == self.horizon and not any(one.candidate for one in bought)
            one = bought[number - 1]
            offer = one.offer
            try:
                if offer.purpose in JUDGING:
                    step = yield from self._judges(question, number, one, bought)
                else:
                    step = yield from self._answers(form, question, number, one, bought, last=last)
            except ProviderError as error:
                if error.shown or last:
                    raise
                step = Step(number, (), {}, (f"{offer.name} failed: {type(error).__name__}: {error}",))
            told = yield step._replace(parents=offer.parents)
            number = following(told, number, self.horizon) if self.calls else number + 1

    def _answers(
        self, form: Form, question: Question, number: int, one: _Purchase, bought: Sequence[_Purchase], *, last: bool
    ) -> _Making:
        """Ask a model for an answer; it reads its parents' results."""
        offer = one.offer
        request = form.request(self._drawn(number), offer.name, number)
        read = [bought[parent - 1] for parent in offer.parents]
        if any(parent.said is None for parent in read):
            return Step(number, (), {}, (f"{offer.name} was not asked: what it reads is missing",))
        if read:
            request = request._replace(messages=self._again(question, read))
        completion = yield request
        reading = form.read(completion, request, last=last)
        numbers, warnings = dict(reading.signals), () if reading.warning is None else (reading.warning,)
        earlier, alike = _answered(bought), _answered(bought, offer.use.name)
        one.said, one.candidate = completion.text, reading.candidate
        if self._judged:
            numbers["p_yes"] = None  # without this signal a table would take the log-probs as the confidence
        if one.candidate is None:
            notes = (f"the reply of {offer.name} has no complete answer",)
            return Step(number, (), numbers, notes, warnings=warnings)
        if question.chat is None:
            one.reasoning = reply.split_reply(completion.text)[0]
        numbers["agrees_with_earlier"] = agreement(one.candidate.text, earlier, question.chat)
        if offer.purpose == "sample":
            numbers["answer_share"] = (
                agreement(one.candidate.text, [*alike, one.candidate.text], question.chat) if alike else None
            )
        return Step(number, (one.candidate,), numbers, warnings=warnings)

    def _drawn(self, number: int) -> ModelUse:
        """Return how the model of an offer is asked: a later sample has another seed, if a seed is set."""
        offer = self.offers[number - 1]
        if offer.purpose != "sample" or offer.use.seed is None:
            return offer.use
        before = sum(one.use.name == offer.use.name for one in self.offers[: number - 1])
        return replace(offer.use, seed=offer.use.seed + before)

    def _again(self, question: Question, read: Sequence[_Purchase]) -> tuple[Message, ...]:
        """Return the question, the earlier reply, and the judgement of it.

        A small model repeats the word that it is told as its next answer, so it is told the verifier's answer and not
        its yes or no.
        """
        answered = next(one for one in read if one.offer.purpose not in JUDGING)
        judged = [one.verdict.correction for one in read if one.offer.purpose == "verify"]
        suggested = next((said for said in judged if said is not None), None)
        fields = {"opinion": "doubtful"} if suggested is None else {"suggested_answer": suggested}
        return (
            *self.prompts.answer.fill(question_text(question)),
            Message("assistant", defuse(answered.said or "")),
            *self.prompts.again.fill(data_block(fields)),
        )

    def _judges(self, question: Question, number: int, one: _Purchase, bought: Sequence[_Purchase]) -> _Making:
        """Ask a model whether its parent's answer is right; the step offers that answer again, now judged."""
        offer, judged = one.offer, bought[one.offer.parents[0] - 1]
        answer = judged.said if judged.candidate is None else judged.candidate.text
        if answer is None:
            return Step(number, (), {"p_yes": None}, (f"{offer.name} has no answer to judge",))
        messages = self.prompts.judge.fill(verdicts.judged_block(question, answer, judged.reasoning))
        completion = yield offer.use.request(messages, offer.name, "judge", number, question, verdicts.ALTERNATIVES)
        found = verdicts.read(completion, answer)
        if verdicts.without_alternatives(completion):
            found = verdicts.combine([completion], answer)
        one.verdict = found = verdicts.sensible(found, answer)
        one.said = completion.text
        numbers = {"p_yes": found.p_yes, "verdict_mass": found.mass, "judge_share": _share(one, bought)}
        notes = (
            () if found.p_yes is not None else (f"no verdict: {offer.name} said neither a clear yes nor a clear no",)
        )
        one.candidate = _as_judged(one, judged)
        return Step(number, () if one.candidate is None else (one.candidate,), numbers, notes)

    @property
    def _judged(self) -> bool:
        return any(offer.purpose in JUDGING for offer in self.offers)


def _as_judged(one: _Purchase, judged: _Purchase) -> Candidate | None:
    """Return the judged answer with the judge's probability; after a verifier's no, the verifier's own answer."""
    verdict, offer = one.verdict, one.offer
    if offer.purpose == "verify" and verdict.correction is not None:
        doubt = None if verdict.p_yes is None else 1.0 - verdict.p_yes
        return Candidate(verdict.correction, offer.name, offer.use.name, doubt)
    if judged.candidate is None:
        return None
    return judged.candidate._replace(source=offer.name, confidence=verdict.p_yes)


def _answered(bought: Sequence[_Purchase], model: str | None = None) -> list[str]:
    """Return the answers so far, of one model or of all; an answer that a judge offers again counts once."""
    return [
        one.candidate.text
        for one in bought
        if one.candidate is not None
        and one.offer.purpose not in JUDGING
        and (model is None or one.offer.use.name == model)
    ]


def _share(one: _Purchase, bought: Sequence[_Purchase]) -> float | None:
    """Return the share of an answer's judges, this one included, that said yes; None without a verdict."""
    same = [other for other in bought if other.offer.purpose in JUDGING and other.offer.parents == one.offer.parents]
    said = [judge.verdict.says_yes for judge in same if judge.verdict.says_yes is not None]
    return sum(said) / len(said) if said else None


class OfferConfig(Section):
    """One offer: its name, the entry under `models` that is asked, the purpose, and the offers that it reads."""

    name: str = Field(min_length=1)
    model: str
    purpose: Purpose = "answer"
    parents: tuple[str, ...] = ()


class OffersConfig(StrategyConfig):
    """A list of offers, each one call, bought one after another until the policy stops."""

    kind: Literal["offers"]
    offers: tuple[OfferConfig, ...] = Field(min_length=1)

    signals = OF_ANSWERS | OF_MESSAGES | {"p_yes", "verdict_mass", "judge_share", "answer_share"}
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "reply_logprob"}
    has_reference = True
    has_parts = True
    has_calls = True
    answers_chat = True

    @field_validator("offers")
    @classmethod
    def _can_be_bought(cls, value: tuple[OfferConfig, ...]) -> tuple[OfferConfig, ...]:
        problems = list(_problems(value))
        if problems:
            raise ValueError("\n".join(problems))  # one problem a line: `config.problems` separates them again
        return value

    @property
    def no_chat(self) -> str | None:
        """Name the offers that read others: they have no prompt for chat requests."""
        reading = [one.name for one in self.offers if one.parents]
        return f"{', '.join(reading)}: offers that read others answer no chat requests" if reading else None

    @property
    def given(self) -> frozenset[str]:
        """The signals of the offers: a verdict if one of them judges, the share of equal samples if one is a sample."""
        of_purpose = {"sample": {"answer_share"}} | dict.fromkeys(JUDGING, _OF_JUDGES)
        of_none = self.signals - _OF_JUDGES - {"answer_share"}
        return of_none.union(*[of_purpose.get(one.purpose, set()) for one in self.offers])

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs, the reference's last."""
        last = self.offers[-1].model
        return (*dict.fromkeys(one.model for one in self.offers if one.model != last), last)

    @property
    def horizon(self) -> int:
        """T, the number of offers."""
        return len(self.offers)

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Offers:
        """Return the strategy.

        Raises:
            ConfigError: a model would be sampled at temperature 0, at which all samples are equal.
        """
        fixed = [one.name for one in self.offers if one.purpose == "sample" and not uses[one.model].temperature]
        if fixed:
            raise ConfigError(
                [f"strategy.offers: {', '.join(fixed)}: a sample needs a model with a temperature above 0"]
            )
        number = {one.name: place for place, one in enumerate(self.offers, 1)}
        made = [
            Offer(one.name, uses[one.model], one.purpose, tuple(sorted(number[parent] for parent in one.parents)))
            for one in self.offers
        ]
        return Offers(tuple(made), prompts)

    def role(self, place: str, model: str) -> str:  # noqa: ARG002 - as in a ladder
        """Return the model's own name, which names it in a table of steps with one answer."""
        return model

    def described(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return the settings with the models by their own names."""
        known = dict(zip(self.places, roles, strict=True))
        offers = [{**one.model_dump(mode="json"), "model": known[one.model]} for one in self.offers]
        return {**super().described(roles), "offers": offers}

    def step_roles(self, roles: Sequence[str]) -> list[str]:
        """Return the model of each offer."""
        known = dict(zip(self.places, roles, strict=True))
        return [known[one.model] for one in self.offers]


def _problems(offers: Sequence[OfferConfig]) -> Iterator[str]:
    names, earlier = [one.name for one in offers], dict[str, OfferConfig]()
    for one in offers:
        if one.name in earlier:
            yield f"{one.name} is named more than once"
        if one.name != one.name.strip() or not one.name.isprintable():
            yield f"{one.name!r}: a name must not begin or end with a space, or have a line break"
        unknown = [parent for parent in one.parents if parent not in earlier]
        for parent in unknown:
            yield f"{one.name}: {_unreadable(parent, one, names, earlier)}"
        if not unknown:
            yield from _parent_problems(one, [earlier[parent] for parent in one.parents])
        earlier[one.name] = one
    if offers[-1].purpose in JUDGING or offers[-1].parents:
        yield (
            f"{offers[-1].name}: the last offer is the reference: an answer without parents, as in "
            "{name: guide, model: guide, purpose: outright}"
        )


def _unreadable(parent: str, one: OfferConfig, names: Sequence[str], earlier: Iterable[str]) -> str:
    if parent == one.name:
        return "it reads itself"
    if parent in names:
        return f"it reads {parent}, so {parent} must come before it"
    return f"its parent {shown_name(parent)} is not an offer{did_you_mean(parent, earlier)}"


def _parent_problems(one: OfferConfig, read: Sequence[OfferConfig]) -> Iterator[str]:
    answers = sum(parent.purpose not in JUDGING for parent in read)
    given = ", ".join(f"{parent.name} ({parent.purpose})" for parent in read) or "none"
    if one.purpose in JUDGING and (len(read) != 1 or not answers):
        yield f"{one.name}: purpose {one.purpose} needs one parent, the answer that it judges, and this has {given}"
    elif one.purpose in {"sample", "outright"} and read:
        yield f"{one.name}: an offer of purpose {one.purpose} cannot read other offers; use purpose: answer"
    elif read and one.purpose == "answer" and answers != 1:
        yield (
            f"{one.name}: an answer that reads others has one answer among its parents, and judges of it; here it has "
            f"{given}"
        )
