"""Question files for `cascade collect`. All problems of a file are reported before any call is paid for.

Formats, recognised by the content:

* cascade's own: lines of JSON, a JSON list, CSV or Parquet with `question` and, if known, `answer` or `answers`,
  `choices`, `context`, `id`, `group`, `segment`, `split`;
* chat requests, one per line: whole bodies with `messages`, or OpenAI's batch format with `custom_id` and `body`; also
  with `gold`, `group`, `segment`, `split`.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cascade.chat import ChatRequest, chat_request
from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs.chats import gold_in, loaded
from cascade.logs.schema import Dropped
from cascade.logs.source import Record, records
from cascade.logs.values import texts_in
from cascade.text import counted
from cascade.types import Question

LETTERS = string.ascii_uppercase
_LISTED = 20
"""The most problems that an error lists."""
_IDS = ("id", "question_id", "_id", "qid")
_ANSWERS = ("answers", "answer", "gold")
_KINDS = ("kind", "type", "subject", "category")
_GROUPS = ("group", "group_id")
_NO_BODY = frozenset({"custom_id", "method", "url", "split", "segment", *_IDS, *_ANSWERS, *_KINDS, *_GROUPS})
"""Fields of a line that do not belong to a chat request's body."""
_MAPPABLE = ("question", "answer", "choices", "context", "id", "group", "segment", "split", "messages")
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
        matcher: the matcher for its format ("label"); None if unknown.
    """

    id: str
    question: Question
    gold: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    matcher: str | None = None


def matcher_of(chat: ChatRequest | None) -> str | None:
    """Return the matcher for the form of a chat request."""
    return None if chat is None else "tool_calls" if chat.tools else "json" if chat.wants_json else None


def read_questions(
    path: Path | str, dropped: Dropped | None = None, mapped: Mapping[str, str] | None = None
) -> list[AskedQuestion]:
    """Return the questions of a file, in its order.

    Args:
        path: the file.
        dropped: counts questions without an accepted answer, which are asked although the answers cannot be judged.
        mapped: the file's field for each of cascade's fields: {"question": "prompt", "answer": "meta.target"}.

    Raises:
        UsageError: the file has invalid questions; one message lists the first 20 problems with their locations.
        MissingExtraError: duckdb is not installed.
    """
    path, unread, questions = Path(path), Dropped(), list[AskedQuestion]()
    first, problems, counts = dict[str, str](), list[str](), Counter[str]()
    for location, fields in _renamed(path, list(records(path, unread)), mapped or {}):
        try:
            question = _chat_question(fields) if fields.keys() & {"body", "messages"} else _question(fields)
        except UsageError as problem:
            problems.append(f"{location}: {problem}")
            continue
        own_id = _own_id(fields)
        if own_id in first:
            problems.append(f"{location}: the id {own_id} is that of {first[own_id]}")
        elif own_id is not None:
            first[own_id] = location
        counts[question.id] += 1
        if counts[question.id] > 1:  # published sets repeat some questions: a repeat stays in the group
            question = replace(question, id=f"{question.id}-{counts[question.id]}")
        questions.append(question)
        if dropped is not None and not question.gold:
            dropped.note(_UNJUDGED + (_MAYBE_NO_CALL if question.matcher == "tool_calls" else ""), location)
    if not questions and not unread.count and not problems:
        problems = [f"{path.name}: there is no question in it"]
    if problems or unread.count:
        raise UsageError(_listed(path, unread.first + problems, unread.count + len(problems)))
    return questions


def _renamed(path: Path, records: list[Record], mapped: Mapping[str, str]) -> list[Record]:
    """Return the records with the values of mapped fields under cascade's names."""
    if unknown := [f"{name}{did_you_mean(name, _MAPPABLE)}" for name in mapped if name not in _MAPPABLE]:
        raise UsageError(f"Nothing can be mapped to {'; nor to '.join(unknown)}.")
    values = [{name: _at(record.fields, field) for name, field in mapped.items()} for record in records]
    if absent := [field for name, field in mapped.items() if all(fields[name] is None for fields in values)]:
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
    return f"{path} cannot be asked: {counted(count, 'problem')}:{lines}{rest}"


# --- records ---


def _own_id(fields: Mapping[str, Any]) -> str | None:
    return text(_first(fields, ("custom_id", *_IDS)))


def _of(fields: Mapping[str, Any], question: Question, gold: tuple[str, ...], matcher: str | None) -> AskedQuestion:
    name = _own_id(fields) or question_id(question.text, question.context)
    group = text(_first(fields, _GROUPS)) or name
    return AskedQuestion(name, question, gold, group, text(fields.get("split")), matcher)


def _chat_question(fields: Mapping[str, Any]) -> AskedQuestion:
    """Return the question of a chat request: a line of a batch file with the messages in its body, or a bare body."""
    body = loaded(fields.get("body")) if "body" in fields else {k: v for k, v in fields.items() if k not in _NO_BODY}
    request = chat_request(body if isinstance(body, Mapping) else {}, {})
    gold = gold_in(_first(fields, _ANSWERS), tools=bool(request.tools), kind=text(_first(fields, _KINDS)))
    question = Question.of_chat(replace(request, segment=text(fields.get("segment"))))
    return _of(fields, question, gold, matcher_of(request))


def _question(fields: Mapping[str, Any]) -> AskedQuestion:
    choices = _choices(fields)
    stem, context, gold = _text(fields), _context(fields.get("context")), _gold(_first(fields, _ANSWERS), choices)
    lettered = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    question = Question("\n".join([stem, *lettered]), context, segment=text(fields.get("segment")))
    return _of(fields, question, gold, "label" if choices else None)


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None and fields[name] != ""), None)


def _text(fields: Mapping[str, Any]) -> str:
    if "question" not in fields:
        raise UsageError(f"it has no field question{did_you_mean('question', fields)}")
    question = text(fields["question"])
    if question is None or not question.strip():
        raise UsageError("the question is empty")
    return question.strip()


def _context(context: Any) -> str | None:
    """Return a context as one text: from a text, or a list of paragraphs."""
    if context is None or isinstance(context, str):
        return context or None
    if not isinstance(context, list) or not all(isinstance(paragraph, str) for paragraph in context):
        raise UsageError("the context is neither a text nor a list of texts")
    return "\n\n".join(map(str.strip, context)) or None


# --- choices ---


def _choices(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the choices: a list of texts, or its JSON in the cell of a table."""
    choices = [] if fields.get("choices") is None else loaded(fields["choices"])
    if not isinstance(choices, list) or any(text(choice) is None for choice in choices):
        raise UsageError("the choices are not a list of texts")
    if len(choices) == 1 or len(choices) > len(LETTERS):
        raise UsageError(f"there are {len(choices)} choices; from 2 to {len(LETTERS)} can be asked")
    return tuple([str(choice).strip() for choice in choices])


def _gold(gold: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers; for a question with choices, the letter and the text of each right one."""
    listed = texts_in(gold) if isinstance(gold, str) else gold if isinstance(gold, list) else [gold]
    answers = [answer for answer in listed if answer is not None and answer != ""]
    if any(text(answer) is None for answer in answers):
        raise UsageError("an answer is not a text")
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
    raise UsageError(f"the answer {spelled[:60]!r} is not among the {len(choices)} choices")
