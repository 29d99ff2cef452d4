"""A chat request as an application sends it, and the message that answers it.

A `ChatRequest` is sent unchanged to the model that answers: cascade adds no prompt of its own. Its form is that of
OpenAI's chat completions, which most servers and client libraries use.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

from cascade.errors import UsageError
from cascade.text import encode_sorted

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ENVELOPE = frozenset({"model", "stream", "stream_options", "n"})
"""Fields of a body that select the model or the transport; they are not part of the request."""


@runtime_checkable
class Dumps(Protocol):
    """A pydantic model, such as the `ChatCompletionMessage` that OpenAI's client returns."""

    def model_dump(self, *, mode: str = ..., exclude_unset: bool = ...) -> dict[str, Any]:
        """Return it as a dict."""
        ...


@dataclass(frozen=True)
class ChatRequest:
    """One chat request.

    Args:
        messages: the conversation, each message a dict in OpenAI's form: a role, and content that is a text or a list
            of parts (text, image, audio, file), tool calls or a tool's result. A message object that OpenAI's client
            returned is also accepted, as that client accepts it.
        options: every other field of the request's body, such as `tools`, `tool_choice`, `response_format`,
            `temperature`, `stop` or `max_tokens`. `providers.fields` says which of them a model is sent.
        group: the request's group (a conversation, a user); a split of a log never divides a group.
        segment: the request's segment (a tenant, a task), which may have a certificate of its own.

    Raises:
        UsageError: the request cannot be sent; the message lists every problem.

    >>> request = ChatRequest([{"role": "user", "content": "Hi"}], {"temperature": 0.2})
    >>> request.body()
    {'messages': [{'role': 'user', 'content': 'Hi'}], 'temperature': 0.2}
    """

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    segment: str | None = None
    canonical: str = field(init=False, repr=False, compare=False)
    """The request as canonical JSON, from which ids and digests are made."""
    asked_text: str = field(init=False, repr=False, compare=False)
    """The text of the last user message, or of the last message if there is no user message."""

    def __post_init__(self) -> None:
        """Check and copy the request, so that later changes to the caller's objects have no effect."""
        dumped = _dumped(self.messages)
        noticed = iter(_problems(dumped, self.options))
        problems = list(islice(noticed, _MOST_PROBLEMS))
        if rest := sum(1 for _ in noticed):
            problems.append(f"and {rest:,} more")
        if not problems:
            try:
                messages, options = _copied([list(dumped), dict(self.options)])
                canonical = _encode_strictly({"messages": messages, **options})
                if not _is_text(canonical):
                    messages, options = json.loads(json.dumps([messages, options]))  # joins pairs of surrogates
                    canonical = _encode_strictly({"messages": messages, **options})
                    problems += () if _is_text(canonical) else (_HALVED,)
            except (TypeError, ValueError, RecursionError) as error:
                problems.append(f"it cannot be written as JSON: {error}")
        if problems:
            raise UsageError("\n  - ".join(["The chat request cannot be sent:", *problems]))
        object.__setattr__(self, "messages", tuple(messages))
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "canonical", canonical)
        users = (message for message in reversed(messages) if message.get("role") == "user")
        object.__setattr__(self, "asked_text", text_of(next(users, messages[-1]).get("content")))

    def __hash__(self) -> int:
        """Hash the canonical JSON; the fields themselves are dicts."""
        return hash((self.canonical, self.group, self.segment))

    @classmethod
    def from_openai(
        cls, body: Mapping[str, Any], *, group: str | None = None, segment: str | None = None
    ) -> ChatRequest:
        """Make a request from the body of a chat completion request.

        `model`, `stream` and `stream_options` are left out: the cascade decides which model answers.

        Raises:
            UsageError: the body is not valid, or requests more than one answer (`n`).
        """
        if "messages" not in body:
            raise UsageError("A chat request is a dict with messages, as OpenAI's chat completions take it.")
        if body.get("n") not in (None, 1):
            raise UsageError(f"n is {body['n']!r}: a cascade serves one answer. Leave n out.")
        options = {name: value for name, value in body.items() if name != "messages" and name not in _ENVELOPE}
        return cls(body["messages"], options, group, segment)

    def body(self) -> dict[str, Any]:
        """Return the request's body without a model."""
        return {"messages": list(self.messages), **self.options}

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that are offered."""
        return tuple(self.options.get("tools") or ())

    @property
    def user(self) -> str | None:
        """The application's name of the user; None if the request names none.

        >>> ChatRequest([{"role": "user", "content": "Hi"}], {"user": "ann"}).user
        'ann'
        """
        named = self.options.get("user")
        return named if isinstance(named, str) else None

    @property
    def max_tokens(self) -> int | None:
        """The reply limit that the application has set; None without one.

        If both limits are set, it is the higher one, since servers differ in which they read, and caps rely on it.
        """
        return max(self.options.get("max_completion_tokens") or 0, self.options.get("max_tokens") or 0) or None

    @property
    def top_logprobs(self) -> int | None:
        """The number of alternatives per token that the application requests, at least 1; None without log-probs.

        >>> ChatRequest([{"role": "user", "content": "Hi"}], {"logprobs": True, "top_logprobs": 5}).top_logprobs
        5
        """
        if not self.options.get("logprobs"):
            return None
        count = self.options.get("top_logprobs")
        return max(1, count if isinstance(count, int) else 1)

    @property
    def json_schema(self) -> Mapping[str, Any] | None:
        """The JSON schema that the reply must follow; None without one."""
        reply_format = fields_in(self.options.get("response_format"))
        if reply_format.get("type") != "json_schema":
            return None
        schema = fields_in(reply_format.get("json_schema")).get("schema")
        return schema if isinstance(schema, Mapping) else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the reply may have: the `enum` of its schema, or of the schema's only property.

        >>> ChatRequest([{"role": "user", "content": "?"}], {"response_format": {"enum": ["A", "B"]}}).labels
        ('A', 'B')
        """
        schema = self.json_schema or fields_in(self.options.get("response_format"))
        inside = fields_in(schema.get("properties"))
        if len(inside) == 1:
            (schema,) = map(fields_in, inside.values())
        listed = schema.get("enum")
        return tuple([str(label) for label in listed]) if isinstance(listed, list) and listed else ()

    @property
    def wants_json(self) -> bool:
        """Whether the reply must be JSON, with or without a schema."""
        return fields_in(self.options.get("response_format")).get("type") in ("json_schema", "json_object")


_MOST_PROBLEMS = 20
"""The most problems that are listed: more usually have one cause, and a request may have a million of them."""
_HALVED = (
    "it holds half of a character (a lone surrogate, like \\ud83d), which cannot be sent: cut texts between characters"
)


def _is_text(canonical: str) -> bool:
    """Return whether a text can be sent as UTF-8, that is, has no surrogates."""
    if canonical.isascii():
        return True
    try:
        canonical.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dumped(messages: Any) -> Any:
    """Return messages with each pydantic model as the dict that OpenAI's client would send."""
    if not isinstance(messages, list | tuple) or all(type(turn) is dict for turn in messages):
        return messages
    return [turn.model_dump(mode="json", exclude_unset=True) if isinstance(turn, Dumps) else turn for turn in messages]


_encode_strictly = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _copied(value: Any) -> Any:
    """Return a copy of a JSON value; plain dicts and lists are copied by `marshal`, in a fifth of the time."""
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302 - what was dumped here
    except ValueError:
        return json.loads(json.dumps(value, allow_nan=False))


Chat: TypeAlias = ChatRequest | Mapping[str, Any] | Sequence[Mapping[str, Any] | Dumps]
"""The forms of a chat request that callers may pass: a `ChatRequest`, a body in OpenAI's form, or messages."""


def chat_request(chat: Chat, fields: Mapping[str, Any]) -> ChatRequest:
    """Return a caller's request as a `ChatRequest`.

    Args:
        chat: a request, a body, or messages.
        fields: further fields of the body, and `group` and `segment`.

    Raises:
        UsageError: it is not a chat request, a field is given twice, or it may not be sent.
    """
    hangs_with = {name: value for name, value in fields.items() if name in {"group", "segment"}}
    options = {name: value for name, value in fields.items() if name not in hangs_with and not _is_left_out(value)}
    if isinstance(chat, ChatRequest):
        if options:
            raise UsageError(f"A ChatRequest has its own fields; {', '.join(sorted(options))} cannot be added to it.")
        return sendable(replace(chat, **hangs_with) if hangs_with else chat)
    body = chat if isinstance(chat, Mapping) else {"messages": chat}
    twice = sorted(options.keys() & body.keys())
    if twice:
        raise UsageError(f"Given twice, in the body and by name: {', '.join(twice)}.")
    return sendable(ChatRequest.from_openai({**body, **options}, **hangs_with))


def sendable(request: ChatRequest) -> ChatRequest:
    """Return a request, or raise UsageError if it may not be sent. One in a log may have been, so is not checked."""
    if (problem := budget_problem(request.options)) is not None:
        raise UsageError(f"The chat request cannot be sent:\n  - {problem}")
    return request


def budget_problem(fields: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the thinking budget among the fields of a request.

    >>> budget_problem({"thinking": {"budget_tokens": "5e4"}}), budget_problem({"thinking": {"budget_tokens": 50_000}})
    ('thinking.budget_tokens must be a whole number, not 5e4', None)
    """
    budget = fields_in(fields.get("thinking")).get("budget_tokens")
    if budget is None or type(budget) is int:
        return None
    return f"thinking.budget_tokens must be a whole number, not {str(budget)[:40]}"  # caps can bound only this type


def _is_left_out(value: object) -> bool:
    """Return whether a value is one of OpenAI's marks for an omitted argument: `openai.omit`, `openai.NOT_GIVEN`."""
    kind = type(value)
    return kind.__name__ in {"Omit", "NotGiven"} and kind.__module__.partition(".")[0] == "openai"


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, or the text parts of a list of parts, one after the other.

    >>> text_of([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "…"}}])
    'What is this?'
    """
    return content if isinstance(content, str) else "".join([text for text in part_texts(content) if text is not None])


def part_texts(content: object) -> list[str | None]:
    """Return the text of each part of a message's content; "" for a refusal, None for a part that is not text."""
    if isinstance(content, str):
        return [content]
    return [_part_text(block) for block in content] if isinstance(content, list | tuple) else []


def _part_text(block: object) -> str | None:
    if isinstance(block, str):
        return block
    fields = fields_in(block)
    text = fields.get("text")
    if isinstance(text, str):
        return text
    return "" if isinstance(fields.get("refusal"), str) else None


def fields_in(value: object) -> Mapping[str, Any]:
    """Return the fields of an object; none of anything else."""
    return value if type(value) is dict or (value is not None and isinstance(value, Mapping)) else {}


def objects_in(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a list, such as the parts of a message's content; none of anything else."""
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list | tuple) else []


def has_image(content: object) -> bool:
    """Return whether a message's content has an image among its parts."""
    return any("image" in str(block.get("type")) for block in objects_in(content))


def spoken_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message: that of its content, or else the transcript of its audio.

    >>> spoken_text({"content": None, "audio": {"id": "a", "data": "UklGRg==", "transcript": "Hello."}})
    'Hello.'
    """
    spoken = fields_in(message.get("audio")).get("transcript")
    return text_of(message.get("content")) or (spoken if isinstance(spoken, str) else "")


ENDINGS: Mapping[str, str] = {
    word: ours
    for ours, words in {
        "stop": "stop eos eos_token end_turn stop_sequence complete completed",
        "length": "length max_tokens model_length max_output_tokens model_context_window_exceeded pause_turn",
        "content_filter": "content_filter content_filtered refusal safety recitation blocklist prohibited_content spii",
        "tool_calls": "tool_calls tool_use",
        "function_call": "function_call",
    }.items()
    for word in words.split()
}
"""OpenAI's finish reasons, by the lower-case words that servers use; any other word may mean a failure."""


def refusal_of(message: Mapping[str, Any]) -> str:
    """Return the refusal in a message, from its field or from a part of its content; "" without one.

    >>> refusal_of({"content": [{"type": "refusal", "refusal": "I cannot help with that."}]})
    'I cannot help with that.'
    """
    content = message.get("content")
    sources = (message, *objects_in(content)) if isinstance(content, list | tuple) else (message,)
    return "".join([source["refusal"] for source in sources if isinstance(source.get("refusal"), str)])


def tool_call(index: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call in OpenAI's form, from its name and its arguments."""
    arguments = call.get("arguments", call.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": call["name"], "arguments": text}}


def calls_of(message: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the tool calls of a message, including an old-style function call."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return tuple(call for call in calls if isinstance(call, Mapping))
    old = message.get("function_call")
    return ({"type": "function", "function": old},) if old is not None and isinstance(old, Mapping) else ()


def output_text(message: Mapping[str, Any]) -> str:
    """Return a message as one text, for logs and comparators.

    For a message that calls tools, the JSON list of its calls with names and parsed arguments; otherwise its text.

    >>> output_text({"content": None, "tool_calls": [{"function": {"name": "add", "arguments": '{"b": 2, "a": 1}'}}]})
    '[{"arguments":{"a":1,"b":2},"name":"add"}]'
    """
    calls = calls_of(message)
    if not calls:
        return spoken_text(message)
    try:
        return encode_sorted(
            [{"name": function_of(call).get("name"), "arguments": arguments_of(call)} for call in calls]
        )
    except RecursionError:  # arguments that can be parsed but not serialised stay as they are
        return encode_sorted([function_of(call) for call in calls])


def function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the function of a tool call: its name and its arguments."""
    return fields_in(call.get("function"))


def parsed(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def arguments_of(call: Mapping[str, Any]) -> Any:
    """Return a call's parsed arguments, or their text if they are not JSON; missing arguments are an empty object."""
    arguments = function_of(call).get("arguments")
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return parsed(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments


def _problems(messages: object, options: object) -> Iterable[str]:
    """Yield the problems that prevent a request from being sent."""
    if not isinstance(messages, list | tuple) or not messages:
        yield "messages must be a list of at least one message"
    else:
        for number, message in enumerate(messages):
            yield from _message_problems(f"messages[{number}]", message)
    if not isinstance(options, Mapping):
        yield f"options must be a dict of the body's other fields, not {type(options).__name__}"
        return
    for name in sorted({"messages", "n", "stream"} & options.keys()):
        yield f"options must not hold {name}"
    yield from _tool_problems(options)
    if isinstance(options.get("response_format"), type):
        yield (
            'response_format is a class; give {"type": "json_schema", "json_schema": {"name": "reply", "schema": '
            "CLASS.model_json_schema()}}, and read answer.parsed"
        )
        return
    for name in ("response_format", "audio", "logit_bias"):
        if not (options.get(name) is None or isinstance(options[name], Mapping)):
            yield f"{name} must be a dict, not {type(options[name]).__name__}"
    yield from _number_problems(options)


def _number_problems(options: Mapping[str, Any]) -> Iterable[str]:
    for name in ("max_tokens", "max_completion_tokens"):
        limit = options.get(name)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < _LARGEST):
            yield f"{name} must be a whole number of at least 1, not {str(limit)[:40]}"
    for name in sorted(name for name, value in options.items() if isinstance(value, int) and value.bit_length() > 64):
        yield f"{name} must be a number of at most 64 bits"


def _tool_problems(options: Mapping[str, Any]) -> Iterable[str]:
    tools, functions = options.get("tools"), options.get("functions")
    if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)):
        yield "tools must be a list of dicts"
        return
    for number, tool in enumerate(tools or ()):
        if "function" in tool and not isinstance(tool["function"], Mapping):
            yield f"tools[{number}].function must be a dict"
    if functions is not None and not isinstance(functions, list | tuple):
        yield "functions must be a list of dicts"


_LARGEST = 2**53
"""Whole numbers up to here are exact in every server's JSON."""
_PART_FIELDS = {"image_url": "image_url", "file": "file", "input_audio": "input_audio"}
"""Types of parts, with the field that holds their content."""


def _part_problems(path: str, block: object) -> Iterable[str]:
    """Yield what is wrong with a part: a client library would fail on it, as if its server were down."""
    if isinstance(block, str):
        return
    if not isinstance(block, Mapping):
        yield f"{path} must be a dict with a type, not {type(block).__name__}"
        return
    name = _PART_FIELDS.get(str(block.get("type")))
    if name is None:
        return
    content = block.get(name)
    if not (isinstance(content, Mapping) or (name == "image_url" and isinstance(content, str))):
        yield f"{path}.{name} must be a dict"
    elif name == "image_url" and isinstance(content, Mapping) and not isinstance(content.get("url"), str):
        yield f"{path}.image_url.url must be a text"


def _message_problems(path: str, message: object) -> Iterable[str]:
    if type(message) is not dict and not isinstance(message, Mapping):  # the fast check comes first
        yield f"{path} must be a dict with a role and content, not {type(message).__name__}"
        return
    if message.get("role") not in ROLES:
        yield f"{path}.role must be one of {', '.join(ROLES)}, not {message.get('role')!r}"
    content = message.get("content")
    if not (content is None or isinstance(content, str | list | tuple)):
        yield f"{path}.content must be a text, a list of parts or null, not {type(content).__name__}"
    for number, block in enumerate(content if isinstance(content, list | tuple) else ()):
        yield from _part_problems(f"{path}.content[{number}]", block)
    if content is None and message.get("role") in ("system", "developer", "user", "tool"):
        yield f"{path}.content is missing"
