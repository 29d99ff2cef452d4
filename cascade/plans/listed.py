"""The settings of a plan that is written out: a list of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from cascade.checks import did_you_mean, shown_name
from cascade.errors import ConfigError
from cascade.plans.base import ModelUse
from cascade.plans.nodes import JUDGING, Node, Plan
from cascade.plans.presets import PlanConfig
from cascade.plans.prompts import Prompts
from cascade.section import Section


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

    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold", "when": "reply_logprob"}
    has_reference = True
    has_parts = True
    has_calls = True

    @field_validator("nodes")
    @classmethod
    def _can_be_bought(cls, value: tuple[NodeConfig, ...]) -> tuple[NodeConfig, ...]:
        problems = list(_problems(value))
        if problems:
            raise ValueError("\n".join(problems))  # one problem a line: `config.problems` separates them again
        return value

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[Node]:
        """Return the nodes."""
        number = {node.name: place for place, node in enumerate(self.nodes, 1)}
        return [
            Node(node.name, uses[node.model], node.purpose, tuple(sorted(number[parent] for parent in node.parents)))
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
            yield f"{node.name}: {_unreadable(parent, node, names, earlier)}"
        if not unknown:
            yield from _parent_problems(node, [earlier[parent] for parent in node.parents])
        earlier[node.name] = node
    if nodes[-1].purpose in JUDGING or nodes[-1].parents:
        yield (
            f"{nodes[-1].name}: the last node is the reference: an answer without parents, as in "
            "{name: guide, model: guide, purpose: outright}"
        )


def _unreadable(parent: str, node: NodeConfig, names: Sequence[str], earlier: Iterable[str]) -> str:
    if parent == node.name:
        return "it reads itself"
    if parent in names:
        return f"it reads {parent}, so {parent} must come before it"
    return f"its parent {shown_name(parent)} is not a node{did_you_mean(parent, earlier)}"


def _parent_problems(node: NodeConfig, read: Sequence[NodeConfig]) -> Iterator[str]:
    answers = sum(parent.purpose not in JUDGING for parent in read)
    listed = ", ".join(f"{parent.name} ({parent.purpose})" for parent in read) or "none"
    if node.purpose in JUDGING and (len(read) != 1 or not answers):
        yield f"{node.name}: purpose {node.purpose} needs one parent, the answer that it judges, and this has {listed}"
    elif node.purpose in {"sample", "outright"} and read:
        yield f"{node.name}: a node of purpose {node.purpose} cannot read other nodes; use purpose: answer"
    elif read and node.purpose == "answer" and not answers:
        yield f"{node.name}: an answer that reads others needs an answer among its parents; here it has {listed}"
