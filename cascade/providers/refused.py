"""What cascade adds to a request and a model refuses: it is left out for a while, and then tried again.

Some models take no log-probs, no temperature, or a limit under its newer name alone, and answer 400 where they get one.
The error costs nothing and names the parameter, so the same request goes out once more without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from cascade.errors import ProviderError
from cascade.providers.base import REFUSABLE, added
from cascade.types import Request

FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 3_600.0
_STATUSES = frozenset({400, 403, 422})
"""OpenAI's o1 answered 403 to a request for log-probs."""
_NAMED = {
    "logprobs": re.compile(r"log[ _-]?prob", re.IGNORECASE),
    "temperature": re.compile(r"\btemperature\b", re.IGNORECASE),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "max_tokens": re.compile(r"\bmax_tokens\b.*\bmax_completion_tokens\b|\bmax_completion_tokens\b.*\bmax_tokens\b"),
}
"""How an error names a parameter. A limit has to stay, so the error must name the one to send in its place."""
assert _NAMED.keys() == REFUSABLE.keys()  # noqa: S101 - one word for one thing


def refused(request: Request, error: ProviderError) -> frozenset[str]:
    """Return what cascade added to a request and the error says that the model does not take.

    >>> from cascade.errors import from_status
    >>> from cascade.types import Question
    >>> asked = Request("o3", (), "o3", "answer", 1, Question("?"), 10, top_logprobs=1)
    >>> refused(asked, from_status(400, "Unsupported parameter: 'logprobs'"))
    frozenset({'logprobs'})
    """
    if error.status not in _STATUSES:
        return frozenset()
    ours = added(request).keys()
    return frozenset(name for name in REFUSABLE if name in ours and _NAMED[name].search(str(error)))


class Refusals:
    """What each model was seen to refuse. After a pause one request tries it again; each refusal doubles the pause.

    Args:
        clock: seconds, monotonic.

    >>> now = 0.0
    >>> known = Refusals(lambda: now)
    >>> known.learn("o3", ["logprobs"])
    >>> sorted(known.of("o3"))
    ['logprobs']
    >>> now = 60.0
    >>> sorted(known.of("o3")), sorted(known.of("o3"))  # the first tries it again
    ([], ['logprobs'])
    >>> known.took("o3", ())
    >>> sorted(known.of("o3"))
    []
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, float]] = {}  # until when, and the length of the pause

    def of(self, model: str) -> frozenset[str]:
        """Return what is left out of a request to a model now."""
        if not self._known:
            return frozenset()
        now_s, found = self._clock(), set()
        for name in REFUSABLE:
            until_s, pause_s = self._known.get((model, name), (None, 0.0))
            if until_s is None:
                continue
            if now_s < until_s:
                found.add(name)
            else:  # this request tries it; others go on without until it is answered
                self._known[model, name] = (now_s + pause_s, pause_s)
        return frozenset(found)

    def learn(self, model: str, names: Iterable[str]) -> None:
        """Note what a model refused."""
        for name in names:
            _, before_s = self._known.get((model, name), (0.0, FIRST_PAUSE_S / 2))
            pause_s = min(LONGEST_PAUSE_S, 2 * before_s)
            self._known[model, name] = (self._clock() + pause_s, pause_s)

    def took(self, model: str, without: Iterable[str]) -> None:
        """Note that a model answered a request that lacked these alone: it takes the others."""
        if self._known:
            for name in REFUSABLE.keys() - set(without):
                self._known.pop((model, name), None)
