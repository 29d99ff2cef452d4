"""A ladder that checks each model's answer, except the last one's, in its own step before the next model is paid.

The step of a check has the answer again as its candidate, and the verdict as its signals: `gate`, and `p_yes` if a
model checks. So a policy decides twice: whether to check, and whether to go on. The verifier that the configuration
names is a function, a schema, a command or a model.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field

from cascade.errors import ConfigError, ProviderError, UsageError
from cascade.plans import verdict as verdicts
from cascade.plans.base import NOTHING_BOUGHT, ModelUse, Plan, Strategy, following
from cascade.plans.base_guide import judged_fields
from cascade.plans.form import form_of
from cascade.plans.ladder import Ladder, RungsConfig
from cascade.plans.prompts import Prompts
from cascade.policies.base import Takes
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES
from cascade.providers.base import Provider
from cascade.providers.verifiers import Command, Schema, Verifier, read_verdict, sent_output
from cascade.registry import file_of
from cascade.safety import read_bounded
from cascade.section import Section
from cascade.text import data_block
from cascade.types import SKIP, Candidate, Completion, Message, Question, Request, Step

ROLE = "verifier"
"""The verifier's name in a log."""
_PURPOSE = "verify"
_MOST_SCHEMA_BYTES = 1_000_000


class Checks(Protocol):
    """Asks for a verdict on an output, and reads it."""

    def request(self, question: Question, candidate: Candidate, step: int) -> Request:
        """Return the call that asks for a verdict."""
        ...

    def read(self, completion: Completion, candidate: Candidate) -> dict[str, float | None]:
        """Return the signals of a verdict: `gate`, and `p_yes` if a model checks."""
        ...


@dataclass(frozen=True, slots=True)
class LocalVerifier:
    """A function, a schema or a command: a call under `name` costs nothing."""

    name: str

    def request(self, question: Question, candidate: Candidate, step: int) -> Request:
        """Send the output as it is."""
        message = {"content": candidate.text} if candidate.message is None else candidate.message
        said = (Message("user", sent_output(message)),)
        return Request(self.name, said, ROLE, _PURPOSE, step, question, 1)

    def read(self, completion: Completion, candidate: Candidate) -> dict[str, float | None]:  # noqa: ARG002
        """Return the verdict as it was given."""
        return {"gate": read_verdict(completion.text)}


@dataclass(frozen=True, slots=True)
class Judge:
    """A model that says yes or no to an output, which it reads as data."""

    use: ModelUse
    prompts: Prompts

    def request(self, question: Question, candidate: Candidate, step: int) -> Request:
        """Ask with the prompts of a guide that judges."""
        if question.chat is None:
            messages = self.prompts.judge.fill(verdicts.judged_block(question, candidate.text))
        else:
            messages = self.prompts.judge_chat.fill(data_block(judged_fields(question.chat, candidate)))
        return self.use.request(messages, ROLE, _PURPOSE, step, question, verdicts.ALTERNATIVES)

    def read(self, completion: Completion, candidate: Candidate) -> dict[str, float | None]:
        """Return P(yes), and 1 or 0 for what the text says."""
        found = verdicts.read(completion, candidate.text)
        return {"gate": None if found.says_yes is None else float(found.says_yes), "p_yes": found.p_yes}


class FunctionVerifier(Section):
    """A function `module:function` of the question and the message; it returns a bool, a share in [0, 1], or None."""

    kind: Literal["function"]
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$")

    @property
    def provider(self) -> Provider:
        """Import the function."""
        module, _, name = self.function.partition(":")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ConfigError([f"strategy.verifier.function: {self.function} cannot be imported: {error}"]) from None
        if not callable(found):
            raise ConfigError([f"strategy.verifier.function: {self.function} is not a function"])
        return Verifier(lambda question, message, _: found(question, message), self.function)

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The function's module."""
        return {f"the verifier {self.function}": file_of(self.function)}

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:  # noqa: ARG002 - as every kind's
        """Return who asks it."""
        return LocalVerifier(self.name)

    @property
    def name(self) -> str:
        """What a log calls it."""
        return f"verifier {self.function}"


class SchemaVerifier(Section):
    """A JSON schema that the output must match, or the path of a file with one."""

    kind: Literal["schema"]
    json_schema: Mapping[str, Any] | str

    @property
    def provider(self) -> Provider:
        """Read the schema."""
        return Verifier(Schema(self._document()), "schema")

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The schema's file; a certificate names a schema without a file as a setting."""
        path = self.json_schema
        return {f"the schema {path}": Path(path)} if isinstance(path, str) else {}

    def _document(self) -> Mapping[str, Any]:
        if isinstance(self.json_schema, Mapping):
            return self.json_schema
        path = Path(self.json_schema)
        try:
            found = json.loads(read_bounded(path, _MOST_SCHEMA_BYTES) or b"")
        except (OSError, ValueError) as error:
            raise ConfigError([f"strategy.verifier.json_schema: {path}: {error}"]) from None
        if not isinstance(found, Mapping):
            raise ConfigError([f"strategy.verifier.json_schema: {path} is not a JSON object"])
        return found

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:  # noqa: ARG002 - as every kind's
        """Return who asks it."""
        return LocalVerifier(self.name)

    @property
    def name(self) -> str:
        """What a log calls it."""
        return "verifier schema"


class CommandVerifier(Section):
    """A command that reads the output as JSON and exits with 0 if it passes; killed after `timeout_s`."""

    kind: Literal["command"]
    command: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, le=3_600, allow_inf_nan=False)

    @property
    def provider(self) -> Provider:
        """Return the provider that runs it."""
        return Verifier(Command(self.command, self.timeout_s), self.command[0])

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The files that the command names: a script, a list of tests; not a program found on PATH."""
        return {f"the verifier’s {word}": Path(word) for word in self.command if Path(word).is_file()}

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:  # noqa: ARG002 - as every kind's
        """Return who asks it."""
        return LocalVerifier(self.name)

    @property
    def name(self) -> str:
        """What a log calls it."""
        return f"verifier {' '.join(self.command)}"[:200]


class ModelVerifier(Section):
    """A model, by its entry under `models`, that says yes or no."""

    kind: Literal["model"]
    model: str

    @property
    def provider(self) -> None:
        """The model has a provider already."""
        return None

    @property
    def own_files(self) -> dict[str, Path | None]:
        """None: a certificate records the model and the prompt in other fields."""
        return {}

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:
        """Return who asks it."""
        return Judge(uses[self.model], prompts)


VerifierSection = Annotated[
    FunctionVerifier | SchemaVerifier | CommandVerifier | ModelVerifier, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True)
class Verified(Strategy):
    """The strategy `verified`.

    `checks` asks for a verdict and reads it; `checker` is the model that gives it, or the name of another verifier.
    `checked` says of each model whether its answer is checked.
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
        """The models, cheapest first, and the verifier."""
        return tuple(dict.fromkeys([*self.ladder.models, self.checker]))

    @property
    def prompts(self) -> Prompts:
        """The prompts of the ladder, and of a model that checks."""
        return self.ladder.prompts

    @property
    def step_names(self) -> tuple[str, ...]:
        """The models, each followed by its check."""
        named = [(self.ladder.models[place], check) for place, check in self._pairs]
        return tuple([f"the check of {model}" if check else model for model, check in named])

    @property
    def ends_with_reference(self) -> bool:
        """The last model is the reference, and its answer is not checked."""
        return True

    def only(self, takes: Takes) -> Strategy:
        """Return some of the models and checks; a ladder if no check is left."""
        if takes.reference:
            return self.ladder.only(takes)
        if takes.calls:
            return replace(self, ladder=replace(self.ladder, calls=True))
        pairs = self._pairs
        if not takes.steps or max(takes.steps) > len(pairs):
            raise UsageError(f"The policy takes the steps {takes.steps}, but this strategy has {len(pairs)}.")
        kept = [pairs[step - 1] for step in takes.steps]
        rungs = [place for place, check in kept if not check]
        checked = tuple([(place, True) in kept for place in rungs])
        if sum(checked) + len(rungs) != len(kept):
            raise UsageError("The policy takes a check without the answer that it checks.")
        ladder = replace(self.ladder, rungs=tuple([self.ladder.rungs[place] for place in rungs]))
        return replace(self, ladder=ladder, checked=checked) if any(checked) else ladder

    @property
    def _pairs(self) -> list[tuple[int, bool]]:
        """The model of each step, by its place in the ladder, and whether the step is a check."""
        return [(place, check) for place, checked in enumerate(self.checked) for check in (False, True)[: 1 + checked]]

    def plan(self, question: Question) -> Plan:
        """Plan one call a step: a model's, then the verifier's."""
        form, earlier, done = form_of(question, self.ladder.prompts), list[str](), dict[int, Step]()
        calls = self.ladder.calls
        number = following((yield NOTHING_BOUGHT), 0, self.horizon) if calls else 1
        while number <= self.horizon:
            place, checks = self._pairs[number - 1]
            if checks:
                step = yield from self._check(question, done[number - 1])
            else:
                use, last = self.ladder.rungs[place], number == self.horizon
                made = yield from self.ladder.rung(question, form, use, number, earlier, last=last)
                step = made._replace(parents=())  # a model does not read other models' answers
            done[number] = step
            told = yield step
            number = following(told, number, self.horizon) if calls else number + 1

    def _check(self, question: Question, step: Step) -> Generator[Request, Completion | None, Step]:
        """Ask for a verdict on a step's answer. A step without an answer fails every check and is logged as failed."""
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
    """A list of models, cheapest first, and the verifier of all answers but the last."""

    kind: Literal["verified"]
    verifier: VerifierSection

    signals = OF_ANSWERS | OF_MESSAGES | {"gate", "p_yes"}
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "gate"}
    has_parts = True
    has_calls = True

    @property
    def given(self) -> frozenset[str]:
        """P(yes) only where a model checks."""
        return self.signals if isinstance(self.verifier, ModelVerifier) else self.signals - {"p_yes"}

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
        """The verifier, unless it is a model."""
        return () if isinstance(self.verifier, ModelVerifier) else (self.verifier.name,)

    def free_providers(self) -> dict[str, Provider]:
        """Return the verifier, unless it is a model. Raises ConfigError if it cannot be imported or read."""
        provider = self.verifier.provider
        return {} if provider is None else dict.fromkeys(self.free_calls, provider)

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The verifier's files."""
        return {**super().own_files, **self.verifier.own_files}

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Verified:
        """Return the strategy."""
        checker = uses[self.verifier.model].name if isinstance(self.verifier, ModelVerifier) else self.verifier.name
        ladder = Ladder(tuple([uses[name] for name in self.models]), prompts)
        checked = (*[True for _ in self.models[1:]], False)
        return Verified(ladder, self.verifier.checks(uses, prompts), checker, checked)

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
