"""A ladder in which each model's answer but the last one's is checked, in a step of its own, before the next is paid.

The step of the check has the answer again as its candidate, and the verdict as its signals: `gate`, and `p_yes` where a
model checks. So a policy decides twice: whether to check, and whether to go on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from cascade.errors import ProviderError, UsageError
from cascade.policies.base import Takes
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES
from cascade.providers.base import Provider
from cascade.strategies.base import NOTHING_BOUGHT, ModelUse, Plan, Strategy, following
from cascade.strategies.form import form_of
from cascade.strategies.ladder import Ladder, RungsConfig
from cascade.strategies.prompts import Prompts
from cascade.strategies.verifier import ROLE, Checks, ModelVerifier, VerifierSection
from cascade.types import SKIP, Candidate, Completion, Question, Request, Step


@dataclass(frozen=True, slots=True)
class Verified(Strategy):
    """The strategy `verified`.

    Args:
        ladder: the models.
        checks: who asks for a verdict.
        checker: the model that gives it, or the name under which another verifier is asked.
        checked: of each model, whether its answer is checked.
    """

    ladder: Ladder
    checks: Checks
    checker: str
    checked: tuple[bool, ...]

    @property
    def horizon(self) -> int:
        """T: a step for each model, and one for each check."""
        return self.ladder.horizon + sum(self.checked)

    @property
    def models(self) -> tuple[str, ...]:
        """The models, cheapest first, and who checks."""
        return tuple(dict.fromkeys([*self.ladder.models, self.checker]))

    @property
    def prompts(self) -> Prompts:
        """The prompts of the ladder, and of a model that checks."""
        return self.ladder.prompts

    @property
    def ends_with_reference(self) -> bool:
        """The last model is the reference, and its answer is not checked."""
        return True

    def only(self, takes: Takes) -> Strategy:
        """Return some of the models and checks; a ladder where nothing is checked any more.

        Raises:
            UsageError: there are fewer steps, or an answer is to be checked that is not asked for.
        """
        if takes.reference:
            return self.ladder.only(takes)
        if takes.calls:
            return replace(self, ladder=replace(self.ladder, calls=True))
        pairs = self._pairs
        if not takes.steps or max(takes.steps) > len(pairs):
            raise UsageError(f"The policy takes the steps {takes.steps}, and this strategy has {len(pairs)}.")
        kept = [pairs[step - 1] for step in takes.steps]
        rungs = [place for place, check in kept if not check]
        checked = tuple([(place, True) in kept for place in rungs])
        if sum(checked) + len(rungs) != len(kept):
            raise UsageError("The policy checks an answer that it does not ask for.")
        ladder = replace(self.ladder, rungs=tuple([self.ladder.rungs[place] for place in rungs]))
        return replace(self, ladder=ladder, checked=checked) if any(checked) else ladder

    @property
    def _pairs(self) -> list[tuple[int, bool]]:
        """The model of each step, by its place in the ladder, and whether its answer is checked there."""
        return [(place, check) for place, checked in enumerate(self.checked) for check in (False, True)[: 1 + checked]]

    def plan(self, question: Question) -> Plan:
        """Plan a call a step: a model's, then the verifier's."""
        form, earlier, done = form_of(question, self.ladder.prompts), list[str](), dict[int, Step]()
        calls = self.ladder.calls
        told = (yield NOTHING_BOUGHT) if calls else None
        number = following(told, 0, self.horizon, calls=calls)
        while number <= self.horizon:
            place, checks = self._pairs[number - 1]
            if checks:
                step = yield from self._check(question, done[number - 1])
            else:
                use, last = self.ladder.rungs[place], number == self.horizon
                made = yield from self.ladder.rung(question, form, use, number, earlier, last=last)
                step = made._replace(parents=())  # a model reads no other's answer
            done[number] = step
            told = yield step
            number = following(told, number, self.horizon, calls=calls)

    def _check(self, question: Question, step: Step) -> Generator[Request, Completion | None, Step]:
        """Ask for a verdict on a step's answer. A step without one has failed every check, and is put on record so."""
        number, after = step.number + 1, (step.number,)
        if not step.candidates:
            yield self.checks.request(question, Candidate("", ROLE, self.checker), number)._replace(purpose=SKIP)
            return Step(number, (), {"gate": 0.0}, ("there is no answer to check",), parents=after)
        (candidate,) = step.candidates
        again = candidate._replace(source=ROLE)
        try:
            completion = yield self.checks.request(question, candidate, number)
        except ProviderError as error:
            said = f"the verifier failed: {type(error).__name__}: {error}"
            return Step(number, (again,), {"gate": None}, (said,), parents=after)
        assert completion is not None  # noqa: S101 - a request is answered by a completion
        return Step(number, (again,), self.checks.read(completion, candidate), parents=after)


class VerifiedConfig(RungsConfig):
    """A list of models, cheapest first, and what checks the answer of each but the last."""

    kind: Literal["verified"]
    verifier: VerifierSection

    signals = OF_ANSWERS | OF_MESSAGES | {"gate", "p_yes"}
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "gate"}
    has_parts = True
    has_calls = True

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        checker = (self.verifier.model,) if isinstance(self.verifier, ModelVerifier) else ()
        return tuple(dict.fromkeys([*self.models[:-1], *checker, self.models[-1]]))

    @property
    def horizon(self) -> int:
        """T, the number of models and of checks between them."""
        return 2 * len(self.models) - 1

    @property
    def free_calls(self) -> tuple[str, ...]:
        """The verifier, where it is no model."""
        return () if isinstance(self.verifier, ModelVerifier) else (self.verifier.name,)

    def free_providers(self) -> dict[str, Provider]:
        """Return who verifies, where it is no model. Raises ConfigError where it cannot be imported or read."""
        provider = self.verifier.provider
        return {} if provider is None else dict.fromkeys(self.free_calls, provider)

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The files that the verifier is made of."""
        return {**super().own_files, **self.verifier.own_files}

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Verified:
        """Return the strategy."""
        checker = uses[self.verifier.model].name if isinstance(self.verifier, ModelVerifier) else self.verifier.name
        ladder = Ladder(tuple([uses[name] for name in self.models]), prompts)
        checked = (*[True for _ in self.models[1:]], False)
        return Verified(ladder, self.verifier.checks(uses, prompts), checker, checked)

    def sources(self, roles: Sequence[str]) -> tuple[frozenset[str], ...]:
        """Return the place of every step's answer, with the names of all models and the verifier's."""
        return tuple([names | {ROLE} for names in super().sources(roles)])

    def described(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return the settings with the models by their own names."""
        return {**super().described(roles), "models": self._roles(roles)}

    def step_roles(self, roles: Sequence[str]) -> list[str]:
        """Return the models in their order, and the verifier between them."""
        *first, last = self._roles(roles)
        named = dict(zip(self.places, roles, strict=True))
        checker = named[self.verifier.model] if isinstance(self.verifier, ModelVerifier) else self.verifier.name
        return [*[name for model in first for name in (model, checker)], last]

    def _roles(self, roles: Sequence[str]) -> list[str]:
        named = dict(zip(self.places, roles, strict=True))
        return [named[model] for model in self.models]

    @classmethod
    def line_for(cls, sources: tuple[str, ...], horizon: int, places: Sequence[str]) -> str | None:  # noqa: ARG003
        """Return None: a log does not say what verified it."""
        return None
