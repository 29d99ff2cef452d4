"""Read requests and replies of foreign logs as chat requests and messages, and derive a row's columns from them.

The forms read are those of OpenAI (chat, responses), Anthropic, Gemini, LangChain, OpenInference and OpenTelemetry. A
single user text answered by a text is stored as a question and its answer, not as a chat request, unless options, such
as a temperature, or a whole body are on record: a certificate covers what was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, calls_of, fields_in, objects_in, output_text, spoken_text, text_of
from cascade.chat_faults import message_faults
from cascade.checks import did_you_mean
from cascade.conformal.scope import DRAWN
from cascade.errors import UsageError
from cascade.logs.schema import CHAT, HOUR, WRITTEN, token_row
from cascade.policies.signals import logprob_signals, message_signals
from cascade.text import decoded
from cascade.types import Completion, Question, Token, Usage

NO_CALL = "[]"
"""The accepted answer of a request whose right answer has no tool call."""
_NO_CALL_KINDS = frozenset({"relevance", "irrelevance", "live_irrelevance"})
"""The Berkeley Function Calling Leaderboard's categories whose right answer has no tool call; their gold is null."""
_DECISIVE = ("tools", "functions", "response_format", "max_tokens", "max_completion_tokens", *DRAWN)
"""The options that affect the reply to a request, and so decide whether a certificate covers a live request."""
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_SPELLED = {"stop_sequences": "stop", "max_output_tokens": "max_tokens"}
"""Options that Anthropic, the AI SDK or OpenAI's responses spell differently from chat completions."""
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "system": "system", "tool": "tool"}
_MESSAGES = ("messages", "contents", "input", "prompt")
_SILENT: Mapping[str, Any] = {"role": "assistant", "content": None}
_SPOKEN = (None, "text")  # no set: a type may be a list, which has no hash
_CALLS = ("tool_call", "function_call", "tool_use")
_RESULTS = ("tool_call_response", "tool_result", "function_call_output")
# The role of whoever wrote an item of OpenAI's responses, by its type; messages name their role themselves.
_ITEMS = dict.fromkeys(_CALLS, "assistant") | dict.fromkeys(_RESULTS, "user")
_UNSEEN = (*_CALLS, *_RESULTS, "reasoning", "thinking", "redacted_thinking")
_TAGS = (
    dict.fromkeys(("functioncall", "tooluse"), "tool_call")
    | dict.fromkeys(("functionresponse", "toolresult"), "tool_result")
    | dict.fromkeys(("inlinedata", "filedata", "document", "video"), "media")
    | {"image": "image", "reasoningcontent": "reasoning", "messagecontent": "text"}
)
"""The type of a part, by the field in which Gemini, Bedrock and OpenInference put it; in lower case, without `_`."""
_FIELDS = (
    ("media_type", "mimeType", "mime_type", "mediaType", "format"),
    ("data", "content", "bytes", "image"),
    ("url", "fileUri", "file_uri", "uri", "image_url"),
    ("call_id", "id", "tool_use_id", "toolUseId", "toolCallId", "toolName", "name"),
)
"""The fields of a part that hold its content's type, the content, its URL, and the id of a tool call."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_MAX_DEPTH = 8


def loaded(value: Any) -> Any:
    """Return the value of a JSON text; return any other value, and a text that is not JSON, unchanged."""
    is_json = isinstance(value, str) and value.lstrip()[:1] in {"[", "{", '"'}
    inside = decoded(value) if is_json else None
    return value if inside is None else inside


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return an object, given as such or as JSON; an empty one for anything else."""
    return fields_in(loaded(value))


def gold_in(raw: Any, *, tools: bool, kind: str | None) -> tuple[str, ...]:
    """Return the accepted answers of a chat request, as texts: a JSON value is one answer, null is unknown.

    Without tools, each text of a list is an answer. An empty list means that no tool should be called, and so does null
    in the Berkeley Function Calling Leaderboard's categories of requests that none of the offered tools can answer.

    >>> gold_in([], tools=True, kind=None), gold_in(None, tools=True, kind="relevance")
    (('[]',), ('[]',))
    >>> gold_in(["Danube", "Donau"], tools=False, kind=None), gold_in(None, tools=True, kind=None)
    (('Danube', 'Donau'), ())
    """
    gold = loaded(raw)
    if gold is None or gold == "":
        return (NO_CALL,) if tools and kind in _NO_CALL_KINDS else ()
    if gold and not tools and isinstance(gold, list) and all(isinstance(text, str) for text in gold):
        return tuple(dict.fromkeys(gold))
    return (gold if isinstance(gold, str) else json.dumps(gold, ensure_ascii=False),)


class Reply(NamedTuple):
    """A message that a model sent, why it ended, and its tokens if they are recorded."""

    message: Mapping[str, Any]
    finish_reason: str | None = None
    tokens: tuple[Token, ...] | None = None


def chat_columns(
    always: Any, request: Any, settings: Any, tools: Any, system: Any, reply: Any, finish: Any, *counts: Any
) -> str:
    """Return, as JSON, the columns that a call's request and reply give: the texts, or for a whole chat all columns.

    Args:
        always: "yes" for a log of chat requests only: short ones are chats, too, and every request must be complete.
        request: a body, its messages, or a prompt; as JSON or as text.
        settings: options that are recorded beside the request, such as a temperature; as JSON.
        tools: the tools that the request offers, if they are not in the body.
        system: the system instructions, if they are not among the messages.
        reply: a completion, its choices, messages, a message, or a text.
        finish: why the reply ended, if the reply itself does not say so.
        counts: as for `usage_of`.
    """
    body, sent = _body(request), messages_in(request)
    answer = reply_in(reply)
    if answer is not None and finish is not None and answer.finish_reason is None:
        reasons = loaded(finish)
        answer = answer._replace(finish_reason=str(reasons[0] if isinstance(reasons, list) and reasons else reasons))
    users = (text_of(turn.get("content")).strip() for turn in reversed(sent) if turn["role"] == "user")
    columns: dict[str, Any] = {"question": next(filter(None, users), None)}
    if answer is not None:
        columns["text"] = spoken_text(answer.message).strip()
    if answer is not None and answer.tokens is not None:
        completion = Completion(columns["text"], "stop", usage_of(counts), answer.tokens)
        columns["signals"] = logprob_signals(completion, columns["text"])
    try:
        chat = _request({**options_in(settings), **body}, sent, tools, system)
    except UsageError as error:
        return json.dumps({**columns, **({"problem": str(error)} if always else {})})
    if answer is None and (always or body.get("messages")):
        columns |= {"question": Question.of_chat(chat).text, "context": chat.canonical}
    elif answer is not None and (always or body.get("messages") or not _is_short(chat, answer.message)):
        called = [{"name": fields_in(call.get("function")).get("name")} for call in calls_of(answer.message)]
        offering = chat if chat.tools or body else replace(chat, options={**chat.options, "functions": called})
        columns |= answered(chat, answer, counts, offering)
    return json.dumps(columns, ensure_ascii=False).encode("utf-8", "replace").decode()


def usage_of(counts: Sequence[Any]) -> Usage:
    """Return the usage for input, output, cached, reasoning and written tokens, and the hour's part of the latter."""
    sent, output, cached, reasoning, written, hour = (None if count is None else int(count) for count in counts)
    return Usage(sent, output, cached, reasoning, written_input_tokens=written, hour_input_tokens=hour or 0)


def answered(request: ChatRequest, reply: Reply, counts: Sequence[Any], offering: ChatRequest) -> dict[str, Any]:
    """Return the columns of a message that answers a request, with the signals that it would have if served live."""
    message, text, usage = reply.message, output_text(reply.message), usage_of(counts)
    finish = (reply.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")).replace("-", "_")
    faults = message_faults(offering, message, finish)
    completion = Completion(text, finish, usage, reply.tokens, message=message, faults=faults)
    question = Question.of_chat(request)
    replay = {
        "purpose": "answer",
        "sample": 0,
        "finish_reason": finish,
        "usage_estimated": usage.estimated,
        "tokens": None if reply.tokens is None else [token_row(token) for token in reply.tokens],
        CHAT: True,
        **({WRITTEN: usage.written_input_tokens, HOUR: usage.hour_input_tokens} if usage.written_input_tokens else {}),
    }
    return {
        "question": question.text,
        "context": question.context,
        "answer": text,
        "text": json.dumps(message, ensure_ascii=False),
        "signals": {**message_signals(request, completion), "replay": replay},
    }


def _request(body: Mapping[str, Any], sent: list[dict[str, Any]], tools: Any, system: Any) -> ChatRequest:
    """Return the chat request that was sent; raise UsageError if there is none, or if it could not be sent again."""
    options = options_in(body)
    offered = [tool for message in sent if (tool := _tool_in(message)) is not None]
    messages = [message for message in sent if _tool_in(message) is None]
    if instructions := loaded(system if system is not None else body.get("system", body.get("instructions"))):
        form = "parts" if isinstance(instructions, list) else "content"
        messages = [*_message({"role": "system", form: instructions}), *messages]
    listed = loaded(tools) or offered or options.get("tools")
    if isinstance(listed, list) and listed:
        options["tools"] = [_openai_tool(tool) for tool in map(as_mapping, listed) if tool]
    return ChatRequest(messages, options)


def options_in(body: Any) -> dict[str, Any]:
    """Return the options in a body, or in a record of them, that affect its reply, as OpenAI spells them.

    >>> options_in({"stop_sequences": ["END"], "user": "x", "maxTokens": 9, "tool_choice": {"type": "any"}})
    {'stop': ['END'], 'max_tokens': 9, 'tool_choice': 'required'}
    """
    raw = {_CAPITAL.sub(r"_\1", name).lower(): value for name, value in as_mapping(body).items()}
    text, config, choice = (as_mapping(raw.get(name)) for name in ("text", "output_config", "tool_choice"))
    effort = {f"reasoning_{name}": value for name, value in as_mapping(raw.get("reasoning")).items()}
    own = {_SPELLED.get(name, name): value for name, value in {**text, **effort, **raw}.items()}
    form = as_mapping(text.get("format", raw.get("output_format", config.get("format"))))
    if "schema" in form:  # Anthropic's as `serve` sends it
        schema = form if "name" in form else {"name": "output", "strict": True, **form}
        own["response_format"] = {"type": "json_schema", "json_schema": {k: schema[k] for k in schema if k != "type"}}
        own["output_config"] = {name: config[name] for name in config if name != "format"}
    if (kind := choice.get("type")) and not choice.keys() & {"function", "allowed_tools"}:
        call = {"type": "function", "function": {"name": choice.get("name", choice.get("toolName"))}}
        own["tool_choice"] = {"any": "required", "tool": call, "function": call}.get(str(kind), kind)
    return {name: own[name] for name in own if name in _DECISIVE and own[name] not in _EMPTY}


def _is_short(request: ChatRequest, message: Mapping[str, Any]) -> bool:
    """Return whether a request is a plain question: one user text, no option that affects the reply, no tool call."""
    (role, content), *rest = ((turn.get("role"), turn.get("content")) for turn in request.messages)
    return role == "user" and isinstance(content, str) and not (rest or request.options or message.get("tool_calls"))


def _body(request: Any) -> Mapping[str, Any]:
    body = as_mapping(request)
    return inside if (inside := as_mapping(body.get("body"))).get("messages") else body


def request_with(body: Mapping[str, Any], question: str | None) -> str | None:
    """Return, as JSON, the chat request in which a question was sent: the body with the question as its last message.

    >>> request_with({"temperature": 0}, "Where is my parcel?")
    '{"temperature": 0, "messages": [{"role": "user", "content": "Where is my parcel?"}]}'
    """
    messages = messages_in(question)
    own = {**body, **_body(question), "messages": [*messages_in(body), *messages]}
    return json.dumps(own, ensure_ascii=False) if messages else None


def check_template(body: Mapping[str, Any]) -> None:
    """Raise UsageError if questions cannot be sent in this body, or if it has fields that do not affect the reply."""
    allowed = ("messages", "system", *_DECISIVE)
    if unknown := [f"{name}{did_you_mean(name, allowed)}" for name in body if name not in allowed]:
        raise UsageError(f"No field of a request that decides its reply: {'; '.join(unknown)}")
    _request(body, messages_in(request_with(body, "?")), None, None)


# --- messages ---


def messages_in(request: Any, depth: int = 0) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form, from messages, a body with them, or a prompt."""
    value = loaded(request)
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value.strip() else []
    if depth > _MAX_DEPTH:
        return []
    if isinstance(value, Mapping) and not ("role" in value or ("type" in value and "data" in value)):
        inside = next((value[name] for name in ("body", *_MESSAGES) if value.get(name)), None)
        return messages_in(inside, depth + 1)
    listed = value if isinstance(value, list) else [value]
    if listed and all(isinstance(batch, list) for batch in listed):
        return messages_in(listed[0], depth + 1)  # LangChain's batches of messages
    turns = (
        [{"role": role, "content": [*run]}] if role else run  # the calls of one turn are one message
        for role, run in groupby(objects_in(listed), lambda raw: "role" not in raw and _ITEMS.get(str(raw.get("type"))))
    )
    return [message for raw in chain.from_iterable(turns) for message in _message(_unwrapped(raw))]


def _unwrapped(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message inside OpenInference's `message` or LangChain's `data`; any other message unchanged."""
    data = {} if "role" in message else fields_in(message.get("data", message.get("kwargs")))
    named = {**data, "role": data.get("type", message.get("type"))}
    dotted = {name.removeprefix("message."): value for name, value in message.items()}  # in a frame of Phoenix
    return named if data else as_mapping(message.get("message")) or dotted


def _message(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form; if its blocks answer tool calls, yield one message for each of these."""
    role = str(message.get("role") or _ROLES.get(str(message.get("type"))) or ("user" if "parts" in message else ""))
    role, content, calls = _ROLES.get(role, role), message.get("content"), loaded(message.get("tool_calls"))
    listed = message.get("parts", message.get("contents", content if role == "user" else loaded(content)))
    raw = objects_in(listed)
    blocks, untyped = [*map(_block, raw)], not isinstance(content, str) and any("type" not in block for block in raw)
    fields = {name: message[name] for name in ("name", "refusal", "tool_call_id") if name in message}
    if "parts" in message or untyped or any(block.get("type") in _CALLS + _RESULTS for block in blocks):
        for block in blocks if role else ():
            if block.get("type") in _RESULTS:
                names = ("response", "result", "content", "output")
                output = _text(next((block[name] for name in names if block.get(name)), ""))
                yield {"role": "tool", "tool_call_id": block["id"], "content": output}
        calls = [block for block in blocks if block.get("type") in _CALLS]
        shown = [block for block in blocks if block.get("type") not in _UNSEEN and not block.get("thought")]
        texts = [str(block.get("content", block.get("text"))) for block in shown if _speaks(block)]
        content = "\n".join(texts) if texts else None
        if len(texts) < len(shown):  # an image or a file
            content = [{"type": "text", "text": texts.pop(0)} if _speaks(block) else block for block in shown]
        role, fields = role if content or calls else "", {}
    elif role == "assistant" and blocks and all(block.get("type") in ("text", *_UNSEEN) for block in blocks):
        content = "".join(str(block.get("text", "")) for block in blocks if _speaks(block))  # Anthropic's
    elif blocks and isinstance(content, list) and len(blocks) == len(content):
        content = blocks
    if role == "tool" and message.get("id"):
        fields.setdefault("tool_call_id", str(message["id"]))
    if isinstance(calls, list) and calls:
        fields["tool_calls"] = [_openai_call(call, at) for at, call in enumerate(calls, 1) if isinstance(call, Mapping)]
    if role:
        yield {"role": role, "content": content, **fields}


def _block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of a message with its type (`_TAGS`); an image is returned in OpenAI's form.

    >>> _block({"inlineData": {"mimeType": "image/png", "data": "iVBORw"}})
    {'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,iVBORw'}}
    >>> _block({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi"}})
    {'type': 'file', 'file': {'file_data': 'data:application/pdf;base64,JVBERi'}}
    """
    for tag in [name for name in block if name.replace("_", "").lower() in _TAGS and "type" not in block]:
        block = {"type": _TAGS[tag.replace("_", "").lower()], **fields_in(block[tag])}
    inner = fields_in(block.get("source")) or fields_in(fields_in(block.get("image")).get("image"))  # OpenInference's
    kind, source = str(block.get("type")).replace("-", "_"), {**block, **inner}
    mime, data, url, named = (next(filter(None, map(source.get, names)), "") for names in _FIELDS)
    if kind in _CALLS + _RESULTS:
        return {"name": block.get("toolName"), **block, "type": kind, "id": named}
    if kind in ("input_text", "output_text") or (kind == "document" and source["type"] == "text"):
        return {"type": "text", "text": block.get("text", data)}
    if kind == "document" and source["type"] == "base64":
        return {"type": "file", "file": {"file_data": f"data:{mime};base64,{data}"}}
    media = url or data
    if media and isinstance(media, str) and kind in ("media", "image", "input_image", "blob", "uri", "file"):
        if "image" in f"{kind} {mime} {block.get('modality')}":
            url = url or (data if "://" in data else f"data:image/{mime.removeprefix('image/')};base64,{data}")
            return {"type": "image_url", "image_url": {"url": url}}
        return {**block, "type": "media"}
    return block


def _speaks(block: Mapping[str, Any]) -> bool:
    return block.get("type") in _SPOKEN and isinstance(block.get("content", block.get("text")), str)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _openai_call(call: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return a tool call in OpenAI's form, from the same form or {name, arguments | args | input, id}."""
    call = fields_in(call.get("tool_call")) or {  # OpenInference's
        name.removeprefix("tool_call.").removeprefix("function."): value for name, value in call.items()
    }
    named = fields_in(call.get("function")) or call
    arguments: Any = next((named[name] for name in ("arguments", "args", "input") if named.get(name) is not None), {})
    function = {"name": named.get("name"), "arguments": _text(arguments)}
    return {"id": str(call.get("call_id") or call.get("id") or f"call_{at}"), "type": "function", "function": function}


def _openai_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form, from the same form or {name, description, parameters | input_schema}."""
    if isinstance(tool.get("function"), Mapping):
        return {"type": "function", "function": dict(tool["function"])}
    if inside := as_mapping(as_mapping(tool.get("tool")).get("json_schema", tool.get("tool.json_schema"))):
        return _openai_tool(inside)
    schema = loaded(next(filter(None, map(tool.get, ("parameters", "input_schema", "inputSchema"))), None))
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    return {"type": "function", "function": {name: value for name, value in function.items() if value}}


def _tool_in(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tool in a message, where Langfuse's callback for LangChain writes it; None if there is none."""
    tool = loaded(message.get("content")) if message.get("role") == "tool" else None
    return tool if isinstance(tool, Mapping) and "tool_call_id" not in message and "function" in tool else None


# --- replies ---


def reply_in(reply: Any) -> Reply | None:
    """Return a model's message, from a completion, its choices, messages, a message or a text; None if there is none.

    Any other JSON, except an error, is the text of the message: an answer written in JSON. Of several choices, the
    first counts as served. Log-probs are read in the form of OpenAI's chat completions.

    >>> reply_in({"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]})
    Reply(message={'role': 'assistant', 'content': 'Paris'}, finish_reason='stop', tokens=None)
    """
    body, entries = as_mapping(reply), _entries(reply)
    if len(entries) == 1 and isinstance(entries[0], str):
        return Reply({"role": "assistant", "content": entries[0]}) if entries[0].strip() else None
    items = objects_in(entries)
    are_turns = len(items) > 1 and "finish_reason" not in items[0]  # several choices each have a reason
    if any(entry.get("type") in _CALLS or ("role" in entry and are_turns) for entry in items):
        items = [_joined(items)]  # the items of a response, or a conversation that ends with the reply
    cut = fields_in(body.get("incomplete_details")).get("reason")  # of OpenAI's responses
    message = _reply({"stop_reason": cut, **items[0]}) if items else None
    if message is not None or not entries or body.get("error") or body.get("object") == "response":
        return message
    return Reply({"role": "assistant", "content": reply if isinstance(reply, str) else json.dumps(reply)})


def message_in(text: str) -> str | None:
    """Return a JSON text if it is a message, a completion or a conversation; None for an answer written in JSON.

    >>> [message_in(text) is not None for text in ('{"role": "assistant", "content": "Paris"}', '{"content": "Paris"}')]
    [True, False]
    """
    entry = fields_in(next(iter(_entries(text)), None))
    message = fields_in(loaded(entry.get("message"))) or fields_in(entry.get("content")) or entry
    role = _ROLES.get(str(message.get("role")), message.get("role"))
    spoken = role in {"system", "developer", "user", "assistant", "tool"} and message.keys() & {"content", "parts"}
    called = bool(message.get("tool_calls")) or (message.get("type") in _CALLS and "name" in message)
    return text if spoken or called or "finish_reason" in entry else None


def _entries(reply: Any) -> list[Any]:
    """Return the choices or the items of a reply, or the reply itself. Reasoning is no answer, so it is left out."""
    value = loaded(reply)
    value = next((value[name] for name in ("choices", "candidates", "output") if fields_in(value).get(name)), value)
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if entry not in _EMPTY and fields_in(entry).get("type") != "reasoning"]


def _joined(items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last assistant message among the items, with the tool calls that are items of their own."""
    spoken = [_SILENT, *(entry for entry in items if str(entry.get("role")) in {"assistant", "ai", "model"})]
    calls = [entry for entry in items if entry.get("type") in _CALLS]
    return {**spoken[-1], "tool_calls": calls} if calls else spoken[-1]


def _reply(choice: Mapping[str, Any]) -> Reply | None:
    message = _unwrapped(fields_in(loaded(choice.get("message"))) or fields_in(choice.get("content")) or choice)
    if choice.get("text") is not None and not message.keys() & {"role", "content", "parts"}:
        message = {"content": choice["text"]}  # a text completion
    if not message.keys() & {"role", "content", "tool_calls", "parts"}:
        return None
    messages = [*([_SILENT] if "role" in message else []), *_message({**message, "role": "assistant"})]
    finish = choice.get("finish_reason", choice.get("finishReason", choice.get("stop_reason")))
    return Reply(messages[-1], None if finish is None else str(finish), tokens_in(choice)) if messages else None


def tokens_in(choice: Mapping[str, Any]) -> tuple[Token, ...] | None:
    """Return the tokens of a choice with their log-probs; None if it has none."""
    listed = fields_in(choice.get("logprobs")).get("content")
    if not isinstance(listed, list) or not all(isinstance(token, Mapping) for token in listed):
        return None
    return tuple([Token(*_token(entry), _alternatives(entry)) for entry in listed])


def _alternatives(entry: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    listed = map(_token, objects_in(entry.get("top_logprobs")))
    return tuple([(text, logprob) for text, logprob in listed if logprob is not None])


def _token(entry: Mapping[str, Any]) -> tuple[str, float | None]:
    value = entry.get("logprob")
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0 else None
    return str(entry.get("token") or ""), number
