"""Answer a verifier's calls with a user's function instead of a model.

A verdict is a number in [0, 1], 1 for an output that passes and 0 for one that fails, or "unknown". It is sent as the
text of a completion, so that verdicts are logged, traced and replayed like a model's replies. It costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from cascade.errors import BadRequestError, quote
from cascade.providers.base import Payload
from cascade.resilience.event_loop import in_thread
from cascade.types import Question, Request

Verify = Callable[[Question, Mapping[str, Any]], object]
"""Judges a message that answers a question; for a plain question its content is the answer.

It returns a bool, a number in [0, 1], or None if it cannot decide.
"""
UNKNOWN = "unknown"


def sent_output(message: Mapping[str, Any]) -> str:
    """Return an output as the text that is sent to a verifier."""
    return json.dumps({"role": "assistant", **message}, ensure_ascii=False)


def read_verdict(text: str) -> float | None:
    """Return the verdict of a reply; None if unknown.

    >>> read_verdict("1.0"), read_verdict("unknown"), read_verdict("nan"), read_verdict("Yes")
    (1.0, None, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


@dataclass(frozen=True, slots=True)
class Verifier:
    """A provider that answers verifiers' calls with a function.

    Args:
        verify: judges an output.
        name: its name in messages.
    """

    verify: Verify
    name: str

    async def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - the guard's own limit ends it
        """Return the verdict on the output in a request, made in a thread."""
        return await in_thread(partial(self._verdict, request))

    def _verdict(self, request: Request) -> Payload:
        message = json.loads(request.messages[-1].content)
        try:
            verdict = self.verify(request.question, message)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            says = f"the verifier {self.name} failed: {type(error).__name__}: {quote(error)}"
            raise BadRequestError(says, model=request.model) from None
        choice = {"index": 0, "message": {"role": "assistant", "content": _text(verdict)}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _text(verdict: object) -> str:
    """Return a verdict as a completion's text."""
    plain: Any = verdict
    if getattr(verdict, "shape", None) == ():  # NumPy's scalars are not bools
        plain = plain.item()
    if isinstance(plain, bool | int | float) and 0 <= plain <= 1:
        return str(float(plain))
    return UNKNOWN
