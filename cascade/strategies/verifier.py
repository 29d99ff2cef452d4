"""What checks an answer before another model is paid, and how a configuration names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from cascade.errors import ConfigError
from cascade.providers.base import Provider
from cascade.providers.verifiers import Command, Schema, Verifier, read_verdict, sent_output
from cascade.registry import file_of
from cascade.safety.files import read_bounded
from cascade.section import Section
from cascade.strategies import verdict as verdicts
from cascade.strategies.base import ModelUse
from cascade.strategies.base_guide import judged_fields
from cascade.strategies.prompts import Prompts
from cascade.text import data_block
from cascade.types import Candidate, Completion, Message, Question, Request

ROLE = "verifier"
"""What a log calls whoever verifies."""
_PURPOSE = "verify"
_VERDICT_ALTERNATIVES = 20
_MOST_SCHEMA_BYTES = 1_000_000


class Checks(Protocol):
    """Asks for a verdict on an output, and reads it."""

    def request(self, question: Question, candidate: Candidate, step: int) -> Request:
        """Return the call that asks for a verdict."""
        ...

    def read(self, completion: Completion, candidate: Candidate) -> dict[str, float | None]:
        """Return the signals of a verdict: `gate`, and of a model `p_yes`."""
        ...


@dataclass(frozen=True, slots=True)
class Local:
    """A function, a schema or a command: what is asked under `name` costs nothing."""

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
    """A model that says yes or no of an output, which it reads as data."""

    use: ModelUse
    prompts: Prompts

    def request(self, question: Question, candidate: Candidate, step: int) -> Request:
        """Ask with the prompts of a guide that judges."""
        if question.chat is None:
            fields = {"question": question.text, "reasoning": "", "answer": candidate.text}
            asked = self.prompts.judge
            fields = {"text": question.context, **fields} if question.context else fields
        else:
            fields, asked = judged_fields(question.chat, candidate), self.prompts.judge_chat
        use, messages = self.use, asked.fill(data_block(fields))
        return Request(
            use.name,
            messages,
            ROLE,
            _PURPOSE,
            step,
            question,
            use.max_tokens,
            use.temperature,
            _VERDICT_ALTERNATIVES,
            use.seed,
        )

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
            raise ConfigError([f"strategy.verifier.function: {self.function} is no function"])
        return Verifier(lambda question, message, _: found(question, message), self.function)

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The function's module."""
        return {f"the verifier {self.function}": file_of(self.function)}

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:  # noqa: ARG002 - as every kind's
        """Return who asks it."""
        return Local(self.name)

    @property
    def name(self) -> str:
        """What a log calls it."""
        return f"verifier {self.function}"


class SchemaVerifier(Section):
    """A JSON schema that the output has to keep, or the path of a file that holds one."""

    kind: Literal["schema"]
    json_schema: Mapping[str, Any] | str

    @property
    def provider(self) -> Provider:
        """Read the schema."""
        return Verifier(Schema(self._document()), "schema")

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The schema, where it stands in a file; a certificate names one that does not as a setting."""
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
            raise ConfigError([f"strategy.verifier.json_schema: {path} holds no JSON object"])
        return found

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:  # noqa: ARG002 - as every kind's
        """Return who asks it."""
        return Local(self.name)

    @property
    def name(self) -> str:
        """What a log calls it."""
        return "verifier schema"


class CommandVerifier(Section):
    """A command that reads the output as JSON and ends with 0 for one that passes; killed after `timeout_s`."""

    kind: Literal["command"]
    command: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, le=3_600, allow_inf_nan=False)

    @property
    def provider(self) -> Provider:
        """Return who runs it."""
        return Verifier(Command(self.command, self.timeout_s), self.command[0])

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The files that the command names: a script, a list of tests; not a program that is found on PATH."""
        return {f"the verifier’s {word}": Path(word) for word in self.command if Path(word).is_file()}

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:  # noqa: ARG002 - as every kind's
        """Return who asks it."""
        return Local(self.name)

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
        """None: the model and the prompt are on record elsewhere."""
        return {}

    def checks(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Checks:
        """Return who asks it."""
        return Judge(uses[self.model], prompts)


VerifierSection = Annotated[
    FunctionVerifier | SchemaVerifier | CommandVerifier | ModelVerifier, Field(discriminator="kind")
]
