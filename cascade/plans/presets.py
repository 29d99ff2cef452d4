"""The built-in plans, as settings that list nodes: ladder, rounds, LLM-exit, and a list of nodes.

`docs/write-a-strategy.md` shows how to write your own kind. A kind is built in, comes with an installed package, or is
the user's own class, named as "module:Class".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field, GetPydanticSchema, field_validator
from pydantic_core.core_schema import literal_schema

from cascade.checks import did_you_mean, distinct, shown_name
from cascade.errors import ConfigError, UsageError
from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan, PlanNode, reference_of, unsuited_to_chat
from cascade.plans.prompts import Prompts, load
from cascade.policies.base import SHARED_PLACE
from cascade.policies.signals import KINDS, OF_ANSWERS, OF_MESSAGES, NodeKind
from cascade.providers.base import Provider
from cascade.providers.verifiers import Verifier
from cascade.registry import Registry, file_of, imported, subclass_of
from cascade.section import ByKind, KindSection, Section
from cascade.types import GUIDE_ONLY

Decider: TypeAlias = Literal["base", "guide"]


def ladder(uses: Sequence[ModelUse], prompts: Prompts | None = None) -> Plan:
    """Return the plan in which each model answers once, the cheapest first; a single model just answers."""
    return Plan(tuple([PlanNode(use.name, use) for use in uses]), prompts or load())


class _Entries(dict[str, ModelUse]):
    """A model for each entry under `models`, named after the entry."""

    def __missing__(self, entry: str) -> ModelUse:
        return ModelUse(entry)


class StrategyConfig(KindSection):
    """The settings of a plan. A kind lists its nodes; what else must be known before it is built follows from them.

    A configuration names the class by its entry point in the group `cascade.strategies`, or as "module:Class". A
    subclass adds its settings and defines `listed`.

    Attributes:
        prompts: the folder of its prompt files; None for the shipped ones.
        candidates: the places of a step's candidates, as a log names them; "answer" is a place that any model fills.
        fitting_policy: the settings of the policy that serves if the configuration names none.
        baselines: the names of other methods that `collect` can log beside its steps (`baseline`).
    """

    prompts: str | None = None
    candidates: ClassVar[tuple[str, ...]] = (SHARED_PLACE,)
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold"}
    baselines: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the nodes; `uses` says how each model is asked, by its entry under `models`."""

    def listed_for_chat(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:  # noqa: ARG002 - where they are the same
        """Return the nodes for a chat request; empty if they are the same."""
        return ()

    @property
    def _nodes(self) -> Sequence[PlanNode]:
        return self.listed(_Entries())

    @property
    def has_parts(self) -> bool:
        """Whether each step has one node, so that a policy can leave it out or buy it next; false for rounds."""
        return not any(node.joins for node in self._nodes)

    @property
    def entries(self) -> tuple[str, ...]:
        """The entries under `models` that it needs, the reference's last."""
        nodes, last = self._nodes, reference_of(self._nodes).use.name
        named = [node.use.name for node in nodes if node.kind.reply != "check"]
        return (*dict.fromkeys(name for name in named if name != last), last)

    @property
    def answering(self) -> frozenset[str]:
        """The entries under `models` that do more than judge whether an answer is right."""
        return frozenset(
            node.use.name for node in self._nodes if node.kind.corrects or node.kind.reply not in {"verdict", "check"}
        )

    @property
    def horizon(self) -> int:
        """T, the most steps."""
        return sum(not node.joins for node in self._nodes)

    @property
    def given(self) -> frozenset[str]:
        """The signals of its nodes (`policies.signals`); a policy that reads another one is refused."""
        of_messages = frozenset() if self.no_chat else OF_MESSAGES
        return OF_ANSWERS.union(of_messages, *[node.kind.signals(joins=node.joins) for node in self._nodes])

    @property
    def no_chat(self) -> str | None:
        """Why it cannot answer chat requests: the node that has no prompt for one; None if it can."""
        node = unsuited_to_chat(self.listed_for_chat(_Entries()) or self._nodes)
        return None if node is None else f"{node.name}: a plan whose answers read others answers no chat requests"

    @property
    def decides(self) -> bool:
        """Whether a model decides in each step whether to stop, as the policy `prompted` needs."""
        return any(node.kind.reply == "decision" for node in self._nodes)

    @property
    def free_calls(self) -> tuple[str, ...]:
        """The names of calls that go to no model and cost nothing (`free_providers`)."""
        return tuple(dict.fromkeys(node.use.name for node in self._nodes if node.kind.reply == "check"))

    def free_providers(self) -> Mapping[str, Provider]:
        """Return the providers of such calls, by name.

        Raises:
            ConfigError: a verifier cannot be imported.
        """
        return {}

    @property
    def own_files(self) -> Mapping[str, Path | None]:
        """The user's own files that decide what it does, by their description; for a user's own kind, its module.

        A certificate holds as long as they do not change.
        """
        kind = type(self)
        ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
        return {} if ours else {f"the strategy {self.kind}": file_of(f"{kind.__module__}:{kind.__qualname__}")}

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Plan:
        """Return the plan.

        Args:
            uses: how each model is asked, by its entry under `models`.
            prompts: those in the folder `prompts`, else the shipped ones.

        Raises:
            ConfigError: a model would be sampled at temperature 0, where all samples are equal.
        """
        nodes = tuple(self.listed(uses))
        if fixed := [node.name for node in nodes if node.kind.redraws and not node.use.temperature]:
            needs = "a sample needs a model with a temperature above 0"
            raise ConfigError([f"strategy.nodes: {', '.join(fixed)}: {needs}"])
        return Plan(nodes, prompts, tuple(self.listed_for_chat(uses)))

    def role(self, entry: str, model: str) -> str:
        """Return the name that a log gives to the model of an entry under `models`.

        It is the entry's name in rounds, else the model's own, so that a model is the same under another entry.
        """
        return model if self.has_parts else entry

    def described(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return what a certificate records, as JSON values: the settings, and the nodes if each is a step."""
        if not self.has_parts:
            return self.model_dump(mode="json", exclude={"prompts"})
        own = dict(zip(self.entries, roles, strict=True))
        nodes = [
            {"name": own.get(node.name, node.name), "model": own.get(node.use.name, node.use.name)}
            | {"purpose": node.purpose, "parents": list(node.parents)}
            for node in self._nodes
        ]
        return {**self.model_dump(mode="json", exclude={"prompts", "models", "nodes"}), "nodes": nodes}

    def step_roles(self, roles: Sequence[str]) -> list[str] | None:
        """Return the model of each step, by its name from `role`; None in rounds."""
        own = dict(zip(self.entries, roles, strict=True))
        return [own.get(node.use.name, node.use.name) for node in self._nodes] if self.has_parts else None

    @property
    def unfitted_policy(self) -> Mapping[str, Any] | None:
        """The settings of the policy that serves if a configuration names none; None if a judge needs a fitted one."""
        judges = [node for node in self._nodes if node.kind.reply == "verdict"]
        return None if judges and self.has_parts else self.fitting_policy

    def baseline(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the settings of the strategy and of the policy of one of `baselines`."""
        raise UsageError(f"The strategy {self.kind} has no baseline {name!r}.")


VERIFIER = "verifier"
"""The name that a log gives to a function that judges."""
_LISTED = [name for name, kind in KINDS.items() if kind.reply in {"answer", "verdict"}]


class LadderConfig(StrategyConfig):
    """A list of models, cheapest first, named as under `models`; each answers once.

    With a judge, each answer but the last model's is judged in a step of its own, before the next model is asked. That
    step has the answer again as its candidate, and the verdict as its signal. So a policy decides twice: whether to
    have an answer judged, and whether to go on.

    Attributes:
        judge: a model, by its entry under `models`: the signal is `p_yes`; or a function "module:name" of the question
            and the message, which returns a bool, a share in [0, 1], or None: the signal is `gate`.
    """

    kind: Literal["ladder"]
    models: Annotated[tuple[str, ...], AfterValidator(distinct)] = Field(min_length=1)
    judge: str | None = Field(default=None, min_length=1)

    @property
    def _function(self) -> str | None:
        """The place of the function that judges; None if none does."""
        return self.judge if ":" in (self.judge or "") else None

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the models in their order, each but the last with the judge of its answer."""
        rungs = [PlanNode(uses[name].name, uses[name]) for name in self.models]
        if self.judge is None:
            return rungs
        asks, nodes = self._function is None, list[PlanNode]()
        use = uses[self.judge] if asks else ModelUse(f"{VERIFIER} {self.judge}")
        name, kind = (use.name, "judge") if asks else (VERIFIER, "check")
        for rung in rungs:
            nodes += [rung, PlanNode(name, use, kind, (len(nodes) + 1,))]
        return nodes[:-1]

    @property
    def unfitted_policy(self) -> Mapping[str, Any] | None:
        """A threshold on log-probs, or on a function's result; None for a model's P(yes), which needs a fitted one."""
        gate = {"kind": "threshold", "signal": "gate", "threshold": -0.7}
        return super().unfitted_policy if self._function is None else gate

    def free_providers(self) -> Mapping[str, Provider]:
        """Return the function as a provider. Raises ConfigError if it cannot be imported."""
        if self._function is None:
            return {}
        try:
            function = imported(self._function)
        except ValueError as error:
            raise ConfigError([f"strategy.judge: {self._function} {error}"]) from None
        if not callable(function):
            raise ConfigError([f"strategy.judge: {self._function} is not a function"])
        return {name: Verifier(function, name) for name in self.free_calls}

    @property
    def own_files(self) -> Mapping[str, Path | None]:
        """The function's module."""
        own = {} if self._function is None else {f"the judge {self._function}": file_of(self._function)}
        return {**super().own_files, **own}


_DECIDES, _EXITS = "LLM policy, ", "LLM-exit, "


class BaseGuideConfig(StrategyConfig):
    """Rounds in which the base answers, and the guide judges with a few tokens and corrects.

    A round is a step with two candidates: the base's answer, and the guide's (after a yes, the base's own). The base
    reads every earlier round, whatever was kept. If it fails, the guide answers by itself. A chat request has one
    round, and then the guide's whole message, which follows at once after a no.
    """

    kind: Literal["base_guide"] = "base_guide"
    rounds: int = Field(default=4, ge=1, le=100)
    samples: int = Field(default=3, ge=1, le=50)
    decider: Decider | None = None

    candidates = ("base", "guide")
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "uala"}
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
        guide = uses["guide"]
        earlier = tuple([at for at, node in enumerate(before, 1) if node.kind.reply in {"answer", "verdict"}])
        nodes = [
            PlanNode("base", uses["base"], "answer", earlier),
            PlanNode("guide", guide, "verify", (len(before) + 1,), True, self.samples),
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


class ExitConfig(StrategyConfig):
    """One model that answers and says whether to stop: a baseline in which a model judges itself."""

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
    purpose: Annotated[str, GetPydanticSchema(lambda *_: literal_schema(_LISTED))] = "answer"
    parents: tuple[str, ...] = ()


class NodesConfig(StrategyConfig):
    """A list of nodes, each one call, bought one after another until the policy stops."""

    kind: Literal["nodes"]
    nodes: tuple[NodeConfig, ...] = Field(min_length=1)

    @field_validator("nodes")
    @classmethod
    def _can_be_bought(cls, value: tuple[NodeConfig, ...]) -> tuple[NodeConfig, ...]:
        if problems := list(_problems(value)):
            raise ValueError("\n".join(problems))  # one problem per line: `config.problems` separates them again
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


def _problems(nodes: Sequence[NodeConfig]) -> Iterator[str]:
    earlier: dict[str, NodeKind] = {}
    for node in nodes:
        if node.name in earlier:
            yield f"{node.name} is named more than once"
        if node.name != node.name.strip() or not node.name.isprintable():
            yield f"{node.name!r}: a name must not begin or end with a space, or have a line break"
        kind, judges = KINDS[node.purpose], [name for name, before in earlier.items() if before.reply == "verdict"]
        answers = [parent for parent in node.parents if parent not in judges]
        if unknown := [parent for parent in node.parents if parent not in earlier]:
            for name in unknown:
                yield f"{node.name}: its parent {shown_name(name)} is no earlier node{did_you_mean(name, earlier)}"
        elif kind.reply == "verdict" and not (len(node.parents) == len(answers) == 1):
            yield f"{node.name}: purpose {node.purpose} needs one parent, the answer that it judges"
        elif node.parents and not kind.reads:
            yield f"{node.name}: a node of purpose {node.purpose} cannot read other nodes; use purpose: answer"
        elif node.parents and not answers:
            yield f"{node.name}: an answer that reads others needs an answer among its parents"
        earlier[node.name] = kind
    if kind.reply == "verdict" or nodes[-1].parents:
        yield (
            f"{nodes[-1].name}: the last node is the reference: an answer without parents, as in "
            "{name: guide, model: guide, purpose: outright}"
        )


STRATEGIES: Registry[type[StrategyConfig]] = Registry(
    "strategy",
    "cascade.strategies",
    {
        "base_guide": "cascade.plans.presets:BaseGuideConfig",
        "ladder": "cascade.plans.presets:LadderConfig",
        "exit": "cascade.plans.presets:ExitConfig",
        "nodes": "cascade.plans.presets:NodesConfig",
    },
    subclass_of(StrategyConfig),
    by_place=True,
)
WRITTEN = ByKind(STRATEGIES, "base_guide")
"""Reads a strategy's settings."""
