"""The one table of signals: what each is called, its unit and range, and which strategy gives it.

`design/signals.md` agrees with it. It stands with the policies, which read signals; `strategies.signals`, which gives
them, hands it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

PAIR, LADDER, EXIT = "base_guide", "ladder", "exit"
"""The strategies, as a configuration calls them."""
_ALL = (PAIR, LADDER, EXIT)


@dataclass(frozen=True, slots=True)
class Signal:
    """One named number of a step.

    Attributes:
        unit: its unit, in words.
        low, high: the least and greatest value that it can have; None = no bound.
        strategies: which strategies give it; none for one that only imported logs have.
        tracked: whether its values at earlier steps are worth a feature of their own: it says how good an answer is.
    """

    unit: str
    low: float | None
    high: float | None
    strategies: tuple[str, ...] = ()
    tracked: bool = False


SIGNALS: Final[Mapping[str, Signal]] = MappingProxyType(
    {
        "p_yes": Signal("probability", 0.0, 1.0, (PAIR,), tracked=True),
        "answer_mean_logprob": Signal("nats per token, answer part", None, 0.0, _ALL, tracked=True),
        "reply_mean_logprob": Signal("nats per token, whole reply", None, 0.0, _ALL, tracked=True),
        "answer_min_logprob": Signal("nats, least likely token of the answer", None, 0.0, _ALL),
        "reply_min_logprob": Signal("nats, least likely token of the reply", None, 0.0, _ALL),
        "verdict_mass": Signal("probability of {Yes, No} together", 0.0, 1.0, (PAIR,)),
        "guide_agrees": Signal("1 the guide's answer is the base's, else 0", 0.0, 1.0, (PAIR,)),
        "agrees_with_earlier": Signal("share of earlier answers that are the same", 0.0, 1.0, _ALL),
        "decided_action": Signal("1 keep the base's answer, 2 the guide's, 3 go on", 1.0, 3.0, (PAIR,)),
        "says_exit": Signal("1 stop, 0 go on", 0.0, 1.0, (EXIT,)),
        "reply_tokens": Signal("tokens of the whole reply", 0.0, None, _ALL),
        "answer_chars": Signal("characters", 0.0, 2_000.0, (PAIR, LADDER)),
        "tool_calls": Signal("tool calls of the message", 0.0, None, (LADDER,)),
        "tools_offered": Signal("tools that the request offers", 0.0, None, (LADDER,)),
        "turns": Signal("messages of the user so far", 0.0, None, (LADDER,)),
        "request_chars": Signal("characters of the request as JSON", 0.0, None, (LADDER,)),
        "reasoning_chars": Signal("characters", 0.0, None, (PAIR,)),
        "self_check": Signal("a model's own P(correct)", 0.0, 1.0, tracked=True),
        "gate": Signal("1 a check was passed, else 0", 0.0, 1.0, tracked=True),
        "judge_share": Signal("share of judges that said yes", 0.0, 1.0, tracked=True),
        "answer_share": Signal("share of samples that gave this answer", 0.0, 1.0, tracked=True),
        "answer_token_entropy": Signal("nats", 0.0, None, tracked=True),
        "answer_softmax_entropy": Signal("nats", 0.0, None, tracked=True),
        "other_run_uncertainty": Signal("unknown", None, None, tracked=True),
    }
)
"""Every signal that the strategies and the importers give, the most telling first."""
_UNLISTED = Signal("unknown", None, None, tracked=True)
_ROLES = ("base_", "guide_")


def signal(name: str) -> Signal:
    """Return what a signal is. One that is in no table, as an imported log may have, has no known unit or range.

    In imported steps of two candidates "base_" or "guide_" stands before the name.

    >>> signal("p_yes").high, signal("guide_self_check").unit, signal("certainty").unit
    (1.0, "a model's own P(correct)", 'unknown')
    """
    return SIGNALS.get(role_free(name), _UNLISTED)


def role_free(name: str) -> str:
    """Return the listed name of a signal, without the role before it that imported steps of two candidates have.

    >>> role_free("base_self_check"), role_free("base_rate")
    ('self_check', 'base_rate')
    """
    for role in _ROLES:
        if name not in SIGNALS and name.removeprefix(role) in SIGNALS:
            return name.removeprefix(role)
    return name


def given_by(strategy: str) -> frozenset[str]:
    """Return the signals that a strategy gives.

    >>> "p_yes" in given_by("base_guide"), "p_yes" in given_by("ladder")
    (True, False)
    """
    return frozenset(name for name, listed in SIGNALS.items() if strategy in listed.strategies)
