"""The settings of a policy: what every kind has in common, and the kinds by name (`POLICIES`).

`docs/write-a-policy.md` shows a whole kind. A kind is built in, brought by an installed package, or a class of one's
own as "module:Class". The kind "directory" names a policy directory in place of a policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from pydantic import Field

from cascade.errors import UsageError
from cascade.policies.base import FittedOn, Policy
from cascade.registry import Registry, subclass_of
from cascade.section import ByKind, KindSection

if TYPE_CHECKING:  # numpy, which most configurations do without
    from cascade.policies.design import Embedder


class StrategyFacts(NamedTuple):
    """What the settings of a policy are checked against: the strategy that is configured.

    Attributes:
        kind: its kind.
        horizon: T, the most steps.
        sources: the places of a step's candidates, each with the names that it may bear in a log.
        signals: those that its steps can have.
        decides: whether a model decides in each step when to stop.
        has_reference, has_parts, has_calls: whether it has the parts of `Takes`.
        line_for: the line of a configuration under which a policy fitted on such steps is served, where it is known.
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

    A kind that nobody writes by hand (`not_by_hand`) stands in a policy directory alone: its numbers are in a file
    beside its settings (`artifact.MODEL_FILE`), and `read` builds it of both.
    """

    @abstractmethod
    def build(self) -> Policy:
        """Return the policy."""

    def read(self, files: Mapping[str, bytes], source: str, embedder: Callable[[], Embedder]) -> Policy:  # noqa: ARG002
        """Return the policy of a policy directory.

        Args:
            files: the directory's files beside `policy.json`, by their names: none for most policies.
            source: the directory, for messages.
            embedder: loads the sentence model, for a policy that looks at questions with one.

        Raises:
            ConfigError: everything that is wrong with the files.
        """
        return self.build()

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:  # noqa: ARG002 - most policies go with any strategy
        """Yield what keeps the policy from working with a strategy, each as "path: what is wrong"."""
        yield from ()


class DirectoryConfig(PolicyConfig):
    """A policy directory, as `cascade calibrate` writes it: a policy with the thresholds that were certified for it.

    `hedge: false` never begins the reference's call early, also where the directory says when to (`hedging`).
    """

    kind: Literal["directory"]
    path: str = Field(min_length=1)
    hedge: bool = True

    def build(self) -> NoReturn:
        """Refuse: a directory is read, with its files and certificates, by `factory.read_policy`.

        Raises:
            UsageError: always.
        """
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
        "cross": "cascade.policies.learned_config:CrossConfig",
    },
    subclass_of(PolicyConfig),
    by_place=True,
)
WRITTEN = ByKind(POLICIES, "threshold")
"""Reads a policy's settings as a configuration has them."""
HELD = ByKind(POLICIES, "threshold", held=True)
"""Reads them as a policy directory has them."""
