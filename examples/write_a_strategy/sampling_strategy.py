"""A strategy: one model answers the question several times, and each step states how often its answer was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from cascade.matching import agreement
from cascade.plans.base import ModelUse, Strategy, StrategyConfig, Walk
from cascade.plans.prompts import Prompts
from cascade.plans.reply import ask, read
from cascade.policies.signals import OF_ANSWERS
from cascade.types import Question, Step


@dataclass(frozen=True)
class Sampling(Strategy):
    """Ask one model up to `horizon` times; a step is one reply."""

    use: ModelUse
    role: str
    horizon: int
    prompts: Prompts

    @property
    def models(self) -> tuple[str, ...]:
        """The one model."""
        return (self.use.name,)

    def plan(self, question: Question) -> Walk:
        """Yield a request, then the step that its completion makes, and so on."""
        answers = list[str]()
        for number in range(1, self.horizon + 1):
            request = ask(question, self.prompts, self.use, self.role, number)
            completion = yield request
            reading = read(completion, request, last=number == self.horizon and not answers)
            if reading.candidate is None:
                yield Step(number, (), reading.signals, warnings=reading.warnings)
                continue
            earlier = agreement(reading.candidate.text, answers)
            answers.append(reading.candidate.text)
            shares = {"answer_share": agreement(reading.candidate.text, answers), "agrees_with_earlier": earlier}
            yield Step(number, (reading.candidate,), reading.signals | shares, warnings=reading.warnings)


class SamplingConfig(StrategyConfig):
    """The settings of the strategy: {kind: sampling, model: base, samples: 3}."""

    model: str = "base"
    samples: int = Field(default=3, ge=1, le=20)

    signals = OF_ANSWERS | {"answer_share"}
    fitting_policy = {"kind": "fixed", "depth": 1}

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return (self.model,)

    @property
    def horizon(self) -> int:
        """The most steps."""
        return self.samples

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Sampling:
        """Return the strategy. A model that is configured without chance is asked with some."""
        use = uses[self.model]
        return Sampling(replace(use, temperature=use.temperature or 1.0), self.model, self.samples, prompts)
