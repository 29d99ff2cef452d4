"""The settings of a strategy: what every kind has in common, and the kinds by name (`STRATEGIES`).

`docs/write-a-strategy.md` shows a whole kind. A kind is built in, comes with an installed package, or is the user's own
class, named as "module:Class".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cascade.errors import UsageError
from cascade.policies.base import SHARED_PLACE
from cascade.registry import Registry, file_of, subclass_of
from cascade.section import ByKind, KindSection

if TYPE_CHECKING:  # settings are read and queried before a strategy is built
    from cascade.plans.base import ModelUse, Strategy
    from cascade.plans.prompts import Prompts
    from cascade.providers.base import Provider


class StrategyConfig(KindSection):
    """The settings of a strategy, its properties that are known before it is built, and how it is built.

    A configuration names the class by its entry point in the group `cascade.strategies`, or as "module:Class". A
    subclass adds its settings, defines `entries`, `horizon` and `build`, and declares its signals.

    Attributes:
        prompts: the folder of its prompt files; None for the shipped ones.
        candidates: the places of a step's candidates, as a log names them; "answer" is a place that any model fills.
        signals: the names of the signals that its steps can have (`policies.signals`); a policy that reads another
            signal is refused.
        fitting_policy: the settings of the policy that serves if the configuration names none.
        has_reference: whether a policy can ask its reference alone (`Selection.reference`).
        baselines: the names of other methods that `collect` can log beside its steps (`baseline`).
    """

    prompts: str | None = None
    candidates: ClassVar[tuple[str, ...]] = (SHARED_PLACE,)
    signals: ClassVar[frozenset[str]] = frozenset()
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "threshold"}
    has_reference: ClassVar[bool] = False
    baselines: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def entries(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""

    @property
    @abstractmethod
    def horizon(self) -> int:
        """T, the most steps."""

    @abstractmethod
    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Strategy:
        """Return the strategy.

        Args:
            uses: how each model is asked, by its entry under `models`.
            prompts: those in the folder `prompts`, else the shipped ones.
        """

    @property
    def no_chat(self) -> str | None:
        """Why it cannot answer chat requests, which are all that a server gets; None if it can."""
        return f"{self.kind} answers no chat requests"

    @property
    def has_parts(self) -> bool:
        """Whether each step is a call that a policy can leave out, or buy next (`Selection`)."""
        return False

    @property
    def given(self) -> frozenset[str]:
        """Those of `signals` that the steps have with these settings: all by default."""
        return self.signals

    @property
    def decides(self) -> bool:
        """Whether a model decides in each step whether to stop, as the policy `prompted` needs."""
        return False

    @property
    def free_calls(self) -> tuple[str, ...]:
        """The names of calls that go to no model and cost nothing (`free_providers`)."""
        return ()

    def free_providers(self) -> Mapping[str, Provider]:
        """Return the providers of such calls, by name.

        Raises:
            ConfigError: something that the settings name cannot be imported or read.
        """
        return {}

    @property
    def own_files(self) -> Mapping[str, Path | None]:
        """The user's own files that decide what it does, by their description; for a user's own strategy, its module.

        A certificate holds as long as they do not change.
        """
        kind = type(self)
        ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
        return {} if ours else {f"the strategy {self.kind}": file_of(f"{kind.__module__}:{kind.__qualname__}")}

    def role(self, entry: str, model: str) -> str:  # noqa: ARG002 - a ladder calls a model by its name
        """Return the name in a log of the model of an entry under `models`: by default the entry's name."""
        return entry

    def described(self, roles: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - for settings that name models
        """Return the settings that a certificate names, as JSON values: all but the folder of prompts."""
        return self.model_dump(mode="json", exclude={"prompts"})

    def step_roles(self, roles: Sequence[str]) -> list[str] | None:  # noqa: ARG002 - for steps of one model
        """Return the model that answers each step, by its name from `role`; None if several models answer a step."""
        return None

    def baseline(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the settings of the strategy and of the policy of one of `baselines`."""
        raise UsageError(f"The strategy {self.kind} has no baseline {name!r}.")


STRATEGIES: Registry[type[StrategyConfig]] = Registry(
    "strategy",
    "cascade.strategies",
    {
        "base_guide": "cascade.plans.presets:BaseGuideConfig",
        "ladder": "cascade.plans.presets:LadderConfig",
        "exit": "cascade.plans.presets:ExitConfig",
        "nodes": "cascade.plans.presets:NodesConfig",
        "verified": "cascade.plans.verify:VerifiedConfig",
    },
    subclass_of(StrategyConfig),
    by_place=True,
)
WRITTEN = ByKind(STRATEGIES, "base_guide")
"""Reads a strategy's settings."""
