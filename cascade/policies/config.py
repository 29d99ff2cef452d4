"""The settings of policies: the base class `PolicyConfig`, and the kinds by name (`POLICIES`).

`docs/write-a-policy.md` has a complete example. A kind is built in, from an installed package, or a user's class given
as "module:Class". The kind "directory" refers to a policy directory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, NoReturn

from pydantic import Field

from cascade.errors import UsageError
from cascade.policies.base import FittedOn, Policy
from cascade.registry import Registry, subclass_of
from cascade.section import ByKind, KindSection


class StrategyFacts(NamedTuple):
    """The facts about the configured strategy against which a policy's settings are checked.

    Attributes:
        kind: its kind.
        horizon: T, the maximum number of steps.
        sources: the places of a step's candidates, each with the names that it may have in a log.
        signals: the signals that its steps can have.
        decides: whether a model decides in each step when to stop.
        has_reference, has_parts, has_calls: whether it has the parts of `Takes`.
        line_for: the configuration line of a strategy that serves a policy fitted on such steps, if known.
    """

    kind: str
    horizon: int
    sources: tuple[frozenset[str], ...]
    signals: frozenset[str]
    decides: bool
    has_reference: bool
    has_parts: bool
    has_calls: bool
    line_for: Callable[[FittedOn], str | None]


class PolicyConfig(KindSection):
    """The settings of a policy, and how it is built.

    A configuration names the class by its entry point in the group `cascade.policies`, or as "module:Class". A
    subclass adds its settings and defines `build`.

    A kind that cannot be written by hand (`not_by_hand`) exists only in policy directories: its numbers are in a file
    beside its settings (`artifact.MODEL_FILE`), and `read` builds the policy from both.
    """

    @abstractmethod
    def build(self) -> Policy:
        """Return the policy."""

    def read(self, files: Mapping[str, bytes], source: str) -> Policy:  # noqa: ARG002
        """Return the policy of a policy directory.

        Args:
            files: the directory's files other than `policy.json`, by name; empty for most policies.
            source: the directory, for messages.

        Raises:
            ConfigError: the files are not valid; lists every problem.
        """
        return self.build()

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:  # noqa: ARG002 - most policies go with any strategy
        """Yield the reasons why the policy does not work with a strategy, each as "path: what is wrong"."""
        yield from ()


class DirectoryConfig(PolicyConfig):
    """A policy directory, as `cascade fit` writes it: a policy with its certified thresholds."""

    kind: Literal["directory"]
    path: str = Field(min_length=1)

    def build(self) -> NoReturn:
        """Raise an error: `factory.read_policy` reads a directory with its files and certificates."""
        raise UsageError(f"{self.path} is a policy directory: read it with cascade.factory.read_policy.")


POLICIES: Registry[type[PolicyConfig]] = Registry(
    "policy",
    "cascade.policies",
    {
        "fixed": "cascade.policies.fixed:FixedConfig",
        "random": "cascade.policies.fixed:RandomConfig",
        "threshold": "cascade.policies.threshold:ThresholdConfig",
        "prompted": "cascade.policies.prompted:PromptedConfig",
        "directory": "cascade.policies.config:DirectoryConfig",
        "learned": "cascade.policies.learned_config:LearnedConfig",
    },
    subclass_of(PolicyConfig),
    by_place=True,
)
WRITTEN = ByKind(POLICIES, "threshold")
"""Reads a policy's settings as a configuration has them."""
HELD = ByKind(POLICIES, "threshold", held=True)
"""Reads them as a policy directory has them."""
