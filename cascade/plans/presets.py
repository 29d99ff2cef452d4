"""The plans that are built in, as lists of nodes, and their settings: ladder, rounds, LLM-exit, list, verifier."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator

from cascade.checks import did_you_mean, shown_name
from cascade.errors import ConfigError
from cascade.plans.base import ModelUse, StrategyConfig
from cascade.plans.nodes import JUDGING, Plan, PlanNode, reference_of, unsuited_to_chat
from cascade.plans.prompts import Prompts, load
from cascade.plans.verdict import OnGuideError, VerdictMode, VerdictSettings
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES
from cascade.providers.base import Provider
from cascade.providers.verifiers import Command, Schema, Verifier, Verify
from cascade.registry import file_of, imported
from cascade.safety import read_bounded
from cascade.section import Section
from cascade.types import GUIDE_ONLY

Decider: TypeAlias = Literal["base", "guide"]

_OF_VERDICTS = frozenset({"p_yes", "verdict_mass"})
_SIGNALS: Mapping[str, frozenset[str]] = {
    "sample": frozenset({"answer_share"}),
    "judge": _OF_VERDICTS,
    "verify": _OF_VERDICTS,
    "check": frozenset({"gate"}),
    "decide": frozenset({"decided_action"}),
    "exit": frozenset({"says_exit"}),
}
"""The signals that a node adds to those of answers, by its purpose."""


def ladder(uses: Sequence[ModelUse], prompts: Prompts | None = None) -> Plan:
    """Return the plan in which each model answers once, the cheapest first; a single model is that model alone."""
    return Plan(tuple([PlanNode(use.name, use) for use in uses]), prompts or load())


class _Entries(dict[str, ModelUse]):
    """A model for each entry under `models`, called by the entry's name."""

    def __missing__(self, entry: str) -> ModelUse:
        return ModelUse(entry)


class PlanConfig(StrategyConfig):
    """The settings of a plan. A kind lists its nodes; what else must be known before it is built follows from them."""

    has_reference = True

    @abstractmethod
    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the nodes, with how each model is asked by its entry under `models`."""

    def listed_for_chat(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:  # noqa: ARG002 - where they are the same
        """Return the nodes for a chat request; empty if they are the same."""
        return ()

    @property
    def _nodes(self) -> Sequence[PlanNode]:
        return self.listed(_Entries())

    @property
    def has_parts(self) -> bool:
        """Whether each step has one node, so that a policy can leave it out; not so in rounds."""
        return not any(node.joins for node in self._nodes)

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries under `models` that it needs, the reference's last."""
        nodes, last = self._nodes, reference_of(self._nodes).use.name
        return (*dict.fromkeys(node.use.name for node in nodes if not node.free and node.use.name != last), last)

    @property
    def horizon(self) -> int:
        """T, the number of steps."""
        return sum(not node.joins for node in self._nodes)

    @property
    def given(self) -> frozenset[str]:
        """The signals of its nodes."""
        of_messages = frozenset() if self.no_chat else OF_MESSAGES
        return OF_ANSWERS.union(of_messages, *[_signals_of(node) for node in self._nodes])

    @property
    def no_chat(self) -> str | None:
        """Name the node for which a chat request has no prompt."""
        node = unsuited_to_chat(self.listed_for_chat(_Entries()) or self._nodes)
        return None if node is None else f"{node.name}: a plan whose answers read others answers no chat requests"

    @property
    def decides(self) -> bool:
        """Whether a model decides in each step whether to stop."""
        return any(node.purpose in {"decide", "exit"} for node in self._nodes)

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Plan:
        """Return the plan."""
        return Plan(tuple(self.listed(uses)), prompts, tuple(self.listed_for_chat(uses)))

    def role(self, entry: str, model: str) -> str:
        """Return the entry's name in rounds, else the model's own: the same model in another entry is the same."""
        return model if self.has_parts else entry

    def described(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return the settings, and the nodes with the models by their own names, where each is a step."""
        if not self.has_parts:
            return super().described(roles)
        own = dict(zip(self.entries, roles, strict=True))
        nodes = [
            {"name": own.get(node.name, node.name), "model": own.get(node.use.name, node.use.name)}
            | {"purpose": node.purpose, "parents": list(node.parents)}
            for node in self._nodes
        ]
        settings = self.model_dump(mode="json", exclude={"prompts", "models", "nodes"})
        return {**settings, "nodes": nodes}

    def step_roles(self, roles: Sequence[str]) -> list[str] | None:
        """Return the model of each step; None in rounds."""
        own = dict(zip(self.entries, roles, strict=True))
        return [own.get(node.use.name, node.use.name) for node in self._nodes] if self.has_parts else None


def _signals_of(node: PlanNode) -> frozenset[str]:
    """Return the signals that a node adds to those of answers."""
    own = _SIGNALS.get(node.purpose, frozenset())
    if node.purpose in JUDGING:
        return own | ({"guide_agrees", "reasoning_chars"} if node.joins else {"judge_share"})
    return own | {"p_yes"} if node.purpose == "check" and not node.free else own


class RungsConfig(PlanConfig):
    """A list of models, cheapest first, named as under `models`."""

    models: tuple[str, ...] = Field(min_length=1)

    @field_validator("models")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is named more than once")
        return value


class LadderConfig(RungsConfig):
    """Each model answers once."""

    kind: Literal["ladder"]

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold"}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the models in their order."""
        return [PlanNode(uses[name].name, uses[name]) for name in self.models]


_DECIDES, _EXITS = "LLM policy, ", "LLM-exit, "


class BaseGuideConfig(PlanConfig):
    """Rounds in which the base answers, and the guide judges with a few tokens and corrects.

    A round is a step with two candidates: the base's answer, and the guide's (after a yes, the base's own). The base
    reads every earlier round, whatever was kept. If it fails, the guide answers by itself. A chat request has one
    round, and then the guide's whole message, which follows at once after a no.
    """

    kind: Literal["base_guide"] = "base_guide"
    rounds: int = Field(default=4, ge=1, le=100)
    verdict: VerdictMode = "auto"
    samples: int = Field(default=3, ge=1, le=50)
    on_guide_error: OnGuideError = "escalate"
    decider: Decider | None = None

    candidates = ("base", "guide")
    baselines = (GUIDE_ONLY, *(f"{method}{entry}" for entry in ("base", "guide") for method in (_DECIDES, _EXITS)))

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the rounds."""
        nodes: list[PlanNode] = []
        for _ in range(self.rounds):
            nodes += self._round(uses, nodes)
        return nodes

    def listed_for_chat(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the two steps of a chat request."""
        first = self._round(uses, [])
        return [*first, PlanNode("guide", uses["guide"], "outright")] if self.rounds > 1 else first

    def _round(self, uses: Mapping[str, ModelUse], before: Sequence[PlanNode]) -> list[PlanNode]:
        guide, judging = uses["guide"], VerdictSettings(self.verdict, self.samples, self.on_guide_error)
        earlier = tuple([at for at, node in enumerate(before, 1) if node.purpose in {"answer", "verify"}])
        nodes = [
            PlanNode("base", uses["base"], "answer", earlier),
            PlanNode("guide", guide, "verify", (len(before) + 1,), True, judging),
            PlanNode("guide", guide, "direct", joins=True),
        ]
        if self.decider is not None:
            nodes.append(PlanNode(self.decider, uses[self.decider], "decide", joins=True))
        return nodes

    def baseline(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the guide alone, these rounds with a decider, or one model that says when to stop."""
        if name == GUIDE_ONLY:
            return {"kind": "ladder", "models": ["guide"], "prompts": self.prompts}, {"kind": "fixed"}
        if name.startswith(_DECIDES):
            return {**self.model_dump(), "decider": name.removeprefix(_DECIDES)}, {"kind": "prompted"}
        entry = name.removeprefix(_EXITS)
        alone = {"kind": "exit", "model": entry, "rounds": self.rounds, "prompts": self.prompts}
        return alone, {"kind": "prompted"}


class ExitConfig(PlanConfig):
    """One model that answers and says whether to stop: a baseline that judges itself."""

    kind: Literal["exit"]
    model: str = "guide"
    rounds: int = Field(default=4, ge=1, le=100)

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "prompted"}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the rounds."""
        nodes: list[PlanNode] = []
        for _ in range(self.rounds):
            earlier = tuple(range(1, len(nodes), 2))
            nodes.append(PlanNode(self.model, uses[self.model], "answer", earlier))
            nodes.append(PlanNode(self.model, uses[self.model], "exit", joins=True))
        return nodes


class NodeConfig(Section):
    """A node: its name, the entry under `models` that is asked, the purpose, and the nodes that it reads."""

    name: str = Field(min_length=1)
    model: str
    purpose: Literal["answer", "sample", "judge", "verify", "outright"] = "answer"
    parents: tuple[str, ...] = ()


class NodesConfig(PlanConfig):
    """A list of nodes, each one call, bought one after another until the policy stops."""

    kind: Literal["nodes"]
    nodes: tuple[NodeConfig, ...] = Field(min_length=1)

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold"}

    @field_validator("nodes")
    @classmethod
    def _can_be_bought(cls, value: tuple[NodeConfig, ...]) -> tuple[NodeConfig, ...]:
        problems = list(_problems(value))
        if problems:
            raise ValueError("\n".join(problems))  # one problem a line: `config.problems` separates them again
        return value

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the nodes."""
        number = {node.name: at for at, node in enumerate(self.nodes, 1)}
        return [
            PlanNode(
                node.name, uses[node.model], node.purpose, tuple(sorted(number[parent] for parent in node.parents))
            )
            for node in self.nodes
        ]

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Plan:
        """Return the plan.

        Raises:
            ConfigError: a model would be sampled at temperature 0, at which all samples are equal.
        """
        fixed = [node.name for node in self.nodes if node.purpose == "sample" and not uses[node.model].temperature]
        if fixed:
            needs = "a sample needs a model with a temperature above 0"
            raise ConfigError([f"strategy.nodes: {', '.join(fixed)}: {needs}"])
        return super().build(uses, prompts)


def _problems(nodes: Sequence[NodeConfig]) -> Iterator[str]:
    names, earlier = [node.name for node in nodes], dict[str, NodeConfig]()
    for node in nodes:
        if node.name in earlier:
            yield f"{node.name} is named more than once"
        if node.name != node.name.strip() or not node.name.isprintable():
            yield f"{node.name!r}: a name must not begin or end with a space, or have a line break"
        unknown = [parent for parent in node.parents if parent not in earlier]
        for parent in unknown:
            late = f"it reads {parent}, so {parent} must come before it"
            none = f"its parent {shown_name(parent)} is not a node{did_you_mean(parent, earlier)}"
            yield f"{node.name}: {'it reads itself' if parent == node.name else late if parent in names else none}"
        if not unknown:
            yield from _parent_problems(node, [earlier[parent] for parent in node.parents])
        earlier[node.name] = node
    if nodes[-1].purpose in JUDGING or nodes[-1].parents:
        yield (
            f"{nodes[-1].name}: the last node is the reference: an answer without parents, as in "
            "{name: guide, model: guide, purpose: outright}"
        )


def _parent_problems(node: NodeConfig, read: Sequence[NodeConfig]) -> Iterator[str]:
    answers = sum(parent.purpose not in JUDGING for parent in read)
    listed = ", ".join(f"{parent.name} ({parent.purpose})" for parent in read) or "none"
    if node.purpose in JUDGING and (len(read) != 1 or not answers):
        yield f"{node.name}: purpose {node.purpose} needs one parent, the answer that it judges, and this has {listed}"
    elif node.purpose in {"sample", "outright"} and read:
        yield f"{node.name}: a node of purpose {node.purpose} cannot read other nodes; use purpose: answer"
    elif read and node.purpose == "answer" and not answers:
        yield f"{node.name}: an answer that reads others needs an answer among its parents; here it has {listed}"


# --- a ladder that checks each answer but the last one's, in a step of its own, before the next model is paid ---
# The step of a check has the answer again as its candidate, and the verdict as its signals: `gate`, and `p_yes` if a
# model checks. So a policy decides twice: whether to check, and whether to go on.

VERIFIER = "verifier"
"""The verifier's name in a log."""
_MOST_SCHEMA_BYTES = 1_000_000


class FunctionVerifier(Section):
    """A function `module:function` of the question and the message; it returns a bool, a share in [0, 1], or None."""

    kind: Literal["function"]
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$")

    def verify(self) -> Verify:
        """Import the function."""
        try:
            function = imported(self.function)
        except ValueError as error:
            raise ConfigError([f"strategy.verifier.function: {self.function} {error}"]) from None
        if not callable(function):
            raise ConfigError([f"strategy.verifier.function: {self.function} is not a function"])
        return lambda question, message, _: function(question, message)

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

    def verify(self) -> Verify:
        """Read the schema."""
        document: Any = self.json_schema
        if isinstance(document, str):
            try:
                document = json.loads(read_bounded(Path(document), _MOST_SCHEMA_BYTES) or b"")
            except (OSError, ValueError) as error:
                raise ConfigError([f"strategy.verifier.json_schema: {self.json_schema}: {error}"]) from None
        if not isinstance(document, Mapping):
            raise ConfigError([f"strategy.verifier.json_schema: {self.json_schema} is not a JSON object"])
        return Schema(document)

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The schema's file; a certificate names a schema without a file as a setting."""
        path = self.json_schema
        return {f"the schema {path}": Path(path)} if isinstance(path, str) else {}


class CommandVerifier(Section):
    """A command that reads the output as JSON and exits with 0 if it passes; killed after `timeout_s`."""

    kind: Literal["command"]
    command: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=10.0, gt=0, le=3_600, allow_inf_nan=False)

    def verify(self) -> Verify:
        """Return what runs it."""
        return Command(self.command, self.timeout_s)

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


class VerifiedConfig(RungsConfig):
    """A list of models, cheapest first, and the verifier of all answers but the last."""

    kind: Literal["verified"]
    verifier: Annotated[
        FunctionVerifier | SchemaVerifier | CommandVerifier | ModelVerifier, Field(discriminator="kind")
    ]

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "signal": "gate", "threshold": -0.7}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the models in their order, each but the last with its check."""
        verifier, nodes = self.verifier, list[PlanNode]()
        free, judging = not isinstance(verifier, ModelVerifier), VerdictSettings("logprobs")
        checker = uses[verifier.model] if isinstance(verifier, ModelVerifier) else ModelUse(verifier.name)
        for name in self.models:
            nodes.append(PlanNode(uses[name].name, uses[name]))
            nodes.append(PlanNode(VERIFIER, checker, "check", (len(nodes),), judging=judging, free=free))
        return nodes[:-1]

    @property
    def free_calls(self) -> tuple[str, ...]:
        """The verifier, unless it is a model."""
        return () if isinstance(self.verifier, ModelVerifier) else (self.verifier.name,)

    def free_providers(self) -> dict[str, Provider]:
        """Return the verifier, unless it is a model. Raises ConfigError if it cannot be imported or read."""
        verifier = self.verifier
        return (
            {} if isinstance(verifier, ModelVerifier) else {verifier.name: Verifier(verifier.verify(), verifier.name)}
        )

    @property
    def own_files(self) -> dict[str, Path | None]:
        """The verifier's files."""
        own = {} if isinstance(self.verifier, ModelVerifier) else self.verifier.own_files
        return {**super().own_files, **own}
