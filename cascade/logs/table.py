"""The flat table: one row per question, and columns for each of two or more models. It needs no mapping.

Its columns are `question`, `NAME_answer`, `NAME_correct`, `NAME_cost_usd`, `NAME_logprob` and others: `presets.ENDS`.
No other name is guessed: for a missing or ambiguous column, the user is shown an option to paste.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from cascade.logs.calls import OF_EPISODE
from cascade.logs.duck import name_literal, text_literal
from cascade.logs.presets import ANY_END, ENDS, LOGPROB, OF_CENTS, SIGNALS, Mapped

OF_QUESTION = {name: name for name in (*OF_EPISODE, "episode_id", "created_at")} | {"id": "episode_id"}
"""The columns about the question, and what each is read as."""
_COLUMN = re.compile(rf"(?P<model>.+?)[_.](?P<what>{ANY_END})")
_IN_WORDS = {
    "question": "the question",
    "gold": "the accepted answer",
    "episode_id": "the question's id",
    "user": "who asked",
    "answer": "its answer",
    "correct": "whether it is right",
    "cost_usd": "its cost in USD",
    "cost_nano_usd": "its cost in nano-USD",
    "latency_s": "its seconds",
    "latency_ms": "its milliseconds",
    "model": "the model",
    LOGPROB: "the mean log-prob of its reply's tokens, a signal",
}
_USUAL = {
    "question": "prompt query input messages requestmessages $ai_input question_text user_prompt instruction problem",
    "model": "llm model_name engine deployment model_id",
    "answer": "final_answer response output completion reply prediction generation responsemessages $ai_output_choices",
    "correct": "is_correct right ok passed",
    "cost_usd": "cost price usd spend total_cost estimated_cost",
    "gold": "expected reference target answer_key ground_truth correct_answer label",
}
"""Common names of columns, which are suggested in an option to paste. None of them is read without it."""
_USUAL_WORDS = {word for words in _USUAL.values() for word in words.split()}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a flat table is read: the field of each column of the question and, by model, of each of its columns."""

    question: Mapping[str, str]
    models: Mapping[str, Mapping[str, str]]
    ignored: Mapping[str, str]

    def describe(self) -> list[str]:
        """Return a line for the question, for each model, and for the fields that are not read."""
        lines = [f"of the question: {_listed(self.question)}"]
        lines += [f"of the model {model}: {_listed(columns)}" for model, columns in self.models.items()]
        lines += [f"not read: {', '.join(name + line for name, line in self.ignored.items())}"] if self.ignored else []
        unjudged = [model for model, columns in self.models.items() if "correct" not in columns]
        if unjudged and "gold" in self.question:
            lines.append("which answers are right is decided by the accepted answer when the log is used (--matcher)")
        elif unjudged:
            lines.append(
                f"no column says which answers of {', '.join(unjudged)} are right, nor what the accepted answer is: "
                f"add --map {unjudged[0]}.correct=FIELD or --map gold=FIELD, or fit a promise of agreement"
            )
        return lines


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is {described(column)}" for column, name in columns.items())


def described(name: str) -> str:
    """Return what a column holds, in words."""
    return _IN_WORDS.get(name) or (f"the signal {name.removeprefix(SIGNALS)}" if name.startswith(SIGNALS) else name)


def layout(names: Sequence[str], mapped: Mapped) -> Layout | None:
    """Return the layout of a flat table with these fields; None if it is none: a flat table has two or more models.

    >>> layout(["question", "a_answer", "a_cost_usd", "b_answer"], Mapped({}, {})).models
    {'a': {'answer': 'a_answer', 'cost_usd': 'a_cost_usd'}, 'b': {'answer': 'b_answer'}}
    """
    claimed = {*mapped.columns.values(), *(path for columns in mapped.of_model.values() for path in columns.values())}
    question = {column: name for name, column in OF_QUESTION.items() if name in names and name not in claimed}
    question |= mapped.columns
    by_model: dict[str, dict[str, str]] = {}
    for name in names:
        match = None if name in claimed or name in question.values() else _COLUMN.fullmatch(name)
        if match is not None:
            by_model.setdefault(match["model"], {}).setdefault(ENDS[match["what"]], name)
    # small_is_correct is a column of the model small, not of a model small_is
    usual = {f"{model}{mark}{word}" for model in by_model for mark in "_." for word in _USUAL_WORDS} - claimed
    for model, columns in mapped.of_model.items():
        by_model[model] = {**by_model.get(model, {}), **columns}
    models = {
        model: columns
        for model, columns in by_model.items()
        if columns.keys() & {"answer", "correct"} and not usual & {*columns.values()}
    }
    if len(models) < 2 or mapped.columns.keys() & {"model", "answer"}:
        return None
    used = {*question.values(), *(name for columns in models.values() for name in columns.values())}
    heads = {path.split(".")[0] for path in used}
    ignored = {name: _line_for(name, models) for name in names if name not in used and name not in heads}
    return Layout(question, models, ignored)


def _line_for(name: str, models: Iterable[str]) -> str:
    """Return a hint for an unread field: the column that it may be, or the option that reads it as a model's signal."""
    model = next((model for model in models if name.startswith((f"{model}_", f"{model}."))), None)
    end = name if model is None else name[len(model) + 1 :]
    fields, of_model = (OF_QUESTION, "") if model is None else (ENDS, f"{model}.")
    usual = next(
        (column for column, names in _USUAL.items() if column in fields and end.casefold() in names.split()), None
    )
    if usual is not None:
        return f" ({described(usual)}? {_to_paste(of_model + usual, name)})"
    if OF_CENTS.search(name):
        return f" (hundredths? divide by 100, as {of_model}cost_usd)"
    if near := get_close_matches(end, fields, n=1, cutoff=0.8):
        return f"; did you mean {name.removesuffix(end)}{near[0]}?"
    return "" if model is None else f" (a signal? {_to_paste(f'{model}.signals.{end}', name)})"


def second_header(columns: Iterable[str]) -> dict[str, str]:
    """Return the reason to leave out a row whose cells are all names of columns, with SQL for that."""
    words = ", ".join(map(text_literal, {*OF_QUESTION, *ENDS, *_USUAL, *_USUAL_WORDS}))
    listed = ", ".join(map(name_literal, columns))
    return {"a second header": f"len(list_filter([{listed}], lambda cell: lower(cell) NOT IN ({words}))) = 0"}


def missing(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """Return the options to paste for the columns that a table of calls lacks, each with the field that may be it."""
    needed = {"question": {"episode_id", "question_id"}, "answer": {"text", "correct"}, "model": {"source", "step"}}
    lacking = [name for name, others in needed.items() if not columns.keys() & {name, *others}]
    useful = [*lacking, *(name for name in ("gold", "correct", "cost_usd") if lacking and name not in columns)]
    lines = {name: _suggested(name, names, {*columns.values()}) for name in useful}
    # A whole request has its tools and instructions; `input` beside `output` may be a mere question.
    lines["question"] = re.sub(r"(?i)((request|body)\w*)\.input$|\.messages$", r"\1", lines.get("question") or "")
    whole = (name.removesuffix(".choices") for name in names if name.endswith(".choices"))  # with its log-probs
    lines["answer"] = lines.get("answer") and next(whole, lines["answer"])
    listed = [_to_paste(name, path or "FIELD") for name, path in lines.items() if path or name in lacking]
    is_doubtful = "usd" not in (lines.get("cost_usd") or "usd").casefold()
    return [*listed, "(if the cost is in USD; if in cents, divide the column by 100)"] if is_doubtful else listed


def _to_paste(column: str, field: str) -> str:
    return f"--map {shlex.quote(f'{column}={field}')}"


def _suggested(column: str, names: Sequence[str], used: set[str]) -> str | None:
    ends = ["" if "token" in name.casefold() else name.rpartition(".")[2].casefold() for name in names]
    last = {
        end: name
        for end, name in zip(ends, names, strict=True)
        # otherwise each belongs to a model
        if name not in used and ("." not in name or ends.count(end) == 1 or name.startswith("request."))
    }
    near = get_close_matches(column, last, n=2, cutoff=0.7)  # score is not correct; two may belong to a model each
    names = (column, *_USUAL.get(column, "").split(), *(near if len(near) == 1 else ()))
    return next((last[usual] for usual in names if usual in last), None)
