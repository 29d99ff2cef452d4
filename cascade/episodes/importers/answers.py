"""Logs with one answer a row, in which a base's and a guide's whole runs on a question stand one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cascade.episodes.importers.sources import Record, records
from cascade.episodes.importers.values import nano_usd, number, text, truth, whole
from cascade.episodes.lines import Dropped
from cascade.episodes.schema import COLUMNS, GUIDE_ONLY, SCHEMA_VERSION, TOLD

ANSWER_NAMES = frozenset({"question_id", "model", "role", "method", "correct"})
"""The columns by which these logs are known."""

_Run = Sequence[Record]


def rows_from_answers(path: Path, dropped: Dropped) -> Iterator[dict[str, Any]]:
    """Yield the rows of episodes: for each run of a base on a question a ladder of two steps, it and the guide's.

    A run is one answer, or several turns of one model by one method (then the method is part of its name); all its
    turns are calls of one step, and its last answer is the step's candidate. A run of turns that ended without an
    answer is wrong, as its source counts it. The rows of a question stand together; only they are held.

    Nothing here is a signal: a run ends when it is told that it was right, and feedback is given on wrong answers only,
    so that the number of turns and the verdicts on them say what no policy could know.
    """
    found = (record for record in records(path, dropped) if _is_whole(record, dropped))
    for _, group in itertools.groupby(found, key=_question):
        in_order = sorted(group, key=lambda record: (_run(record), whole(record.fields.get("round")) or 0))
        runs = [list(run) for _, run in itertools.groupby(in_order, key=_run)]
        guides = [run for run in runs if run[0].fields["role"] == "guide"]
        for base in runs:
            if base[0].fields["role"] == "base":
                yield from _episodes(base, guides, dropped)


def _is_whole(record: Record, dropped: Dropped) -> bool:
    missing = [name for name in ("question_id", "model", "role") if record.fields.get(name) is None]
    if missing:
        dropped.drop(f"no {' or '.join(missing)}", record.place)
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


def _episodes(base: _Run, guides: Sequence[_Run], dropped: Dropped) -> Iterator[dict[str, Any]]:
    if not guides:
        dropped.note("a question that no guide was asked: its episode has the base's step only", base[0].place)
    for guide in guides or (None,):
        pair = _name(base) + ("" if guide is None else f">{_name(guide)}")
        head = _head(base[0], pair)
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


def _head(record: Record, pair: str) -> dict[str, Any]:
    fields, (dataset, question, sample) = record.fields, _question(record)
    named = f"{dataset}/{pair}" if dataset else pair
    gold = text(fields.get("gold"))
    return dict.fromkeys(COLUMNS) | {
        "episode_id": f"{named}/{question}" + (f"#{sample}" if sample else ""),
        "dataset": named,
        "split": text(fields.get("split")),
        "group": text(fields.get("group_id")) or question,
        "segment": text(fields.get("segment")),
        "question": text(fields.get("question")),
        "gold": None if gold is None else [gold],
        "schema_version": SCHEMA_VERSION,
    }


def _steps(run: _Run, step: int) -> Iterator[dict[str, Any]]:
    """Yield a run's calls as those of one step; the last one holds its answer."""
    answered = [record.fields for record in run if record.fields.get("answer") is not None]
    last = answered[-1] if answered else run[-1].fields
    correct = truth(last.get("correct"))
    if correct is None and run[-1].fields.get("round") is not None:
        correct = False
    for record in run:
        fields = record.fields
        ends = record is run[-1]
        cost = nano_usd(fields.get("cost_usd"))
        answer = text(last.get("answer"))
        yield {
            "step": step,
            "candidate": 0 if ends else None,
            "source": text(fields.get("model")),
            "model": text(fields.get("model")),
            "answer": answer if ends else None,
            "text": text(fields.get("text")),
            "correct": correct if ends else None,
            "signals": {"replay": {TOLD: True}} if len(run) > 1 else None,
            "input_tokens": whole(fields.get("input_tokens")),
            "output_tokens": whole(fields.get("output_tokens")),
            "cost_nano_usd": cost,
            "cost_source": "no price" if cost is None else text(fields.get("cost_source")) or "the log",
            "latency_ms": number(fields.get("latency_ms")),
        }
