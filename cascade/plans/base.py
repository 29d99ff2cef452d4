"""What every strategy follows (`Strategy`), the settings that build one, and the kinds by name (`STRATEGIES`).

`docs/write-a-strategy.md` shows a whole kind. A kind is built in, comes with an installed package, or is the user's own
class, named as "module:Class".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from cascade.budget.tokens import estimate_prompt
from cascade.chat import has_image
from cascade.errors import UsageError
from cascade.plans.prompts import Prompts
from cascade.policies.base import SHARED_PLACE, Selection
from cascade.registry import Registry, default, file_of, subclass_of
from cascade.section import ByKind, KindSection
from cascade.types import Completion, Message, Question, Request, Step

if TYPE_CHECKING:  # settings are read and queried before a provider is made
    from cascade.providers.base import Provider


class Conclusion(NamedTuple):
    """An agent's reply, made from its calls: it needs no further call and costs nothing itself."""

    request: Request
    completion: Completion


Walk: TypeAlias = Generator[Request | Step | Conclusion, Any, None]
"""Yields a `Request` and is sent its `Completion` (or has a `ProviderError` thrown in), yields an undecided `Step` and
is resumed if the policy wants another step. It returns after its last step. A `Conclusion` is logged.

Where a policy decides before each call (`Selection.calls`) a walk begins with `NOTHING_BOUGHT`, and is resumed with the
number of the step to buy (`following`)."""
NOTHING_BOUGHT = Step(0, (), {})
"""The step before the first decision: it has no call and is not logged."""


def following(chosen: object, number: int, horizon: int) -> int:
    """Return the number of the step that a policy buys next, above the horizon if there is none.

    `chosen` is the value that the walk was resumed with: without a number, the reference (the last) is bought. `number`
    is that of the step before, 0 before the first.

    >>> following(3, 1, 4), following(None, 1, 4), following(None, 4, 4)
    (3, 4, 5)
    """
    return chosen if isinstance(chosen, int) and number < chosen else horizon if number < horizon else horizon + 1


MAX_TOKENS, CHAT_MAX_TOKENS = 256, 4_096
"""The longest reply to a question, and to a chat request, if neither the configuration nor the request sets it."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model, its request settings, and its abilities: None if unknown.

    Args:
        name: the model.
        max_tokens, temperature, seed: how it is asked.
        context_tokens: the most tokens of prompt and reply together.
        images, tools: whether it takes images, and tools.
        chat_max_tokens: the longest reply to a chat request that sets no limit itself.
    """

    name: str
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    seed: int | None = None
    context_tokens: int | None = None
    images: bool | None = None
    tools: bool | None = None
    chat_max_tokens: int = CHAT_MAX_TOKENS

    def request(
        self,
        messages: tuple[Message, ...],
        role: str,
        purpose: str,
        step: int,
        question: Question,
        logprobs: int | None = None,
    ) -> Request:
        """Return the call that asks it with these messages."""
        most, heat = self.max_tokens, self.temperature
        return Request(self.name, messages, role, purpose, step, question, most, heat, logprobs, self.seed)

    def lacks(self, request: Request) -> str | None:
        """Return a phrase for the abilities that a chat request needs and the model lacks; None if it lacks none."""
        chat = request.chat
        if chat is None:
            return None
        if self.tools is False and (chat.tools or any(message.get("tool_calls") for message in chat.messages)):
            return "it takes no tools"
        if self.images is False and any(has_image(message.get("content")) for message in chat.messages):
            return "it takes no images"
        if self.context_tokens is None:
            return None
        needed = estimate_prompt(request) + (chat.max_tokens or 1)  # our own limit is not a need of the request
        if needed <= self.context_tokens:
            return None
        return f"prompt and reply may have {needed:,} tokens, and its context has {self.context_tokens:,}"


class Standins(NamedTuple):
    """The models that are asked in place of others.

    `down` has, by model, those that are asked in turn while it is down; `poor` is asked if the budget has no room for
    another model's call.
    """

    down: Mapping[str, tuple[ModelUse, ...]] = {}
    poor: ModelUse | None = None


class Strategy(Protocol):
    """Combines models into steps.

    A strategy inherits from this class and defines `horizon`, `models` and `plan`; every other member has a default.
    """

    __slots__ = ()
    blocks: ClassVar[bool] = False
    """Whether its walks run code that may block, such as an agent's tools: each then has a thread of its own."""

    if TYPE_CHECKING:  # they have no default

        @property
        def horizon(self) -> int:
            """T, the most steps a question can take."""
            ...

        @property
        def models(self) -> tuple[str, ...]:
            """The names of the models that it may call."""
            ...

    def plan(self, question: Question) -> Walk:
        """Return the walk of one question."""
        ...

    @default
    def prompts(self) -> Prompts | None:
        """The prompt files that it was built with; None if it reads none."""
        return None

    @default
    def ends_with_reference(self) -> bool:
        """Whether its last step is the answer of the reference alone, as in a ladder."""
        return False

    @default
    def step_names(self) -> tuple[str, ...]:
        """The names of the steps, such as the model or the node; empty if steps have only numbers."""
        return ()

    def only(self, selection: Selection) -> Strategy:
        """Return the strategy of the part that a policy takes.

        Raises:
            UsageError: the strategy has no such part.
        """
        raise UsageError(f"{type(self).__name__} has no parts that a policy could take ({selection}).")


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
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "uala"}
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
        "verified": "cascade.plans.presets:VerifiedConfig",
    },
    subclass_of(StrategyConfig),
    by_place=True,
)
WRITTEN = ByKind(STRATEGIES, "base_guide")
"""Reads a strategy's settings."""
