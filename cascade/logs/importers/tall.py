"""Recognise the columns of a table of calls, a row for each call of a model, and order its models.

Such a table has a column with the model's name. Where each model answers a question once, the models are the steps of
a ladder in the order of their mean costs, whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cascade.logs.importers.calls import LoggedCall, field_of
from cascade.logs.importers.chat import request_in
from cascade.logs.importers.sources import Record
from cascade.logs.importers.values import snake, text, truth
from cascade.logs.importers.wide import (
    ANSWER,
    CORRECT,
    COST,
    OF_MODEL,
    OF_QUESTION,
    by_mean_cost,
    cost_in,
    folded,
    in_words,
)
from cascade.logs.schema import Dropped

_QUESTION_IDS = ("question_id", "qid", "example_id", "prompt_id", "task_id")


def _usage(*counts: str) -> tuple[str, ...]:
    return tuple([f"{place}usage.{count}" for place in ("", "response.") for count in counts])


_CALLS: Mapping[str, tuple[str, ...]] = {
    "model": (
        *("model", "model_name", "model_id", "engine", "deployment"),
        *("request.model", "response.model", "request.body.model", "request_body.model", "body.model"),
    ),
    "question": (*OF_QUESTION["question"], "instruction", "user_input", "request.prompt", "request.input"),
    "question_id": _QUESTION_IDS,
    "gold": tuple([name for name in OF_QUESTION["gold"] if name != "label"]),
    "group": OF_QUESTION["group"],
    "segment": (*OF_QUESTION["segment"], "category", "topic"),
    ANSWER: (*OF_MODEL[ANSWER], "generation", "generated_text", "output_text", "model_output", "model_answer"),
    CORRECT: tuple([name for name in OF_MODEL[CORRECT] if name != "label"]),
    COST: (*OF_MODEL[COST], "total_cost", "cost_in_usd", "usd_cost", "spend"),
    "input_tokens": (*OF_MODEL["input_tokens"], *_usage("prompt_tokens", "input_tokens")),
    "output_tokens": (*OF_MODEL["output_tokens"], *_usage("completion_tokens", "output_tokens")),
    "latency_ms": (*OF_MODEL["latency_ms"], "duration_ms", "response_time_ms", "elapsed_ms"),
    "latency_s": (*OF_MODEL["latency_s"], "duration_s", "elapsed_s"),
    "signals.reply_mean_logprob": OF_MODEL["signals.reply_mean_logprob"],
}
"""cascade's columns, each with the names under which it is recognised; a name with dots is a path into objects."""
_BODIES = ("request", "request.body", "request_body", "body")
"""Fields that may hold the body of a chat request."""
_STEPPED = frozenset({"step", "candidate", "walk"})
_LABEL = "label"
_EITHER = {COST: "cost_nano_usd", "latency_s": "latency_ms", "question_id": "episode_id"}
"""Columns that are not needed where another one is given."""


class Columns(NamedTuple):
    """How the columns of a table of calls are read.

    Attributes:
        read: the field for each of cascade's columns, and for "question_id", which tells questions apart.
        problems: names that may mean the same thing, each with the mapping that settles it.
    """

    read: Mapping[str, str]
    problems: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return which field is read as what, in one line."""
        return f"read: {', '.join(f'{field} ({in_words(what)})' for what, field in self.read.items())}"


def recognised(names: Sequence[str], rows: Sequence[Record], given: Mapping[str, str]) -> Columns:
    """Return the columns that are recognised by their names; `given` are those that a mapping, or cascade's names, set.

    Without a column of the model nothing is recognised: its rows may not be calls.
    """
    spelled = {name: folded(snake(name)) for name in names if name not in given.values()}
    found, problems = dict[str, str](), list[str]()
    for what, spellings in _CALLS.items():
        if what in given or _EITHER.get(what) in given:
            continue
        there = [name for spelling in spellings for name, own in spelled.items() if own == spelling]
        if len(there) > 1:
            choices = " or ".join(f"--map {_target(what)}={name}" for name in there)
            problems.append(f"{' and '.join(there)} may each be {in_words(what)}: add {choices}")
        inside = (path for path in spellings if "." in path and _first(path, rows) is not None)
        field = there[0] if there else next(inside, None)
        if field is not None:
            found[what] = field
    body = next((path for path in _BODIES if request_in(_first(path, rows)) is not None), None)
    if body is not None and "question" not in given:
        found.setdefault("question", body)
    label = next((name for name, own in spelled.items() if own == _LABEL), None)
    if label is not None and not {"gold", CORRECT} & {*found, *given}:
        if all(truth(row.fields.get(label)) is not None for row in rows if row.fields.get(label) not in (None, "")):
            problems.append(
                f"{label} may be {in_words(CORRECT)}, or {in_words('gold')}: add --map {CORRECT}={label} or "
                f"--map gold={label}"
            )
        else:
            found["gold"] = label
    return Columns(found, tuple(problems)) if "model" in {*found, *given} else Columns({})


def _first(path: str, rows: Sequence[Record]) -> Any:
    return next((value for row in rows if (value := field_of(row.fields, path)) is not None), None)


def _target(what: str) -> str:
    return "episode_id" if what == "question_id" else what


def is_tall(names: Sequence[str], rows: Sequence[Record]) -> bool:
    """Whether a table is one of calls by its column names: it has a model, a question, and an answer or its truth.

    A table with steps is in cascade's own form.
    """
    if _STEPPED.intersection(names):
        return False
    found = recognised(names, rows, {}).read
    return {"model", "question"} <= found.keys() and bool({ANSWER, CORRECT} & found.keys())


class Steps(NamedTuple):
    """The models of a table of calls in their order as steps of a ladder, and the reason for it."""

    of_model: Mapping[str, int]
    order: str

    def describe(self) -> str:
        """Return the order of the models, in one line."""
        models = ", ".join(f"step {step}, {model}" for model, step in self.of_model.items())
        return f"{models}: in {self.order}; --role MODEL=base and --role MODEL=guide change that"

    def placed(self, calls: Iterable[LoggedCall], dropped: Dropped) -> Iterable[LoggedCall]:
        """Yield the calls with their steps; a call without a model has none and is left out."""
        for call in calls:
            step = self.of_model.get(call.columns.get("model") or "")
            if step is None:
                dropped.drop("a call that names no model, where the models are the steps", call.place)
                continue
            place = {"step": step, "candidate": 0, "source": call.columns["model"], "horizon": len(self.of_model)}
            yield call._replace(columns={**call.columns, **place}, at_s=float(step))


def steps_by_cost(columns: Mapping[str, str], rows: Iterable[Record]) -> Steps | None:
    """Return the models by rising mean cost over the rows that have one; None if a model has no cost, or there is one.

    Means are compared over different questions where not every model answered every question.
    """
    totals = dict[str, list[int]]()
    for row in rows:
        model = text(field_of(row.fields, columns["model"]))
        if model is None:
            continue
        of_model = totals.setdefault(model, [0, 0])
        cost = cost_in(row.fields, columns)
        if cost is not None:
            of_model[0], of_model[1] = of_model[0] + cost, of_model[1] + 1
    if len(totals) < 2 or not all(n for _, n in totals.values()):
        return None
    means = sorted((total / n, model) for model, (total, n) in totals.items())
    return Steps({model: step for step, (_, model) in enumerate(means, 1)}, by_mean_cost(means))
