"""Many questions at once, without threads; one that fails does not lose the others.

    python examples/many.py

`amany` keeps the order. `many` is its blocking twin. It runs offline.
"""

import asyncio

from cascade import Answer, BatchError, Orchestrator
from cascade.errors import AuthenticationError
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.types import Request


def script(request: Request) -> Reply:
    """Answer arithmetic; the question with a 7 in it is refused by both models."""
    text = request.question.text
    if "7" in text:
        return AuthenticationError(f"{request.model} refused the key.", model=request.model)
    total = sum(int(word) for word in text.split() if word.isdigit())
    return reply(f"Reasoning: I add.\nAnswer: {total}", logprobs=[-0.01])


async def main() -> None:
    """Ask nine questions, four at a time."""
    ladder = {"kind": "ladder", "models": ["base", "guide"]}
    settings = {"models": {"base": "small", "guide": "large"}, "strategy": ladder, "provider": "fake", "traces": "off"}
    async with Orchestrator.from_config(settings, providers={"fake": FakeProvider(script)}) as orchestrator:
        try:
            await orchestrator.amany([f"What is {n} plus {n} ?" for n in range(1, 10)], concurrency=4)
        except BatchError as error:
            for number, result in enumerate(error.results, 1):
                print(number, result.text if isinstance(result, Answer) else type(result).__name__)


if __name__ == "__main__":
    asyncio.run(main())
