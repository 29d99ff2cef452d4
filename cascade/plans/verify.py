"""A ladder that checks each model's answer, except the last one's, in its own step before the next model is paid.

The step of a check has the answer again as its candidate, and the verdict as its signals: `gate`, and `p_yes` if a
model checks. So a policy decides twice: whether to check, and whether to go on. The verifier that the configuration
names is a function, a schema, a command or a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cascade.errors import ConfigError
from cascade.plans.base import ModelUse
from cascade.plans.judge import VerdictSettings
from cascade.plans.nodes import PlanNode
from cascade.plans.presets import RungsConfig
from cascade.providers.base import Provider
from cascade.providers.verifiers import Command, Schema, Verifier
from cascade.registry import file_of
from cascade.safety import read_bounded
from cascade.section import Section

ROLE = "verifier"
"""The verifier's name in a log."""
_MOST_SCHEMA_BYTES = 1_000_000


class FunctionVerifier(Section):
    """A function `module:function` of the question and the message; it returns a bool, a share in [0, 1], or None."""

    kind: Literal["function"]
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$")

    @property
    def provider(self) -> Provider:
        """Import the function."""
        module, _, path = self.function.partition(":")
        try:
            function: Any = import_module(module)
            for name in path.split("."):
                function = getattr(function, name)
        except (ImportError, AttributeError) as error:
            raise ConfigError([f"strategy.verifier.function: {self.function} cannot be imported: {error}"]) from None
        if not callable(function):
            raise ConfigError([f"strategy.verifier.function: {self.function} is not a function"])
        return Verifier(lambda question, message, _: function(question, message), self.function)

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The function's module."""
        return {f"the verifier {self.function}": file_of(self.function)}

    @property
    def name(self) -> str:
        """What a log calls it."""
        return f"verifier {self.function}"


class SchemaVerifier(Section):
    """A JSON schema that the output must match, or the path of a file with one."""

    kind: Literal["schema"]
    json_schema: Mapping[str, Any] | str

    name: ClassVar[str] = "verifier schema"

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
            document = json.loads(read_bounded(path, _MOST_SCHEMA_BYTES) or b"")
        except (OSError, ValueError) as error:
            raise ConfigError([f"strategy.verifier.json_schema: {path}: {error}"]) from None
        if not isinstance(document, Mapping):
            raise ConfigError([f"strategy.verifier.json_schema: {path} is not a JSON object"])
        return document


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

    @property
    def name(self) -> str:
        """What a log calls it."""
        return f"verifier {' '.join(self.command)}"[:200]


class ModelVerifier(Section):
    """A model, by its entry under `models`, that says yes or no."""

    kind: Literal["model"]
    model: str


VerifierSection = Annotated[
    FunctionVerifier | SchemaVerifier | CommandVerifier | ModelVerifier, Field(discriminator="kind")
]


class VerifiedConfig(RungsConfig):
    """A list of models, cheapest first, and the verifier of all answers but the last."""

    kind: Literal["verified"]
    verifier: VerifierSection

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "gate"}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the models in their order, each but the last with its check."""
        verifier, nodes = self.verifier, list[PlanNode]()
        free, judging = not isinstance(verifier, ModelVerifier), VerdictSettings("logprobs")
        checker = uses[verifier.model] if isinstance(verifier, ModelVerifier) else ModelUse(verifier.name)
        for name in self.models:
            nodes.append(PlanNode(uses[name].name, uses[name]))
            nodes.append(PlanNode(ROLE, checker, "check", (len(nodes),), judging=judging, free=free))
        return nodes[:-1]

    @property
    def free_calls(self) -> tuple[str, ...]:
        """The verifier, unless it is a model."""
        return () if isinstance(self.verifier, ModelVerifier) else (self.verifier.name,)

    def free_providers(self) -> dict[str, Provider]:
        """Return the verifier, unless it is a model. Raises ConfigError if it cannot be imported or read."""
        verifier = self.verifier
        return {} if isinstance(verifier, ModelVerifier) else {verifier.name: verifier.provider}

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The verifier's files."""
        own = {} if isinstance(self.verifier, ModelVerifier) else self.verifier.own_files
        return {**super().own_files, **own}
