"""The plans that are built in, as lists of nodes, with their settings: a ladder, rounds of base and guide, LLM-exit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator

from cascade.logs.schema import GUIDE_ONLY
from cascade.plans.base import ModelUse
from cascade.plans.config import StrategyConfig
from cascade.plans.judge import OnGuideError, VerdictMode, VerdictSettings
from cascade.plans.nodes import JUDGING, Node, Plan, reference_of, steps_of, unsuited_to_chat
from cascade.plans.prompts import Prompts, load
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES

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
    return Plan(tuple([Node(use.name, use) for use in uses]), prompts or load())


class _Entries(dict[str, ModelUse]):
    """A model for each entry under `models`, called by the entry's name."""

    def __missing__(self, entry: str) -> ModelUse:
        return ModelUse(entry)


class PlanConfig(StrategyConfig):
    """The settings of a plan. A kind lists its nodes; what else must be known before it is built follows from them."""

    @abstractmethod
    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:
        """Return the nodes, with how each model is asked by its entry under `models`."""

    def listed_for_chat(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:  # noqa: ARG002 - where they are the same
        """Return the nodes for a chat request; empty if they are the same."""
        return ()

    @property
    def _nodes(self) -> Sequence[Node]:
        return self.listed(_Entries())

    @property
    def is_joint(self) -> bool:
        """Whether a step has several nodes, as in rounds."""
        return any(node.joins for node in self._nodes)

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs, the reference's last."""
        nodes, last = self._nodes, reference_of(self._nodes).use.name
        return (*dict.fromkeys(node.use.name for node in nodes if not node.free and node.use.name != last), last)

    @property
    def horizon(self) -> int:
        """T, the number of steps."""
        return len(steps_of(self._nodes))

    @property
    def given(self) -> frozenset[str]:
        """The signals of its nodes."""
        of_messages = frozenset() if self.no_chat else OF_MESSAGES
        return OF_ANSWERS.union(of_messages, *[_given(node) for node in self._nodes])

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

    def role(self, place: str, model: str) -> str:
        """Return the entry's name in rounds, else the model's own: the same model in another entry is the same."""
        return place if self.is_joint else model

    def described(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return the settings, and the nodes with the models by their own names, where each is a step."""
        if self.is_joint:
            return super().described(roles)
        own = dict(zip(self.places, roles, strict=True))
        nodes = [
            {"name": own.get(node.name, node.name), "model": own.get(node.use.name, node.use.name)}
            | {"purpose": node.purpose, "parents": list(node.parents)}
            for node in self._nodes
        ]
        settings = self.model_dump(mode="json", exclude={"prompts", "models", "nodes"})
        return {**settings, "nodes": nodes}

    def step_roles(self, roles: Sequence[str]) -> list[str] | None:
        """Return the model of each step; None in rounds."""
        own = dict(zip(self.places, roles, strict=True))
        return None if self.is_joint else [own.get(node.use.name, node.use.name) for node in self._nodes]


def _given(node: Node) -> frozenset[str]:
    """Return the signals that a node adds to those of answers."""
    own = _SIGNALS.get(node.purpose, frozenset())
    if node.purpose in JUDGING:
        return own | ({"guide_agrees", "reasoning_chars"} if node.joins else {"judge_share"})
    return own | {"p_yes"} if node.purpose == "check" and not node.free else own


class RungsConfig(PlanConfig):
    """A list of models, cheapest first, named as under `models`."""

    models: tuple[str, ...] = Field(min_length=1)

    has_reference = True
    has_parts = True
    has_calls = True

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

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "reply_logprob"}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:
        """Return the models in their order."""
        return [Node(uses[name].name, uses[name]) for name in self.models]


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
    has_reference = True
    baselines = (GUIDE_ONLY, *(f"{who}{place}" for place in ("base", "guide") for who in (_DECIDES, _EXITS)))

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:
        """Return the rounds."""
        nodes: list[Node] = []
        for _ in range(self.rounds):
            nodes += self._round(uses, nodes)
        return nodes

    def listed_for_chat(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:
        """Return the two steps of a chat request."""
        first = self._round(uses, [])
        return [*first, Node("guide", uses["guide"], "outright")] if self.rounds > 1 else first

    def _round(self, uses: Mapping[str, ModelUse], before: Sequence[Node]) -> list[Node]:
        guide, judging = uses["guide"], VerdictSettings(self.verdict, self.samples, self.on_guide_error)
        earlier = tuple([at for at, node in enumerate(before, 1) if node.purpose in {"answer", "verify"}])
        nodes = [
            Node("base", uses["base"], "answer", earlier),
            Node("guide", guide, "verify", (len(before) + 1,), True, judging),
            Node("guide", guide, "direct", joins=True),
        ]
        return nodes if self.decider is None else [*nodes, Node(self.decider, uses[self.decider], "decide", joins=True)]

    def baseline(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the guide alone, these rounds with a decider, or one model that says when to stop."""
        if name == GUIDE_ONLY:
            return {"kind": "ladder", "models": ["guide"], "prompts": self.prompts}, {"kind": "fixed"}
        if name.startswith(_DECIDES):
            return {**self.model_dump(), "decider": name.removeprefix(_DECIDES)}, {"kind": "prompted"}
        place = name.removeprefix(_EXITS)
        alone = {"kind": "exit", "model": place, "rounds": self.rounds, "prompts": self.prompts}
        return alone, {"kind": "prompted"}


class ExitConfig(PlanConfig):
    """One model that answers and says whether to stop: a baseline that judges itself."""

    kind: Literal["exit"]
    model: str = "guide"
    rounds: int = Field(default=4, ge=1, le=100)

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "prompted"}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:
        """Return the rounds."""
        nodes: list[Node] = []
        for _ in range(self.rounds):
            earlier = tuple(range(1, len(nodes), 2))
            nodes.append(Node(self.model, uses[self.model], "answer", earlier))
            nodes.append(Node(self.model, uses[self.model], "exit", joins=True))
        return nodes
