"""Matchers, found by name: they decide whether an answer is right, and whether two outputs are the same.

Either verdict is None if it is unknown: no accepted answer is known or readable, a judge's reply is unreadable, or an
expression took too long. An answer that cannot be read is wrong: False.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Annotated, Any, NamedTuple, NoReturn

from pydantic import Field, ValidationError

from cascade.chat import ChatRequest
from cascade.checks import did_you_mean
from cascade.errors import CascadeError, UsageError, quote
from cascade.registry import Registry, callable_alone, imported

TimeLimit = Annotated[float, Field(gt=0, le=3_600)]
"""Seconds that one comparison may take: at most an hour."""


class Matcher(ABC):
    """Decides whether an answer is one of the accepted ones, and whether two outputs of a request are the same."""

    @abstractmethod
    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether `answer` agrees with any of `gold`."""

    def matches_question(self, question: str, answer: str, gold: Sequence[str]) -> bool | None:  # noqa: ARG002 - most need no question
        """Return whether `answer` to `question` agrees with any of `gold`."""
        return self.matches(answer, gold)

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool | None:
        """Return whether two outputs, in the form of `chat.output_text`, are the same answer to the request.

        By default they are if their texts are equal, or if `output` is right with `other` as the accepted answer.
        """
        if output.strip() == other.strip():
            return True
        return self.matches_question("" if request is None else request.asked_text, output, (other,))


class KeyedMatcher(Matcher):
    """A matcher for which outputs are the same exactly if their keys are equal, so that sameness is transitive."""

    @abstractmethod
    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return a key that is equal exactly for outputs that are the same."""

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool:
        """Return whether two outputs are the same answer to the request."""
        return self.key(output, request) == self.key(other, request)


class FunctionMatcher(Matcher):
    """A user's own rule: a function `(answer, gold)`, with `gold` a tuple of texts, returns a bool, or None if unknown.

    Args:
        function: the function, or its name as "module.attribute"; the module is imported, which runs it.

    Raises:
        UsageError: there is no such function.

    >>> FunctionMatcher(lambda answer, gold: answer in gold).matches("a", ["a", "b"])
    True
    """

    def __init__(self, function: Callable[[str, tuple[str, ...]], Any] | str) -> None:
        rule: Any = function
        if not callable(function):
            module, _, attribute = str(function).replace(":", ".").rpartition(".")
            try:
                rule = imported(f"{module}:{attribute}")
            except ValueError as error:
                raise UsageError(f"function={function!r} {error}") from error
            if not callable(rule):
                raise UsageError(f"function={function!r} must be a function")
        self._rule, self._name = rule, getattr(rule, "__qualname__", type(rule).__name__)

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return the function's verdict.

        Raises:
            UsageError: the function raised, or did not return a truth value; the message names the function.
        """
        try:
            verdict = self._rule(answer, accepted(gold))
        except CascadeError:
            raise
        except Exception as error:
            shown = f"{type(error).__name__}: {quote(error)}"
            raise UsageError(f"The matching function {self._name} failed: {shown}. Fix it and run again.") from error
        plain = verdict.item() if getattr(verdict, "shape", None) == () else verdict  # numpy's scalars are not bools
        if plain is None or isinstance(plain, bool):
            return plain
        raise UsageError(
            f"The matching function {self._name} returned {quote(repr(verdict))}. It must return True, False, or None "
            "if the truth is unknown."
        )


def accepted(gold: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted answers. A single text is one accepted answer.

    >>> accepted("Vienna"), accepted(["Vienna", "Wien"])
    (('Vienna',), ('Vienna', 'Wien'))
    """
    return (gold,) if isinstance(gold, str) else tuple(gold)


MATCHERS: Registry[Callable[..., Any]] = Registry(
    "matcher",
    "cascade.matchers",
    {
        "text": "cascade.matching.text:TextMatcher",
        "label": "cascade.matching.text:LabelMatcher",
        "exact": "cascade.matching.number:ExactMatcher",
        "number": "cascade.matching.number:NumberMatcher",
        "math": "cascade.matching.maths:MathMatcher",
        "json": "cascade.matching.structured:JsonMatcher",
        "tool_calls": "cascade.matching.structured:ToolCallsMatcher",
        "code": "cascade.matching.code:CodeMatcher",
        "judge": "cascade.matching.judge:JudgeMatcher",
        "function": f"{__name__}:FunctionMatcher",
        "request": f"{__name__}:RequestMatcher",
    },
    callable_alone,
)


def get_matcher(spec: str, **options: Any) -> Matcher:
    """Return the matcher that a spec names.

    A spec is a name, or a name with options after a colon: "number:rel=1e-3,abs=0.5". The first option needs no name:
    "function:my_module.is_right". Options that are not texts, such as the judge's `ask`, are given as keywords.

    Raises:
        UsageError: the matcher or an option does not exist, or an installed matcher cannot be loaded; the message
            lists every problem.
        MissingExtraError: the matcher's package is not installed; the message has the pip command.

    >>> get_matcher("number:rel=1e-2").matches("about 4.98 km", ["5 km"])
    True
    """
    name, _, written = (text.strip() for text in spec.partition(":"))
    factory = MATCHERS.find(name)
    if factory is None:
        raise UsageError(f"There is no matcher {name!r}{did_you_mean(name, MATCHERS.names)}")
    settings = [[text.strip() for text in setting.split("=", 1)] for setting in written.split(",") if setting.strip()]
    pairs = [(setting[0], setting[1]) for setting in settings if len(setting) == 2]
    keys = [*(key for key, _ in pairs), *options]
    problems = [f"{key} is given twice" for key in dict.fromkeys(keys) if keys.count(key) > 1]
    try:
        matcher = factory(*(setting[0] for setting in settings if len(setting) == 1), **{**options, **dict(pairs)})
    except CascadeError:
        raise
    except ValidationError as error:
        problems += [
            f"{'.'.join(map(str, at['loc']))}: {at['msg'].removeprefix('Value error, ')}" for at in error.errors()
        ]
    except Exception as error:
        shown = f"{type(error).__name__}: {quote(error)}"
        raise UsageError(f"The matcher {name!r} cannot be made: {shown}. Check its options or its package.") from error
    if problems:
        raise UsageError("\n  - ".join([f"The matcher {spec!r} cannot be made:", *problems]))
    if not isinstance(matcher, Matcher) and not callable(getattr(matcher, "matches", None)):
        raise UsageError(
            f"{name!r} is not a matcher: its factory must return an object "
            f"with a method matches(answer, gold), but returned {type(matcher).__name__}."
        )
    return _whole(matcher)


def _whole(matcher: Any) -> Matcher:
    """Return an object as a matcher, even if its only method is `matches`."""
    return matcher if isinstance(matcher, Matcher) else FunctionMatcher(matcher.matches)


# --- the matcher of a request ---


class RequestMatcher(KeyedMatcher):
    """Compares each output by its own request's matcher (`default_for`), for logs with several kinds of requests.

    >>> RequestMatcher().same("The Danube.", "danube")
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> NoReturn:  # noqa: ARG002 - the base class's
        """Raise UsageError: without the request there is no rule to compare an answer with an accepted one."""
        raise UsageError(
            f"{REQUEST} compares two outputs of one request; for accepted answers choose the matcher by their form: "
            "tool_calls, json, label or another."
        )

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return a key that is equal for outputs that are the same."""
        return default_for(request).matcher.key(output, request)


REQUEST = "request"
"""The name of `RequestMatcher`."""
_FREE_TEXT = (
    "Outputs are compared word by word. Long free text hardly ever has the same words: choose the comparator "
    "judge or function."
)
_WORDS = (
    "Answers without a tool call count as the same, however they are worded. Where the words matter, choose "
    "tool_calls:words=compared."
)


class DefaultMatcher(NamedTuple):
    """The matcher of a request: its name, the object, and a warning or None."""

    name: str
    matcher: KeyedMatcher
    warning: str | None = None


def default_for(request: ChatRequest | None) -> DefaultMatcher:
    """Return the matcher of a request: with tools `tool_calls`, an enum `label`, a schema `json`, else `text`.

    >>> default_for(ChatRequest([{"role": "user", "content": "Hi"}], {"response_format": {"type": "json_object"}})).name
    'json'
    """
    if request is None:
        return _default("text")
    if request.tools:
        return _default("tool_calls", None if request.wants_json else _WORDS)
    if request.labels:
        return _default("label")
    return _default("json") if request.wants_json else _default("text", _FREE_TEXT)


@cache
def _default(name: str, warning: str | None = None) -> DefaultMatcher:
    matcher: Any = get_matcher(name)
    return DefaultMatcher(name, matcher, warning)


def default_of(requests: Iterable[ChatRequest | None]) -> tuple[str, tuple[str, ...]]:
    """Return the name of the matcher for requests, and warnings: the one that all choose, else `REQUEST`.

    >>> tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    >>> default_of([None, ChatRequest([{"role": "user", "content": "Hi"}], tools)])[0]
    'request'
    """
    forms = {(form.name, form.warning) for form in map(default_for, requests)} or {(default_for(None).name, None)}
    names = {name for name, _ in forms}
    return names.pop() if len(names) == 1 else REQUEST, tuple(sorted(text for _, text in forms if text is not None))


_REMEMBERED_CHARS = 20_000
"""Keys of longer answers are not cached, to limit the memory."""


def answer_key(answer: str, request: ChatRequest | None) -> str:
    """Return a key that is equal for answers that are the same, for live use, logs, votes and audits alike.

    The answer to a chat request is its message in the form of `chat.output_text`.

    >>> answer_key("The Danube.", None)
    'danube'
    """
    return _remembered_key(answer, request) if len(answer) <= _REMEMBERED_CHARS else _key(answer, request)


def _key(answer: str, request: ChatRequest | None) -> str:
    return default_for(request).matcher.key(answer, request)


_remembered_key = lru_cache(maxsize=1_024)(_key)


def agreement(answer: str, earlier: Sequence[str], request: ChatRequest | None = None) -> float | None:
    """Return the share of earlier answers that are the same answer; None if there are none."""
    if not earlier:
        return None
    key = answer_key(answer, request)
    return sum(answer_key(other, request) == key for other in earlier) / len(earlier)


# --- the truth of rows ---


def judge_rows(
    rows: Iterable[Mapping[str, Any]], matcher: Matcher, *, overwrite: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows with `correct` filled in from `answer` and `gold`, and nothing else changed.

    One row is in memory at a time. A row without an answer or an accepted answer is not changed: its truth stays the
    same, unknown if it was unknown.

    Args:
        rows: episode rows, in the form of `cascade.logs.schema`.
        matcher: the rule, from `get_matcher`, or any object with a method `matches(answer, gold)`.
        overwrite: also judge rows whose `correct` is already known.

    Raises:
        UsageError: an answer is not a text, or accepted answers are not a list of texts; the message names the row.

    >>> log = [{"answer": "The Danube.", "gold": ["Danube"], "correct": None}]
    >>> list(judge_rows(log, get_matcher("exact")))
    [{'answer': 'The Danube.', 'gold': ['Danube'], 'correct': True}]
    """
    rule = _whole(matcher)
    for number, row in enumerate(rows, 1):
        answer, gold, question = row.get("answer"), row.get("gold"), row.get("question")
        listed = [] if gold is None else gold if isinstance(gold, list | tuple) else [gold]
        wrong = None
        if not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in listed):
            wrong = 'gold must be a list of texts. Write it as ["…"].'
        judged = answer is not None and len(listed) > 0 and (overwrite or row.get("correct") is None)
        if judged and not isinstance(answer, str):
            wrong = f"the answer is not a text but {type(answer).__name__}."
        if wrong is not None:
            name = "" if row.get("episode_id") is None else f" ({quote(str(row['episode_id']))})"
            raise UsageError(f"row {number}{name}: {wrong}")
        if judged:
            golds = tuple([str(text) for text in listed])  # data sets have 42 as well as "42"
            asked_text = question if isinstance(question, str) else ""
            yield {**row, "correct": rule.matches_question(asked_text, str(answer), golds)}
        else:
            yield dict(row)
