"""A base-guide log read as a ladder, the base asked outright and then the guide; or as offers, call by call.

The base's first answer and the guide's own come from exactly the prompts, settings and log-probs that a ladder of the
two models uses (`strategies.ladder`), so these rows are those that the ladder would have logged. A policy that is
fitted and certified on them can serve such a ladder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cascade.episodes.schema import GUIDE_ONLY, chat_of, replay_of
from cascade.matching.same import agreement
from cascade.policies.signals import OF_MESSAGES

STEPS = 2
_SIGNALS = ("reply_tokens", "reply_mean_logprob", "reply_min_logprob", "answer_mean_logprob", "answer_min_logprob")
"""A ladder's signals of a reply, beside `agrees_with_earlier` (`policies.signals.logprob_signals`)."""


def ladder_dataset(name: str | None) -> str:
    """Return the name of a data set when it is read as a ladder.

    >>> ladder_dataset("demo"), ladder_dataset(None)
    ('demo-ladder', 'log-ladder')
    """
    return f"{name or 'log'}-ladder"


def as_ladder(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a base-guide log as the log of a ladder of its two models, of T = 2 steps.

    Step 1 is the base's reply of the first round, step 2 the guide's of the walk "guide only"; the guide's verdicts,
    later rounds and other walks are left out. A question on which the guide was not asked outright keeps one step of
    two. The data set keeps its name with "-ladder" appended. The guide's answers are held until the end.
    """
    earlier: dict[str, list[str]] = {}
    waiting: list[Mapping[str, Any]] = []
    for row in rows:
        if row["walk"] == GUIDE_ONLY:
            waiting.append(row)
        elif row["walk"] is None and row["step"] == 1 and row["source"] == "base":
            if row["candidate"] is not None:
                earlier[row["episode_id"]] = [row["answer"]]
            yield _rung(row, 1, [])
    for row in waiting:
        yield _rung(row, STEPS, earlier.get(row["episode_id"], []))


def _rung(row: Mapping[str, Any], step: int, earlier: list[str]) -> dict[str, Any]:
    """Return one model's reply as a ladder logs it: the model is its own role, and its answer has no verdict."""
    held = row["signals"] or {}
    of_request = sorted(OF_MESSAGES) if "message_faults" in held else ()  # rounds of questions have some of them, too
    signals = {name: held[name] for name in (*_SIGNALS, *of_request, "replay") if name in held}
    if row["candidate"] is not None:
        signals["agrees_with_earlier"] = agreement(row["answer"], earlier, chat_of(row))
    changed = {
        "walk": None,
        "step": step,
        "horizon": STEPS,
        "source": row["model"] or row["source"],
        "signals": signals,
    }
    return {**row, **changed, "dataset": ladder_dataset(row["dataset"]), "confidence": None, "kept": None}


# --- Call by call: the base's answer, the guide's verdict on it, the guide outright ---

OFFERS = ("base", "judge", "guide")
"""The names of a base-guide log's calls as offers: `base` answers, `judge` verifies, `guide` answers outright."""
_PURPOSES = ("answer", "verify", "outright")
_VERDICT = ("p_yes", "verdict_mass")


def as_offers(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a base-guide log as the log of three offers: the base's answer, the guide's verdict, the guide outright.

    Step 1 is the base's reply of the first round, step 2 the guide's verdict on it with its correction, step 3 the
    guide's reply of the walk "guide only", which reads neither. Later rounds are left out: a round without a verdict
    before it was never logged. The data set keeps its name with "-offers" appended. The guide's own answers are held
    until the end.
    """
    waiting: list[Mapping[str, Any]] = []
    for row in rows:
        if row["walk"] == GUIDE_ONLY:
            waiting.append(row)
        elif row["walk"] is None and row["step"] == 1:
            first = row["source"] == "base"
            yield _offer(row, 1 if first else 2, _SIGNALS if first else _VERDICT)
    for row in waiting:
        yield _offer(row, 3, _SIGNALS)


def _offer(row: Mapping[str, Any], step: int, told: Iterable[str]) -> dict[str, Any]:
    """Return a call as a list of offers logs it."""
    held = row["signals"] or {}
    changed = {
        "dataset": f"{row['dataset'] or 'log'}-offers",
        "walk": None,
        "step": step,
        "horizon": len(OFFERS),
        "parents": [1] if step == 2 else [],
        "source": OFFERS[step - 1],
        "candidate": None if row["candidate"] is None else 0,
        "confidence": row["confidence"] if step == 2 else None,
        "signals": {
            **{name: held[name] for name in told if name in held},
            "replay": {**replay_of(row), "purpose": _PURPOSES[step - 1]},
        },
        "kept": None,
    }
    return {**row, **changed}
