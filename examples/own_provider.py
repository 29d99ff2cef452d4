"""A provider of your own: any object with `complete`, `acomplete` and `close`.

    python examples/own_provider.py

An installed package names a factory in its entry points, and `provider: upper` finds it:

    [project.entry-points."cascade.providers"]
    upper = "your_package:make"

Here nothing is installed, so the provider is handed over in place of the fake one. It runs offline.
"""

from cascade import Orchestrator
from cascade.providers.base import Payload
from cascade.providers.registry import ProviderSettings
from cascade.types import Request


class Upper:
    """Answers every question with its last word in capitals. A real one would ask a server."""

    def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - it answers at once
        """Return a chat completion as plain JSON values; the guard checks it, retries and keeps the time."""
        said = "Yes" if request.purpose == "judge" else f"Answer: {request.question.text.split()[-1].upper()}"
        return {"choices": [{"index": 0, "message": {"content": said}, "finish_reason": "stop"}]}

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:
        """Return the same without blocking."""
        return self.complete(request, timeout_s)

    def close(self) -> None:
        """Nothing to give back."""


def make(settings: ProviderSettings) -> Upper:  # noqa: ARG001 - it has no options
    """Make the provider: what the entry point names."""
    return Upper()


if __name__ == "__main__":
    config = {"models": {"base": "small", "guide": "large"}, "provider": "fake"}
    print(Orchestrator.from_config(config, providers={"fake": Upper()}).ask("Say it louder: hello").explain())
