"""The section `policy`: a policy set by hand, a class of one's own, or a policy directory.

Each kind gives a policy (`policies.policy`) and the point at which it serves. An own policy is a subclass of
`policies.policy.Policy`, named by an entry point in the group `cascade.policies` or as "module:Class";
`docs/write-a-policy.md` has an example. numpy is imported where a policy is built.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from cascade.errors import UsageError
from cascade.registry import Registry
from cascade.section import ByKind, KindSection

if TYPE_CHECKING:
    from cascade.conformal.path import Point
    from cascade.plans.base import StrategyConfig
    from cascade.policies.policy import Policy
    from cascade.table import Node

Rule: TypeAlias = "tuple[Policy, Point]"
"""A policy, and the point at which it serves."""
_Number = Annotated[float, Field(allow_inf_nan=False)]


class PolicyConfig(KindSection):
    """The settings of a policy."""

    @abstractmethod
    def rule(self, plan: Sequence[Node]) -> Rule:
        """Return the policy and its point, for a plan of these nodes."""

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:  # noqa: ARG002 - most policies go with any strategy
        """Yield why it does not work with a strategy, each as "path: what is wrong"."""
        yield from ()


class FixedConfig(PolicyConfig):
    """Run `depth` steps. `serves`: the surest of all answers, the newest, or that of the last step's first model."""

    kind: Literal["fixed"]
    depth: int = Field(default=1, ge=1)
    serves: Literal["surest", "newest", "first"] = "surest"

    def rule(self, plan: Sequence[Node]) -> Rule:
        """Return a policy that reads nothing."""
        from cascade.conformal.path import Point
        from cascade.policies.live import layout_of
        from cascade.policies.policy import Depth

        bought = sum(len(step.nodes) for step in layout_of(tuple(plan))[: self.depth])
        return Depth(serves=self.serves), Point(0.5 - bought)

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield a problem if the strategy has fewer steps."""
        if self.depth > strategy.horizon:
            yield f"policy.depth: {self.depth} is more than the {strategy.horizon} steps that the strategy has"


class RandomConfig(PolicyConfig):
    """Go on at random, with this probability, the same way for the same seed, request and step."""

    kind: Literal["random"]
    seed: int = 0
    probability: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def rule(self, plan: Sequence[Node]) -> Rule:  # noqa: ARG002 - any plan
        """Return a policy that draws."""
        from cascade.conformal.path import Point
        from cascade.policies.policy import Random

        return Random(self.seed), Point(1.0 - self.probability)


_READS = {"uncertain": "p_yes", "p_yes": "p_yes", "reply_logprob": "reply_mean_logprob", "gate": "gate"}


class ThresholdConfig(PolicyConfig):
    """Go on while the doubt is at least `threshold`; an unknown value is full doubt.

    `when`: the guide's "uncertain" verdict, in nats (UALA); 1 − "p_yes", so that a sure "no" does not stop; minus the
    mean log-prob of the reply's tokens, "reply_logprob", in nats; or 1 − the "gate" of a verifier.
    """

    kind: Literal["threshold"] = "threshold"
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3
    when: Literal["uncertain", "p_yes", "reply_logprob", "gate"] = "uncertain"

    def rule(self, plan: Sequence[Node]) -> Rule:  # noqa: ARG002 - any plan
        """Return UALA, or a threshold on one signal."""
        from cascade.conformal.path import Point
        from cascade.policies.policy import Threshold, Uala, on_grid

        if self.when in ("uncertain", "p_yes"):
            return Uala(accepts_no=self.when == "uncertain"), Point(on_grid(self.threshold))
        shift = 1.0 if self.when == "gate" else 0.0
        return Threshold(_READS[self.when], -1.0, tie=None), Point(on_grid(self.threshold - shift))

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield a problem if no step of the strategy, as it is configured, gives the signal of the doubt."""
        if _READS[self.when] in strategy.given:
            return
        lacks = {"reply_logprob": "log-probs", "gate": "verifier"}.get(self.when, "verdicts")
        readable = [f"when: {when}" for when, name in _READS.items() if name in strategy.given]
        ways = " or ".join([*readable, "{kind: fixed, depth: …}"])
        yield f"policy.when: the {strategy.kind} strategy has no {lacks} as it is configured; use {ways}"


class PromptedConfig(PolicyConfig):
    """A model decides: the strategy's `decider`, or the model of the exit strategy."""

    kind: Literal["prompted"]

    def rule(self, plan: Sequence[Node]) -> Rule:  # noqa: ARG002 - any plan
        """Return the policy that does what a model says."""
        from cascade.conformal.path import Point
        from cascade.policies.policy import Prompted

        return Prompted(), Point(0.0)

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield a problem if no model of the strategy decides."""
        if not strategy.decides:
            yield "policy: prompted needs a model that decides: strategy.decider: guide, or strategy: {kind: exit}"


class OwnConfig(PolicyConfig):
    """A policy of one's own: its class, the threshold on its doubt, and the settings of the class."""

    kind: str
    threshold: _Number
    settings: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _divided(cls, data: Any) -> Any:
        """Put what is neither kind nor threshold among the settings of the class."""
        own = {name: data[name] for name in data if name not in ("kind", "threshold")}
        return {**{name: data[name] for name in data if name not in own}, "settings": own}

    @model_validator(mode="after")
    def _readable(self) -> OwnConfig:
        self.rule(())
        return self

    def rule(self, plan: Sequence[Node]) -> Rule:  # noqa: ARG002 - any plan
        """Return the policy that the class reads from the settings. Raises ValueError."""
        from cascade.conformal.certificate import problems_of
        from cascade.conformal.path import Point
        from cascade.policies.policy import on_grid

        found = POLICIES.find(self.kind)
        assert found is not None  # noqa: S101 - `_Written` chose this class by it
        try:
            return found.read(self.settings, {}), Point(on_grid(self.threshold))
        except ValidationError as error:
            raise ValueError("\n".join(problems_of(error))) from None

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield the signals that the policy reads and no step of the strategy gives."""
        lacking = [name for name in self.rule(())[0].reads if name not in strategy.given]
        yield from (
            f"policy: {self.kind} reads the signal {name}, which {strategy.kind} never gives" for name in lacking
        )


class DirectoryConfig(PolicyConfig):
    """A policy directory, as `cascade fit` writes it: a policy with its certificates."""

    kind: Literal["directory"]
    path: str = Field(min_length=1)

    def rule(self, plan: Sequence[Node]) -> NoReturn:  # noqa: ARG002 - the directory has its own
        """Raise an error: `policies.directory` reads a directory with its certificates."""
        raise UsageError(f"{self.path} is a policy directory: read it with cascade.policies.directory.PolicyDirectory.")


def _lacks(found: Any) -> str | None:
    if isinstance(found, type) and issubclass(found, PolicyConfig):
        return None
    from cascade.policies.policy import Policy
    from cascade.registry import subclass_of

    return subclass_of(Policy)(found)


POLICIES: Registry[Any] = Registry(
    "policy",
    "cascade.policies",
    {
        kind: f"{__name__}:{kind.capitalize()}Config"
        for kind in ("fixed", "random", "threshold", "prompted", "directory")
    },
    _lacks,
    by_place=True,
)
"""The settings of the policies set by hand, and the classes of one's own policies."""


class _Written(ByKind[PolicyConfig]):
    """Reads the section; the settings of one's own policy are an `OwnConfig`."""

    def class_of(self, kind: Any) -> type[PolicyConfig]:
        found: type = super().class_of(kind)
        return found if issubclass(found, PolicyConfig) else OwnConfig

    def read(self, value: Any) -> PolicyConfig:
        return value if isinstance(value, PolicyConfig) else super().read(value)


WRITTEN = _Written(POLICIES, "threshold")
"""Reads a policy's settings as a configuration has them."""


def policy_shorthand(value: object) -> object:
    """Expand a text to the settings of the policy directory at this path."""
    if not isinstance(value, str) or not value.strip():
        return value
    if value in POLICIES.names:
        # A ValueError, since pydantic collects those.
        raise ValueError(f"write {{kind: {value}}}; a text is a policy directory's path")
    return {"kind": "directory", "path": value}


WrittenPolicy = Annotated[PolicyConfig, WRITTEN, BeforeValidator(policy_shorthand)]
"""A policy as in a configuration."""
