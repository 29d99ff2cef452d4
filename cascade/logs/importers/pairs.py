"""Logs of model pairs, a row for each question and round: the base's answer and the guide's side by side.

There are four kinds of such logs:

* one round of two models: a ladder of two steps, the base, then the guide;
* an escalation ladder (round t is the t-th base model, the guide is in every row): a ladder of k + 1 steps;
* several rounds of both (each tries again): a step of two candidates a round;
* one answer a row: whole runs of a base and a guide on the same question, a ladder of two steps.

If the guide was asked outright, its answer is also logged as the fixed walk "guide only", at its own cost.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from cascade.errors import UsageError
from cascade.logs.importers.calls import note_unread
from cascade.logs.importers.sources import ANSWER_NAMES, PAIR_NAMES, Record, records
from cascade.logs.importers.values import nano_usd, number, text, truth, whole
from cascade.logs.schema import CARRIED_OVER, COLUMNS, GUIDE_ONLY, SCHEMA_VERSION, TOLD, Dropped

_NUMBERS = ("cost_usd", "input_tokens", "output_tokens", "latency_ms")
_READ = {f"{prefix}{name}": name for prefix in ("", "base_", "guide_") for name in _NUMBERS}
_READ |= {"base_uncertainty_cost_usd": "cost_usd", "base_correct": "correct", "guide_correct": "correct"}


def rows_from_pairs(source: Path | str, dropped: Dropped | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of episodes, row by row of the log, without holding the log in memory.

    `dataset` becomes "data set/pair". `group` is `group_id`, or else `question_id`. A replicate is a separate episode
    in the same group. `correct` comes from the log. Costs are the log's, in nano-USD, half to even; the cost of
    measuring the base's uncertainty (`base_uncertainty_cost_usd`) is added to the base's call. A model's certainty is a
    signal of its step (`signal_of`). The guide's agreement is known only after its answer, so it is a signal of the
    guide's step.

    Raises:
        UsageError: the file is not a log of pairs.
    """
    path, counted = Path(source), Dropped() if dropped is None else dropped
    for at, record in enumerate(records(path, counted)):
        if at == 0 and record.fields.keys() >= ANSWER_NAMES:
            yield from _rows_of_runs(path, counted)
            return
        missing = PAIR_NAMES - record.fields.keys()
        if missing:
            raise UsageError(f"{record.place} is not a row of a log of pairs: it has no {', '.join(sorted(missing))}.")
        yield from _rows(record, counted)


def _rows(record: Record, dropped: Dropped) -> Iterator[dict[str, Any]]:
    fields, place = record.fields, record.place
    turn, turns = whole(fields["round"]), whole(fields["T"])
    if not turn or not turns or fields["question_id"] is None:
        dropped.drop("no question_id, round or T", place)
        return
    note_unread(fields, _READ, place, dropped)
    if fields.get("question") is None:
        dropped.note("question is null", place)
    head = _head_of_pair(fields)
    if _is_ladder(fields) or turns == 1:
        horizon = turns + 1
        yield head | _answer(fields, "base", turn, 0) | {"horizon": horizon, "signals": _certainty(fields, "base", "")}
        if turn == turns:
            made = _answer(fields, "guide", horizon, 0)
            signals = _certainty(fields, "guide", "") | _agreement(fields)
            yield head | made | {"horizon": horizon, "signals": signals}
            yield _guide_alone(fields, head)
        return
    signals = _certainty(fields, "base", "base_") | _certainty(fields, "guide", "guide_") | _agreement(fields)
    for candidate, role in enumerate(("base", "guide")):
        made = _answer(fields, role, turn, candidate)
        yield head | made | {"horizon": turns, "signals": signals, "source": role}
    if turn == 1:  # the runs are independent: the guide's first answer is its outright answer
        yield _guide_alone(fields, head)


def _guide_alone(fields: Mapping[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """Return the guide's answer as the walk of the guide alone."""
    alone = {"walk": GUIDE_ONLY, "horizon": 1, "kept": True, "signals": _certainty(fields, "guide", "")}
    return head | _answer(fields, "guide", 1, 0) | alone


def _is_ladder(fields: Mapping[str, Any]) -> bool:
    return "," in str(fields["pair"]).partition(">")[0] or "ladder" in str(fields.get("round_kind"))


def _head_of_pair(fields: Mapping[str, Any]) -> dict[str, Any]:
    dataset = "/".join([str(fields[name]) for name in ("dataset", "pair") if fields.get(name) is not None])
    return _head(fields, dataset, str(fields["question_id"]), whole(fields.get("rep")))


def _answer(fields: Mapping[str, Any], role: str, step: int, candidate: int) -> dict[str, Any]:
    """Return one model's call. Its answer is unknown if the log has neither the answer nor whether it was right."""
    call = _call(fields, f"{role}_")
    measured = nano_usd(fields.get("base_uncertainty_cost_usd")) if role == "base" else None
    if call["cost_nano_usd"] is not None and measured is not None:
        call["cost_nano_usd"] += measured
    if call["cost_nano_usd"] == 0 and call["input_tokens"] == 0:
        # A run that has ended repeats its last answer in later rounds, at no cost and without tokens.
        call["cost_source"] = CARRIED_OVER
    return call | {
        "step": step,
        "candidate": candidate,
        "source": call["model"] or role,
        "answer": text(fields.get(f"{role}_answer")),
        "correct": truth(fields[f"{role}_correct"]),
    }


# --- both forms ---


def _head(fields: Mapping[str, Any], dataset: str, question: str, run: int | None) -> dict[str, Any]:
    """Return the columns that are equal in all rows of an episode; `run` numbers the runs of a question from 0."""
    gold = text(fields.get("gold"))
    return dict.fromkeys(COLUMNS) | {
        "episode_id": f"{dataset}/{question}" + (f"#{run}" if run else ""),
        "dataset": dataset,
        "split": text(fields.get("split")),
        "group": text(fields.get("group_id")) or question,
        "segment": text(fields.get("segment")),
        "question": text(fields.get("question")),
        "gold": None if gold is None else [gold],
        "schema_version": SCHEMA_VERSION,
    }


def _call(fields: Mapping[str, Any], prefix: str = "", source: str = "the log") -> dict[str, Any]:
    """Return the columns of a call whose fields begin with a prefix; `source` is the source of its cost."""
    cost = nano_usd(fields.get(f"{prefix}cost_usd"))
    return {
        "model": text(fields.get(f"{prefix}model")),
        "input_tokens": whole(fields.get(f"{prefix}input_tokens")),
        "output_tokens": whole(fields.get(f"{prefix}output_tokens")),
        "cost_nano_usd": cost,
        "cost_source": "no price" if cost is None else source,
        "latency_ms": number(fields.get(f"{prefix}latency_ms")),
    }


# --- one answer a row: the runs of a base and of a guide on a question are consecutive ---

_Run = Sequence[Record]


def _rows_of_runs(path: Path, dropped: Dropped) -> Iterator[dict[str, Any]]:
    """Yield the rows of episodes: for each run of a base on a question a ladder of two steps, it and the guide's.

    A run is one answer, or several turns of one model by one method (then the method is part of its name); all its
    turns are calls of one step, and its last answer is the step's candidate. A run of turns that ended without an
    answer is wrong, as in its source. The rows of a question are consecutive; only they are held in memory.

    These rows have no signals. A run ends when it is told that it was right, and only wrong answers get
    feedback. So the number of turns and their verdicts reveal whether an answer was right. A live policy cannot know
    that.
    """
    found = (record for record in records(path, dropped) if _is_whole(record, dropped))
    for _, group in itertools.groupby(found, key=_question):
        in_order = sorted(group, key=lambda record: (_run(record), whole(record.fields.get("round")) or 0))
        runs = [list(run) for _, run in itertools.groupby(in_order, key=_run)]
        guides = [run for run in runs if run[0].fields["role"] == "guide"]
        for base in runs:
            if base[0].fields["role"] == "base":
                yield from _of_runs(base, guides, dropped)


def _is_whole(record: Record, dropped: Dropped) -> bool:
    missing = [name for name in ("question_id", "model", "role") if record.fields.get(name) is None]
    if missing:
        dropped.drop(f"no {' or '.join(missing)}", record.place)
    else:
        note_unread(record.fields, _READ, record.place, dropped)
    return not missing


def _question(record: Record) -> tuple[str, str, int]:
    fields = record.fields
    return str(fields.get("dataset") or ""), str(fields["question_id"]), whole(fields.get("sample")) or 0


def _run(record: Record) -> tuple[str, str, str]:
    fields = record.fields
    return str(fields["role"]), str(fields["model"]), str(fields.get("method"))


def _name(run: _Run) -> str:
    fields = run[0].fields
    return str(fields["model"]) if fields.get("round") is None else f"{fields['model']} {fields.get('method')}"


def _of_runs(base: _Run, guides: Sequence[_Run], dropped: Dropped) -> Iterator[dict[str, Any]]:
    if not guides:
        dropped.note("a question without a guide's answer: its episode has only the base's step", base[0].place)
    for guide in guides or (None,):
        pair = _name(base) + ("" if guide is None else f">{_name(guide)}")
        head = _head_of_run(base[0], pair)
        if head["question"] is None:
            dropped.note("question is null", base[0].place)
        for row in _steps(base, 1):
            yield head | row | {"horizon": 2}
        if guide is None:
            continue
        for row in _steps(guide, 2):
            yield head | row | {"horizon": 2}
        for row in _steps(guide, 1):
            kept = None if row["candidate"] is None else True
            yield head | row | {"horizon": 1, "walk": GUIDE_ONLY, "kept": kept}


def _head_of_run(record: Record, pair: str) -> dict[str, Any]:
    fields, (dataset, question, sample) = record.fields, _question(record)
    return _head(fields, f"{dataset}/{pair}" if dataset else pair, question, sample)


def _steps(run: _Run, step: int) -> Iterator[dict[str, Any]]:
    """Yield a run's calls as those of one step; the last one has its answer."""
    answered = [record.fields for record in run if record.fields.get("answer") is not None]
    last = answered[-1] if answered else run[-1].fields
    correct = truth(last.get("correct"))
    if correct is None and run[-1].fields.get("round") is not None:
        correct = False
    for record in run:
        ends = record is run[-1]
        source = text(record.fields.get("cost_source")) or "the log"
        yield _call(record.fields, source=source) | {
            "step": step,
            "candidate": 0 if ends else None,
            "source": text(record.fields.get("model")),
            "answer": text(last.get("answer")) if ends else None,
            "text": text(record.fields.get("text")),
            "correct": correct if ends else None,
            "signals": {"replay": {TOLD: True}} if len(run) > 1 else None,
        }


# --- signals ---


def _agreement(fields: Mapping[str, Any]) -> dict[str, float]:
    said = truth(fields.get("guide_verdict"))
    return {} if said is None else {"guide_agrees": float(said)}


def _certainty(fields: Mapping[str, Any], role: str, prefix: str) -> dict[str, float]:
    """Return a model's certainty as a signal; {} if the log does not have it."""
    value, kind = number(fields.get(f"{role}_uncertainty")), fields.get(f"{role}_uncertainty_kind")
    if value is None or kind is None:
        return {}
    name, found = signal_of(str(kind), value)
    return {prefix + name: found}


_KINDS: tuple[tuple[re.Pattern[str], str, Callable[[float], float]], ...] = (
    (re.compile("neg_mean_token_logprob"), "reply_mean_logprob", lambda u: -u + 0.0),
    (re.compile("neg_log_p_self_verified"), "self_check", lambda u: exp(-u)),
    (re.compile("gate score"), "gate", lambda u: 1.0 - u),
    (re.compile("share of yes votes"), "judge_share", lambda u: 1.0 - u),
    (re.compile("share of this answer"), "answer_share", lambda u: 1.0 - u),
    (re.compile("min token log-prob"), "answer_min_logprob", lambda u: -u + 0.0),
    (re.compile("another run"), "other_run_uncertainty", lambda u: u),
    (re.compile("softmax over"), "answer_softmax_entropy", lambda u: u),
    (re.compile("entropy of the next-token"), "answer_token_entropy", lambda u: u),
)
_NO_NAME = re.compile(r"[^a-z0-9]+")


def signal_of(kind: str, uncertainty: float) -> tuple[str, float]:
    """Return the name and value of the signal that an uncertainty of some kind is.

    The sign of kinds that measure how good an answer is gets reversed, so that more is better: the mean and least
    log-prob (nats), the P(correct) of a self-check, the score of a gate of tests, a judge's share of yes votes, the
    share of samples that gave this answer. Others keep their value under a name made of their kind's first words.

    >>> signal_of("neg_mean_token_logprob", 0.25), signal_of("Length of the reply", 12.0)
    (('reply_mean_logprob', -0.25), ('length_of_the_reply', 12.0))
    """
    for pattern, name, turned in _KINDS:
        if pattern.search(kind):
            return name, turned(uncertainty)
    words = _NO_NAME.sub("_", kind.lower()).strip("_").split("_")
    return "_".join(words[:5]) or "uncertainty", uncertainty
