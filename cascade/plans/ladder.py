"""A list of models, cheapest first: a step is one model's answer, and models are asked until the policy stops.

A ladder of one model is that model alone, at its own cost: the baseline that a cascade has to beat.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from cascade.errors import ProviderError, UsageError
from cascade.matching.requests import agreement
from cascade.plans.base import NOTHING_BOUGHT, ModelUse, Plan, Strategy, following
from cascade.plans.config import StrategyConfig
from cascade.plans.form import Form, form_of
from cascade.plans.prompts import Prompts, load
from cascade.policies.base import Takes
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES
from cascade.types import SKIP, Completion, Question, Request, Step


@dataclass(frozen=True, slots=True)
class Ladder(Strategy):
    """The ladder strategy.

    Of the prompts only `answer` is used. With `logprobs` these are requested even if the application did not ask for
    them: policies read them. With `calls` a policy decides before each call which model is asked next.
    """

    rungs: tuple[ModelUse, ...]
    prompts: Prompts = field(default_factory=load)
    logprobs: bool = True
    calls: bool = False

    @property
    def horizon(self) -> int:
        """T, the number of models."""
        return len(self.rungs)

    @property
    def models(self) -> tuple[str, ...]:
        """The models, cheapest first."""
        return tuple(use.name for use in self.rungs)

    @property
    def step_names(self) -> tuple[str, ...]:
        """The models, in their order."""
        return self.models

    @property
    def ends_with_reference(self) -> bool:
        """The last model is the reference."""
        return True

    def only(self, takes: Takes) -> Ladder:
        """Return the ladder of some of the models; its last model alone is the reference."""
        if takes.calls:
            return replace(self, calls=True)
        if takes.reference:
            return replace(self, rungs=self.rungs[-1:])
        if not takes.steps or max(takes.steps) > self.horizon:
            listed = ", ".join(map(str, takes.steps))
            raise UsageError(f"The policy takes the steps {listed} of a ladder, but this ladder has {self.horizon}.")
        return replace(self, rungs=tuple([self.rungs[step - 1] for step in takes.steps]))

    def plan(self, question: Question) -> Plan:
        """Plan one call a step."""
        form, earlier = form_of(question, self.prompts), list[str]()
        horizon = len(self.rungs)
        number = following((yield NOTHING_BOUGHT), 0, horizon) if self.calls else 1
        while number <= horizon:
            use, last = self.rungs[number - 1], number == horizon
            told = yield (yield from self.rung(question, form, use, number, earlier, last=last))
            number = following(told, number, horizon) if self.calls else number + 1

    def request(self, question: Question, form: Form, use: ModelUse, number: int) -> Request:
        """Return the call that asks one model; its purpose is `SKIP` where the model lacks what the question needs."""
        request = form.request(use, use.name, number)
        if not self.logprobs and not (question.chat is not None and question.chat.top_logprobs):
            request = request._replace(top_logprobs=None)
        return request if use.lacks(request) is None else request._replace(purpose=SKIP)

    def rung(
        self, question: Question, form: Form, use: ModelUse, number: int, earlier: list[str], *, last: bool
    ) -> Generator[Request, Completion | None, Step]:
        """Ask one model; return its step and add its answer to the earlier ones. `last`: no other model follows."""
        request = self.request(question, form, use, number)
        if request.purpose == SKIP:
            if not last or earlier:
                yield request
                why = f"{use.name} was not asked: {use.lacks(request)}"
                return Step(number, (), {"model_skipped": 1.0}, (why,))
            request = request._replace(purpose="answer")  # at least one model must be asked
        try:
            completion = yield request
        except ProviderError as error:
            if error.shown or (last and not earlier):
                raise
            return Step(number, (), {}, (f"{use.name} failed: {type(error).__name__}: {error}",))
        assert completion is not None  # noqa: S101 - a request is answered by a completion
        candidate, numbers, warning = form.read(completion, request, last=last and not earlier)
        said = () if warning is None else (warning,)
        if candidate is None:
            return Step(number, (), numbers, (f"the reply of {use.name} has no complete answer",), warnings=said)
        numbers["agrees_with_earlier"] = agreement(candidate.text, earlier, question.chat)
        earlier.append(candidate.text)
        return Step(number, (candidate,), numbers, warnings=said)


class RungsConfig(StrategyConfig):
    """A list of models, cheapest first, named as under `models`."""

    models: tuple[str, ...] = Field(min_length=1)

    signals = OF_ANSWERS | OF_MESSAGES
    has_reference = True
    answers_chat = True

    @field_validator("models")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is named more than once")
        return value

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return self.models

    def role(self, place: str, model: str) -> str:  # noqa: ARG002 - the same model in another entry is the same rung
        """Return the model's own name, which is also the rung's."""
        return model

    def described(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return the settings with the models by their own names."""
        return {**super().described(roles), "models": list(roles)}


class LadderConfig(RungsConfig):
    """Each model answers once."""

    kind: Literal["ladder"]

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "reply_logprob"}
    has_parts = True
    has_calls = True

    @property
    def horizon(self) -> int:
        """T, the number of models."""
        return len(self.models)

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Ladder:
        """Return the ladder."""
        return Ladder(tuple([uses[name] for name in self.models]), prompts)

    def step_roles(self, roles: Sequence[str]) -> list[str]:
        """Return the models in their order."""
        return list(roles)
