"""The one table of signals: what each is called, its unit and range. Which strategy gives it, the strategy declares.

`design/signals.md` agrees with both (`strategies.config.StrategyConfig.signals`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Signal:
    """One named number of a step.

    Attributes:
        unit: its unit, in words.
        low, high: the least and greatest value that it can have; None = no bound.
        tracked: whether its values at earlier steps are worth a feature of their own: it says how good an answer is.
    """

    unit: str
    low: float | None
    high: float | None
    tracked: bool = False


SIGNALS: Final[Mapping[str, Signal]] = MappingProxyType(
    {
        "p_yes": Signal("probability", 0.0, 1.0, tracked=True),
        "answer_mean_logprob": Signal("nats per token, answer part", None, 0.0, tracked=True),
        "reply_mean_logprob": Signal("nats per token, whole reply", None, 0.0, tracked=True),
        "answer_min_logprob": Signal("nats, least likely token of the answer", None, 0.0),
        "reply_min_logprob": Signal("nats, least likely token of the reply", None, 0.0),
        "verdict_mass": Signal("probability of {Yes, No} together", 0.0, 1.0),
        "guide_agrees": Signal("1 the guide's answer is the base's, else 0", 0.0, 1.0),
        "agrees_with_earlier": Signal("share of earlier answers that are the same", 0.0, 1.0),
        "decided_action": Signal("1 keep the base's answer, 2 the guide's, 3 go on", 1.0, 3.0),
        "says_exit": Signal("1 stop, 0 go on", 0.0, 1.0),
        "reply_tokens": Signal("tokens of the whole reply", 0.0, None),
        "answer_chars": Signal("characters", 0.0, 2_000.0),
        "tool_calls": Signal("tool calls of the message", 0.0, None),
        "arguments": Signal("values in the arguments of the message's calls", 0.0, None),
        "arguments_quoted": Signal("share of these values that the messages of the request spell", 0.0, 1.0),
        "message_faults": Signal("faults of the message", 0.0, None),
        "model_skipped": Signal("1 the model lacks what the request needs", 0.0, 1.0),
        "reasoning_chars": Signal("characters", 0.0, None),
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
OF_ANSWERS = frozenset(
    {
        "reply_tokens",
        "reply_mean_logprob",
        "reply_min_logprob",
        "answer_mean_logprob",
        "answer_min_logprob",
        "agrees_with_earlier",
    }
)
"""What a step shows of any model's answer (`policies.reply_signals`), and whether it agrees with the earlier ones."""
OF_MESSAGES = frozenset(
    {"answer_chars", "tool_calls", "arguments", "arguments_quoted", "message_faults", "model_skipped"}
)
"""What the message of a chat request shows besides (`strategies.form`)."""
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
