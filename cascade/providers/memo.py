"""A provider that makes each call once: an identical request is answered from memory.

It serves comparisons of methods on the same questions, in which many calls are the same. The answer includes its
usage, so each way is charged as if it had made the call itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cascade.logs.schema import request_digest
from cascade.providers.base import Payload, Provider
from cascade.types import Request


@dataclass(slots=True)
class Memo:
    """Repeats the answer to an identical call (`schema.request_digest`); else asks `inner`.

    A failed call is made again. Answers are kept until `close`, which also closes `inner`. Two tasks that send the
    same call at the same time may both ask; the first answer is kept.
    """

    inner: Provider
    _answers: dict[str, Payload] = field(default_factory=dict, repr=False)

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request, from memory if an identical one was sent before."""
        key = request_digest(request)
        if key not in self._answers:
            self._answers.setdefault(key, await self.inner.complete(request, timeout_s))
        return self._answers[key]

    async def close(self) -> None:
        """Forget the answers and close the provider."""
        self._answers.clear()
        await self.inner.close()
