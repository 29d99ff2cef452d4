"""Answer a verifier's calls without a model: by a user's function, a JSON schema, or a command with a time limit.

A verdict is a number in [0, 1], 1 for an output that passes and 0 for one that fails, or "unknown". It is the text of a
completion, so that verdicts are called, logged, traced and replayed like a model's replies. It costs nothing.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cascade.chat import output_text, parsed
from cascade.errors import BadRequestError, ProviderTimeoutError, quote
from cascade.providers.base import Payload
from cascade.resilience.portal import in_thread
from cascade.safety import exit_code
from cascade.types import Question, Request

Verify = Callable[[Question, Mapping[str, Any], float], object]
"""Judges a message that answers a question, within some seconds; for a plain question its content is the answer.

It returns a bool, a number in [0, 1], or None if it cannot decide.
"""
UNKNOWN = "unknown"
CANNOT_TELL = 75
"""The exit code of a command without a verdict (EX_TEMPFAIL of sysexits.h)."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


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
    """A provider that answers verifiers' calls by a function.

    Args:
        verify: judges an output.
        name: its name in messages.
    """

    verify: Verify
    name: str

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Return the verdict on the output in a request, made in a thread."""
        return await in_thread(partial(self._verdict, request, timeout_s))

    def _verdict(self, request: Request, timeout_s: float) -> Payload:
        message = json.loads(request.messages[-1].content)
        try:
            said = self.verify(request.question, message, timeout_s)
        except TimeoutError:
            says = f"the verifier {self.name} was not done in {timeout_s:.1f} s, which was all the time left"
            raise ProviderTimeoutError(says, model=request.model, billed="no") from None
        except Exception as error:  # noqa: BLE001 - a user's function raises what it likes
            says = f"the verifier {self.name} failed: {type(error).__name__}: {quote(str(error))}"
            raise BadRequestError(says, model=request.model) from None
        choice = {"index": 0, "message": {"role": "assistant", "content": _text(said)}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _text(said: object) -> str:
    """Return a verdict as a completion's text."""
    plain: Any = said
    if getattr(said, "shape", None) == ():  # numpy's scalars are no bools
        plain = plain.item()
    if isinstance(plain, bool | int | float) and 0 <= plain <= 1:
        return str(float(plain))
    return UNKNOWN


@dataclass(frozen=True, slots=True)
class Schema:
    """Passes an output that is JSON and matches a schema; for a message with tool calls, the list of its calls."""

    schema: Mapping[str, Any]

    def __call__(self, question: Question, message: Mapping[str, Any], left_s: float) -> bool:  # noqa: ARG002
        """Judge an output, whatever the question is."""
        try:
            value = parsed(output_text(message))
        except ValueError:
            return False
        from cascade.chat_faults import schema_problem

        return schema_problem(self.schema, value) is None


@dataclass(frozen=True, slots=True)
class Command:
    """Passes an output if a command ends in time with exit code 0; exit code 75 means unknown.

    The command reads one JSON object on its standard input: `question`, `context`, `request` (the body of a chat
    request, or null), `message` and `output` (the message as a text). It runs in its own session, in an empty folder,
    without the environment variables whose names look like those of keys. When its time is over it is killed with every
    process of its session, and the output fails.

    Args:
        command: the program and its arguments; no shell reads them.
        timeout_s: how long it may take.
    """

    command: Sequence[str]
    timeout_s: float = 10.0

    def __call__(self, question: Question, message: Mapping[str, Any], left_s: float) -> bool | None:
        """Judge an output; raise TimeoutError if the question's time ends before the command's own."""
        told = {
            "question": question.text,
            "context": question.context,
            "request": None if question.chat is None else question.chat.body(),
            "message": message,
            "output": output_text(message),
        }
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as held:
            held.write(json.dumps(told).encode("utf-8", "replace"))
            held.seek(0)
            clean = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
            code = exit_code(self.command, folder, clean, min(left_s, self.timeout_s), stdin=held)
        if code is None and left_s < self.timeout_s:
            raise TimeoutError
        return None if code == CANNOT_TELL else code == 0
