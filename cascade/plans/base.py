"""How a model is called, and what the walk of a plan yields to the engine."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from cascade.budget.tokens import estimate_prompt
from cascade.chat import has_image
from cascade.types import Completion, Message, Question, Request, Step


class Conclusion(NamedTuple):
    """An agent's reply, made from its calls: it needs no further call and costs nothing itself."""

    request: Request
    completion: Completion


Walk: TypeAlias = Generator[Request | Step | Conclusion, Any, None]
"""Yields a `Request` and is sent its `Completion` (or has a `ProviderError` thrown in), yields an undecided `Step` and
is resumed if the policy wants another step. It returns after its last step. A `Conclusion` is logged.

If a policy decides before each call (`Selection.calls`), a walk begins with `NOTHING_BOUGHT` and is resumed with the
number of the step to buy (`following`)."""
NOTHING_BOUGHT = Step(0, (), {})
"""The step before the first decision: it has no call and is not logged."""


def following(chosen: object, number: int, horizon: int) -> int:
    """Return the number of the step that a policy buys next; it is above the horizon if there is none.

    `chosen` is the value with which the walk was resumed; if it is not the number of a later step, the last step is
    bought, which is the reference. `number` is that of the previous step, 0 before the first.

    >>> following(3, 1, 4), following(None, 1, 4), following(None, 4, 4)
    (3, 4, 5)
    """
    return chosen if isinstance(chosen, int) and number < chosen else horizon if number < horizon else horizon + 1


MAX_TOKENS, CHAT_MAX_TOKENS = 256, 4_096
"""The most tokens of a reply to a question, and to a chat request, if neither configuration nor request sets it."""


_OWN = ("temperature", "seed")


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model, its request settings, and its abilities (None if unknown).

    Args:
        context_tokens: the most tokens of prompt and reply together.
        images, tools: whether it takes images, and tools.
        chat_max_tokens: the most tokens of a reply to a chat request that sets no limit itself.
        decides: whether it is a decision model, which returns P(yes) of a statement and writes nothing.
    """

    name: str
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    seed: int | None = None
    context_tokens: int | None = None
    images: bool | None = None
    tools: bool | None = None
    chat_max_tokens: int = CHAT_MAX_TOKENS
    decides: bool = False

    def request(
        self,
        messages: tuple[Message, ...],
        role: str,
        purpose: str,
        step: int,
        question: Question,
        logprobs: int | None = None,
    ) -> Request:
        """Return the request that sends it these messages."""
        most, heat = self.max_tokens, self.temperature
        return Request(self.name, messages, role, purpose, step, question, most, heat, logprobs, self.seed)

    def in_place_of(self, use: ModelUse, request: Request) -> Request:
        """Return a request made for another model, for this one: with its settings, except those that the node sets."""
        chat, own = request.chat, dict[str, Any](model=self.name)
        limit = "max_tokens" if chat is None else "chat_max_tokens"
        if request.max_tokens == getattr(use, limit) and (chat is None or chat.max_tokens is None):
            own["max_tokens"] = getattr(self, limit)
        own |= {name: getattr(self, name) for name in _OWN if getattr(request, name) == getattr(use, name)}
        return request._replace(**own)

    def lacks(self, request: Request) -> str | None:
        """Return a phrase for the abilities that a chat request needs and the model lacks; None if it lacks none."""
        if (chat := request.chat) is None:
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
