"""Additions to a request that a model refuses: they are left out for a while, and then tried again.

Some models do not accept log-probs, a temperature, or a limit under its older name, and answer 400. The error costs
nothing and names the parameter, so the same request is sent once more without it.
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
"""The names of a parameter in errors. A limit has to stay, so the error must name the one to send instead."""
assert _NAMED.keys() == REFUSABLE.keys()  # noqa: S101 - one word for one thing


def refused(request: Request, error: ProviderError) -> frozenset[str]:
    """Return the additions to a request that the model refuses, according to the error.

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
    """The refused additions of each model. After a pause one request tries again; each refusal doubles the pause.

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
        """Return the additions to leave out of a request to a model now."""
        if not self._known:
            return frozenset()
        now_s, found = self._clock(), set()
        for name in REFUSABLE:
            until_s, pause_s = self._known.get((model, name), (None, 0.0))
            if until_s is None:
                continue
            if now_s < until_s:
                found.add(name)
            else:  # this request tries it; others leave it out until there is an answer
                self._known[model, name] = (now_s + pause_s, pause_s)
        return frozenset(found)

    def learn(self, model: str, names: Iterable[str]) -> None:
        """Record the parameters that a model refused."""
        for name in names:
            _, before_s = self._known.get((model, name), (0.0, FIRST_PAUSE_S / 2))
            pause_s = min(LONGEST_PAUSE_S, 2 * before_s)
            self._known[model, name] = (self._clock() + pause_s, pause_s)

    def took(self, model: str, without: Iterable[str]) -> None:
        """Note that a model answered a request that lacked only these: it accepts the others."""
        if self._known:
            for name in REFUSABLE.keys() - set(without):
                self._known.pop((model, name), None)
