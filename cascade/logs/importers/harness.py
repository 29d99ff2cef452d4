"""Samples of EleutherAI's evaluation harness (lm-eval): a file for each model, a line for each question.

With `--log_samples` the harness writes `MODEL/samples_TASK_DATE.jsonl`. It logs no costs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.errors import UsageError
from cascade.logs.importers.calls import LoggedCall, checked_columns, checked_roles, episodes, mapped
from cascade.logs.importers.sources import Record, records
from cascade.logs.importers.values import number, text, truth
from cascade.logs.schema import Dropped

_QUESTIONS = ("question", "query", "problem", "goal", "prompt", "input", "text", "sentence")
"""The fields of a task's document that may have the question; without them it is the model's prompt."""
_TASK = re.compile(r"samples_(?P<task>.+?)(?:_\d{4}-\d\d-\d\dT[\d\-.]+)?\.jsonl(?:\.gz)?")


def rows_from_harness(
    sources: Sequence[Path | str],
    dropped: Dropped | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ladders: a question that all models answered is an episode, a model is a step.

    The answer to a question with options is the option with the highest log-likelihood, and the entropy of the options'
    probabilities is the signal `choice_entropy`. Whether an answer is right is the first metric of the line that is 0
    or 1. All samples are held in memory. The files are in the order of the models' steps, those of the cheapest model
    first. `roles` says which model is the "base" and which the "guide"; without it each is a step of a ladder.
    `columns` takes further columns from fields of a line: `{"correct": "acc_norm", "segment": "doc.subject"}`.

    Raises:
        UsageError: the files do not have two models or more.
    """
    counted, fields, parts = Dropped() if dropped is None else dropped, checked_columns(columns), checked_roles(roles)
    paths = [Path(one) for one in sources]
    made_by = _models(paths)
    models = list(dict.fromkeys(model for model, _ in made_by))
    if len(models) < 2:
        raise UsageError(
            "Samples of the evaluation harness are read for two models or more together: give the files of each, the "
            "cheapest model's first, as in small/samples_arc.jsonl large/samples_arc.jsonl."
        )
    found: dict[str, dict[str, LoggedCall]] = {}
    for path, (model, task) in zip(paths, made_by, strict=True):
        for record in records(path, counted):
            key = f"{task}{task and '/'}{record.fields.get('doc_id')}"
            if model in found.setdefault(key, {}):
                counted.drop("the same answer under another filter, or answered again", record.place)
                continue
            made = {"segment": task or None, **_columns(record), **mapped(record.fields, fields, record.place, counted)}
            step = models.index(model) + 1
            place = {"step": step, "candidate": 0, "source": model, "horizon": len(models)} if not parts else {}
            found[key][model] = LoggedCall(
                record.place, None, key, None, {"model": model, **place, **made}, (model,), of_question=True
            )
    yield from episodes(_whole(found, models, counted), parts, counted, dataset or paths[0].name.split(".")[0])


def _whole(
    found: Mapping[str, Mapping[str, LoggedCall]], models: Sequence[str], dropped: Dropped
) -> Iterator[LoggedCall]:
    for calls in found.values():
        if len(calls) < len(models):
            dropped.drop("a question that not all models answered", next(iter(calls.values())).place, len(calls))
            continue
        yield from (calls[model] for model in models)


def _models(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the model and the task of each file: the folder's name, or what differs between names in one folder.

    >>> _models([Path("a/samples_arc_2026-01-02T03-04-05.6.jsonl"), Path("b/samples_arc.jsonl")])
    [('a', 'arc'), ('b', 'arc')]
    >>> _models([Path("arc_small.jsonl"), Path("arc_large.jsonl")])
    [('small', ''), ('large', '')]
    """
    folders = [path.resolve().parent for path in paths]
    if len({*folders}) > 1:
        tasks = [_TASK.fullmatch(path.name) for path in paths]
        return [(one.name, "" if at is None else at["task"]) for one, at in zip(folders, tasks, strict=True)]
    words = [path.name.split(".jsonl")[0].split("_") for path in paths]
    same = len(list(itertools.takewhile(lambda at: len({*at}) == 1, zip(*(one[:-1] for one in words), strict=False))))
    return [("_".join(one[same:]), "") for one in words]


def _columns(record: Record) -> dict[str, Any]:
    fields = record.fields
    options = [_argument(one) for one in _listed(fields.get("arguments"))]
    asked = fields.get("doc")
    document = asked if isinstance(asked, Mapping) else {}
    question = next((text(document[name]) for name in _QUESTIONS if isinstance(document.get(name), str)), None)
    made: dict[str, Any] = {"question": question or (options[0][0] if options else None), "correct": _right(fields)}
    scored = _scores(fields, len(options))
    replies = _listed(fields.get("filtered_resps"))
    if scored is None:
        made["answer"] = text(replies[0]) if replies else None
        return made
    at, entropy = max(range(len(scored)), key=scored.__getitem__), _entropy(scored)
    made |= {"answer": (options[at][1] or str(at)).strip(), "signals": {"choice_entropy": entropy}}
    gold = text(fields.get("target")) or ""
    if gold.isdecimal() and int(gold) < len(options):
        made["gold"] = [(options[int(gold)][1] or gold).strip()]
    return made


def _listed(value: Any) -> list[Any]:
    """Return a list, or the values of an object, as newer versions write the arguments."""
    return list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []


def _argument(value: Any) -> tuple[str | None, str | None]:
    """Return the prompt of a request to the model, and the option that it scores."""
    prompt, *more = [*_listed(value), None]
    return text(prompt), text(more[0]) if more else None


def _scores(fields: Mapping[str, Any], options: int) -> list[float] | None:
    """Return the log-likelihood of each option; None if the model wrote its answer."""
    found = [number(_listed(one)[0]) if _listed(one) else None for one in _listed(fields.get("filtered_resps"))]
    known = [one for one in found if one is not None]
    return known if options > 1 and len(known) == len(found) == options else None


def _entropy(scores: Sequence[float]) -> float:
    weights = [math.exp(one - max(scores)) for one in scores]
    return -sum(one / sum(weights) * math.log(one / sum(weights)) for one in weights if one > 0)


def _right(fields: Mapping[str, Any]) -> bool | None:
    """Return the first metric that is right or wrong."""
    said = (truth(fields.get(name)) for name in _listed(fields.get("metrics")) if isinstance(name, str))
    return next((one for one in said if one is not None), None)
