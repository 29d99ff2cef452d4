"""A provider of your own: any object with the coroutines `complete` and `close`.

    python examples/own_provider.py

Here it replaces the fake provider; `docs/python.md` explains how a package registers it. It runs offline.
"""

from cascade import Orchestrator
from cascade.providers.base import Payload
from cascade.types import Request


class Upper:
    """Answers with the question's last word in capitals. A real one would ask a server."""

    async def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - it answers at once
        """Return a chat completion as plain JSON values. cascade adds checks, retries and prices."""
        text = f"Answer: {request.question.text.split()[-1].upper()}"
        return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


if __name__ == "__main__":
    ladder = {"kind": "ladder", "models": ["base", "guide"]}
    config = {"models": {"base": "small", "guide": "large"}, "strategy": ladder, "provider": "fake", "traces": "off"}
    print(Orchestrator.from_config(config, providers={"fake": Upper()}).ask("Say it louder: hello").explain())
