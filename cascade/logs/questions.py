"""Question files for `cascade collect`. Every problem of a file is named before the first call is paid.

Formats, recognised by the content:

* cascade's own: lines of JSON, a JSON list, CSV or Parquet with `question` and, if known, `answer` or `answers`,
  `choices`, `context`, `id`, `group`, `segment`, `split`, `kind`;
* chat requests, one per line: whole bodies with `messages`, or OpenAI's batch format with `custom_id` and `body`; also
  with `gold`, `group`, `segment`, `split`.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from cascade.chat import chat_request
from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs.chats import gold_in, loaded
from cascade.logs.rowcheck import texts_in
from cascade.logs.schema import Dropped
from cascade.logs.source import Record, records
from cascade.types import Question

LETTERS = string.ascii_uppercase
_LISTED = 20
"""The most problems that an error lists."""
_IDS = ("id", "question_id", "_id", "qid")
_ANSWERS = ("answers", "answer", "gold")
_KINDS = ("kind", "type", "subject")
_GROUPS = ("group", "group_id")
_NO_BODY = frozenset(
    {"custom_id", "method", "url", "split", "segment", "category", *_IDS, *_ANSWERS, *_KINDS, *_GROUPS}
)
"""Fields of a line that do not belong to a chat request's body."""
_MAPPABLE = ("question", "answer", "choices", "context", "id", "group", "segment", "split", "kind", "messages")
_UNJUDGED = "a question without an accepted answer: the models' answers cannot be judged"
_MAYBE_NO_CALL = ' (if no tool is to be called, write "gold": [])'


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question to ask, with the answers that count as right.

    Attributes:
        id: the question's id; by default the start of its hash.
        question: the text, its choices as lines "A. …" below it, and the context.
        gold: the accepted answers; empty if the file has none. For a choice, its letter and its text.
        group: the unit that splits must not cut; by default the id.
        split: its part of the data.
        kind: its kind, in the file's own words.
        matcher: the matcher for its format ("label"); None if unknown.
    """

    id: str
    question: Question
    gold: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    kind: str | None = None
    matcher: str | None = None


def read_questions(
    path: Path | str, dropped: Dropped | None = None, mapped: Mapping[str, str] | None = None
) -> list[AskedQuestion]:
    """Return the questions of a file, in its order.

    Args:
        path: the file.
        dropped: counts questions without an accepted answer, which are asked although the answers cannot be judged.
        mapped: the file's field for fields of ours: {"question": "prompt", "answer": "meta.target"}.

    Raises:
        UsageError: the file has invalid questions; one message lists the first 20 problems with their locations.
        MissingExtraError: Parquet without duckdb.
    """
    path, unread = Path(path), Dropped()
    drafts = [_draft(record) for record in _renamed(path, list(records(path, unread)), mapped or {})]
    questions = [draft.question for draft in drafts if draft.question is not None]
    problems = [f"{draft.location}: {problem}" for draft in drafts for problem in draft.problems] + _doubles(drafts)
    if not drafts and not unread.count:
        problems = [f"{path.name}: there is no question in it"]
    if problems or unread.count:
        raise UsageError(_listed(path, unread.first + problems, unread.count + len(problems)))
    for draft in drafts:
        if dropped is not None and draft.question is not None and not draft.question.gold:
            dropped.note(_UNJUDGED + (_MAYBE_NO_CALL if draft.question.matcher == "tool_calls" else ""), draft.location)
    return _told_apart(questions)


def _renamed(path: Path, records: list[Record], mapped: Mapping[str, str]) -> list[Record]:
    """Return the records with the values of mapped fields under our names."""
    unknown = [f"{name}{did_you_mean(name, _MAPPABLE)}" for name in mapped if name not in _MAPPABLE]
    if unknown:
        raise UsageError(f"Nothing can be mapped to {'; nor to '.join(unknown)}.")
    values = [{name: _at(record.fields, field) for name, field in mapped.items()} for record in records]
    absent = [field for name, field in mapped.items() if all(fields[name] is None for fields in values)]
    if absent:
        names = list(dict.fromkeys(name for record in records for name in record.fields))
        problems = [f"it has no field {field}{did_you_mean(field, names)}" for field in absent]
        raise UsageError(f"{path} cannot be read with this mapping: {'; '.join(problems)}.")
    hidden = _ANSWERS if "answer" in mapped else ()
    visible = [{name: value for name, value in record.fields.items() if name not in hidden} for record in records]
    return [Record(record.location, {**own, **new}) for record, own, new in zip(records, visible, values, strict=True)]


def _at(fields: Any, path: str) -> Any:
    """Return the value of a field, or of a path of names separated by dots; None if there is none."""
    if path in fields:
        return fields[path]
    head, _, rest = path.partition(".")
    inside = loaded(fields.get(head))
    return _at(inside, rest) if rest and isinstance(inside, Mapping) else None


def text(value: Any) -> str | None:
    """Return an id, a name or a text; None if it is empty or another kind of value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value) or None


def _listed(path: Path, problems: Sequence[str], count: int) -> str:
    lines = "".join(f"\n  - {problem}" for problem in problems[:_LISTED])
    rest = f"\n  and {count - _LISTED:,} more" if count > _LISTED else ""
    named = "1 problem" if count == 1 else f"{count:,} problems"
    return f"{path} cannot be asked: {named}:{lines}{rest}"


class _Draft(NamedTuple):
    """A record's question, or its problems. `named`: the file itself gave the id."""

    location: str
    question: AskedQuestion | None
    named: bool
    problems: tuple[str, ...] = ()


def _doubles(drafts: Iterable[_Draft]) -> list[str]:
    """Return a problem for each id that the file gives to two questions."""
    first: dict[str, str] = {}
    problems = []
    for location, question, named, _ in drafts:
        if question is None or not named:
            continue
        if question.id in first:
            problems.append(f"{location}: the id {question.id} is that of {first[question.id]}")
        first.setdefault(question.id, location)
    return problems


def _told_apart(questions: Iterable[AskedQuestion]) -> list[AskedQuestion]:
    """Give the second of two equal questions another id in the same group: published sets have some twice."""
    counts: dict[str, int] = {}
    distinct = []
    for question in questions:
        counts[question.id] = counts.get(question.id, 0) + 1
        nth = counts[question.id]
        name = question.id if nth == 1 else f"{question.id}-{nth}"
        distinct.append(replace(question, id=name))
    return distinct


# --- records ---


def _chat_draft(record: Record) -> _Draft:
    """Return a chat request: a line of a batch file with the messages in its body, or a body alone."""
    fields = record.fields
    body = loaded(fields.get("body")) if "body" in fields else {k: v for k, v in fields.items() if k not in _NO_BODY}
    try:
        request = chat_request(body if isinstance(body, Mapping) else {}, {})
    except UsageError as error:
        return _Draft(record.location, None, named=False, problems=(str(error),))
    question = Question.of_chat(replace(request, segment=text(fields.get("segment"))))
    own_id = text(_first(fields, ("custom_id", *_IDS)))
    name = own_id or question_id(question.text, question.context)
    group, kind = text(_first(fields, _GROUPS)) or name, text(_first(fields, (*_KINDS, "category")))
    golds = gold_in(_first(fields, _ANSWERS), tools=bool(request.tools), kind=kind)
    matcher = "tool_calls" if request.tools else "json" if request.wants_json else None
    asked_question = AskedQuestion(name, question, golds, group, text(fields.get("split")), kind, matcher)
    return _Draft(record.location, asked_question, named=own_id is not None)


def _draft(record: Record) -> _Draft:
    if "body" in record.fields or "messages" in record.fields:
        return _chat_draft(record)
    fields, problems = record.fields, []

    def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except OddQuestionError as odd:
            problems.append(str(odd))
            return None

    stem = attempt(_text, fields)
    choices = attempt(_choices, fields) or ()
    context = attempt(_context, fields.get("context"))
    gold = attempt(_gold, _first(fields, _ANSWERS), choices)
    if problems:
        return _Draft(record.location, None, named=False, problems=tuple(problems))
    question = Question("\n".join([stem, *_lettered(choices)]), context, segment=text(fields.get("segment")))
    own_id = text(_first(fields, _IDS))
    name = own_id or question_id(question.text, question.context)
    group, kind = text(_first(fields, _GROUPS)) or name, text(_first(fields, _KINDS))
    matcher = "label" if choices else None
    asked_question = AskedQuestion(name, question, gold, group, text(fields.get("split")), kind, matcher)
    return _Draft(record.location, asked_question, named=own_id is not None)


class OddQuestionError(ValueError):
    """A field of a question is invalid; the message says which and why."""


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None and fields[name] != ""), None)


def _text(fields: Mapping[str, Any]) -> str:
    if "question" not in fields:
        raise OddQuestionError(f"it has no field question{did_you_mean('question', fields)}")
    question = text(fields["question"])
    if question is None or not question.strip():
        raise OddQuestionError("the question is empty")
    return question.strip()


def _context(context: Any) -> str | None:
    """Return a context as one text: from a text, or a list of paragraphs."""
    if context is None or isinstance(context, str):
        return context or None
    if not isinstance(context, list) or not all(isinstance(paragraph, str) for paragraph in context):
        raise OddQuestionError("the context is neither a text nor a list of texts")
    return "\n\n".join(map(str.strip, context)) or None


# --- choices ---


def _choices(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the choices: a list of texts, or its JSON in the cell of a table."""
    choices = [] if fields.get("choices") is None else loaded(fields["choices"])
    if not isinstance(choices, list) or any(text(choice) is None for choice in choices):
        raise OddQuestionError("the choices are not a list of texts")
    if len(choices) == 1 or len(choices) > len(LETTERS):
        raise OddQuestionError(f"there are {len(choices)} choices; from 2 to {len(LETTERS)} can be asked")
    return tuple([str(choice).strip() for choice in choices])


def _lettered(choices: Sequence[str]) -> list[str]:
    return [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]


def _gold(gold: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers; for a question with choices, the letter and the text of each right one."""
    listed = texts_in(gold) if isinstance(gold, str) else gold if isinstance(gold, list) else [gold]
    answers = [answer for answer in listed if answer is not None and answer != ""]
    if any(text(answer) is None for answer in answers):
        raise OddQuestionError("an answer is not a text")
    if not choices:
        return tuple(dict.fromkeys(str(answer).strip() for answer in answers))
    indices = [_choice_index(answer, choices) for answer in answers]
    return tuple(itertools.chain.from_iterable((LETTERS[index], choices[index]) for index in indices))


def _choice_index(answer: Any, choices: Sequence[str]) -> int:
    """Return the number of the choice that an answer names by its text, its letter, or its number from 0."""
    spelled = str(answer).strip()
    letters = LETTERS[: len(choices)]
    if isinstance(answer, str) and len(spelled) == 1 and spelled.upper() in letters:
        return letters.index(spelled.upper())
    if isinstance(answer, str) and spelled in choices:
        return choices.index(spelled)
    if spelled.isdecimal() and int(spelled) < len(choices):
        return int(spelled)
    raise OddQuestionError(f"the answer {spelled[:60]!r} is not among the {len(choices)} choices")
