"""The section `policy`: a policy set by hand, a user's own class, or a policy directory.

A policy set by hand has the same kinds and settings as policies in a directory (`policies.policy`), and the point at
which it serves. A user's own policy is a subclass of `policies.policy.Policy`, named by an entry point in the group
`cascade.policies` or as "module:Class"; `docs/write-a-policy.md` has an example. numpy is imported only when a policy
is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from cascade.registry import Registry
from cascade.section import ByKind, KindSection

if TYPE_CHECKING:
    from cascade.plans.presets import StrategyConfig
    from cascade.policies.policy import Policy
    from cascade.table import Node

Rule: TypeAlias = "tuple[Policy, float]"
"""A policy, and the threshold at which it serves."""
_Number = Annotated[float, Field(allow_inf_nan=False)]


class PolicyConfig(KindSection):
    """The settings of a policy: those of its class, and those that say at which point it serves."""

    at_point: ClassVar[frozenset[str]] = frozenset({"threshold"})
    """The settings that say at which point it serves."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that the policy requires."""
        return self.rule(())[0].reads

    def doubt(self, plan: Sequence[Node]) -> float:  # noqa: ARG002 - most thresholds are for any plan
        """Return the lowest doubt at which it goes on: by default the setting `threshold`."""
        threshold: float = getattr(self, "threshold", 0.0)
        return threshold

    def rule(self, plan: Sequence[Node]) -> Rule:
        """Return the policy and its threshold, for a plan of these nodes."""
        from cascade.policies.policy import POLICIES as BUILT_IN
        from cascade.policies.policy import on_grid

        settings = self.model_dump(exclude={"kind", *self.at_point})
        return BUILT_IN[self.kind](**settings), on_grid(self.doubt(plan))

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield the reasons why it does not work with a strategy, each as "path: what is wrong"."""
        for name in self.reads:
            if name not in strategy.given:
                known = ", ".join(sorted(strategy.given)) or "none"
                yield (
                    f"policy: {self.kind} reads the signal {name}, which the {strategy.kind} strategy does not give as "
                    f"it is configured; it gives {known}. {{kind: fixed, depth: …}} reads none"
                )


class FixedConfig(PolicyConfig):
    """Run `depth` steps. `serves`: the surest of all answers, the newest, or that of the last step's first model."""

    at_point: ClassVar[frozenset[str]] = frozenset({"depth"})

    kind: Literal["fixed"] = "fixed"
    depth: int = Field(default=1, ge=1)
    serves: Literal["surest", "newest", "first"] = "surest"

    def doubt(self, plan: Sequence[Node]) -> float:
        """Return 0.5 minus the number of nodes in the steps: the doubt falls by 1 from node to node."""
        from cascade.policies.live import layout_of

        return 0.5 - sum(len(step.nodes) for step in layout_of(tuple(plan))[: self.depth])

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield a problem if the strategy has fewer steps."""
        if self.depth > strategy.horizon:
            yield f"policy.depth: {self.depth} is more than the {strategy.horizon} steps that the strategy has"


class RandomConfig(PolicyConfig):
    """Go on at random, with this probability; the decision is the same for the same seed, request and step."""

    at_point: ClassVar[frozenset[str]] = frozenset({"probability"})

    kind: Literal["random"] = "random"
    seed: int = 0
    probability: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def doubt(self, plan: Sequence[Node]) -> float:  # noqa: ARG002 - any plan
        """Return 1 − probability: the doubt is drawn between 0 and 1."""
        return 1.0 - self.probability


class UalaConfig(PolicyConfig):
    """Go on while the doubt in the guide's verdict is at least `threshold`; without a verdict the walk goes on.

    The doubt is −ln max(p, 1 − p) of p = P(yes), in nats; without `accepts_no` it is 1 − p, so that a sure "no" does
    not stop.
    """

    kind: Literal["uala"] = "uala"
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3
    accepts_no: bool = True


class ThresholdConfig(PolicyConfig):
    """Go on while the doubt, `sign` times a signal, is at least `threshold`; an unknown value is full doubt.

    `sign` is −1 if a low value of the signal means doubt: on "reply_mean_logprob" (the mean log-prob of the reply's
    tokens, in nats), a threshold of 0.16 goes on at −0.16 or below; on a verifier's "gate", one of −0.7 goes on at 0.7
    or below. `tie` names a signal that breaks ties.
    """

    kind: Literal["threshold"] = "threshold"
    signal: str = "reply_mean_logprob"
    sign: Literal[-1, 1] = -1
    tie: str | None = None
    threshold: _Number = 0.3


class PromptedConfig(PolicyConfig):
    """A model decides: the strategy's `decider`, or the model of the exit strategy."""

    kind: Literal["prompted"] = "prompted"

    def problems(self, strategy: StrategyConfig) -> Iterator[str]:
        """Yield a problem if no model of the strategy decides."""
        if not strategy.decides:
            yield "policy: prompted needs a model that decides: strategy.decider: guide, or strategy: {kind: exit}"


class OwnConfig(PolicyConfig):
    """A user's own policy: its class, the threshold on its doubt, and the settings of the class."""

    kind: str
    threshold: _Number
    settings: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _divided(cls, data: Any) -> Any:
        """Move everything except kind and threshold into the settings of the class."""
        known = {name: data[name] for name in ("kind", "threshold") if name in data}
        return {**known, "settings": {name: data[name] for name in data if name not in known}}

    @model_validator(mode="after")
    def _readable(self) -> OwnConfig:
        self.rule(())
        return self

    def rule(self, plan: Sequence[Node]) -> Rule:  # noqa: ARG002 - any plan
        """Return the policy that the class reads from the settings. Raises ValueError."""
        from cascade.conformal.certificate import problems_of
        from cascade.policies.policy import on_grid

        policy = POLICIES.find(self.kind)
        assert policy is not None  # noqa: S101 - `_WrittenPolicies` chose this class by it
        try:
            return policy.read(self.settings, {}), on_grid(self.threshold)
        except ValidationError as error:
            raise ValueError("\n".join(problems_of(error))) from None


class DirectoryConfig(PolicyConfig):
    """A policy directory, as `cascade fit` writes it: a policy with its certificates."""

    kind: Literal["directory"]
    path: str = Field(min_length=1)

    @property
    def reads(self) -> tuple[str, ...]:
        """None here: the signals of its policy are checked when the directory is read."""
        return ()


def _lacks(candidate: Any) -> str | None:
    if isinstance(candidate, type) and issubclass(candidate, PolicyConfig):
        return None
    from cascade.policies.policy import Policy
    from cascade.registry import subclass_of

    return subclass_of(Policy)(candidate)


POLICIES: Registry[Any] = Registry(
    "policy",
    "cascade.policies",
    {
        kind: f"{__name__}:{kind.capitalize()}Config"
        for kind in ("fixed", "random", "uala", "threshold", "prompted", "directory")
    },
    _lacks,
    by_place=True,
)
"""The settings of the policies set by hand, and the classes of users' own policies."""


class _WrittenPolicies(ByKind[PolicyConfig]):
    """Reads the section; the settings of a user's own policy become an `OwnConfig`."""

    def class_of(self, kind: Any) -> type[PolicyConfig]:
        settings: type = super().class_of(kind)
        return settings if issubclass(settings, PolicyConfig) else OwnConfig


WRITTEN = _WrittenPolicies(POLICIES, "uala")
"""Reads a policy's settings in the form that they have in a configuration."""


def _of_path(value: object) -> object:
    """Return the settings of the policy directory at a path."""
    if not isinstance(value, str) or not value.strip():
        return value
    if value in POLICIES.names:  # a ValueError, since pydantic collects those
        raise ValueError(f"write {{kind: {value}}}; a text is a policy directory's path")
    return {"kind": "directory", "path": value}


WrittenPolicy = Annotated[PolicyConfig, WRITTEN, BeforeValidator(_of_path)]
"""A policy as in a configuration."""
