"""A list of models, cheapest first: a step is one model's answer, and the question climbs until the policy has enough.

With one model it is that model alone, at its own cost: the baseline that a cascade has to beat.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cascade.errors import ProviderError, UsageError
from cascade.policies.base import Takes
from cascade.strategies.base import ModelUse, Plan
from cascade.strategies.form import form_of
from cascade.strategies.prompts import Prompts, load
from cascade.text import agreement
from cascade.types import Question, Step


@dataclass(frozen=True, slots=True)
class Ladder:
    """The ladder strategy.

    Args:
        rungs: the models in the order in which they are asked.
        prompts: the prompts; only `answer` is used.
    """

    rungs: tuple[ModelUse, ...]
    prompts: Prompts = field(default_factory=load)

    @property
    def horizon(self) -> int:
        """T, the number of models."""
        return len(self.rungs)

    @property
    def models(self) -> tuple[str, ...]:
        """The models, cheapest first."""
        return tuple(use.name for use in self.rungs)

    def only(self, takes: Takes) -> Ladder:
        """Return the ladder of some of the models; its last model alone is the reference."""
        if takes.reference:
            return replace(self, rungs=self.rungs[-1:])
        if not takes.steps or max(takes.steps) > self.horizon:
            listed = ", ".join(map(str, takes.steps))
            raise UsageError(f"The policy takes the steps {listed} of a ladder, and this one has {self.horizon}.")
        return replace(self, rungs=tuple([self.rungs[step - 1] for step in takes.steps]))

    def plan(self, question: Question) -> Plan:
        """Plan one call a step."""
        form = form_of(question, self.prompts)
        earlier: list[str] = []
        for number, use in enumerate(self.rungs, 1):
            request = form.request(use, use.name, number)
            last = number == len(self.rungs)
            try:
                completion = yield request
            except ProviderError as error:
                if last and not earlier:
                    raise
                yield Step(number, (), {}, (f"{use.name} failed: {type(error).__name__}: {error}",))
                continue
            assert completion is not None  # noqa: S101 - a request is answered by a completion
            candidate, numbers, warning = form.read(completion, request, last=last and not earlier)
            said = () if warning is None else (warning,)
            if candidate is None:
                notes = (f"the reply of {use.name} holds no whole answer",)
                yield Step(number, (), numbers, notes, warnings=said)
                continue
            numbers["agrees_with_earlier"] = agreement(candidate.text, earlier)
            earlier.append(candidate.text)
            yield Step(number, (candidate,), numbers, warnings=said)
