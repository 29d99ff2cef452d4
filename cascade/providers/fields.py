"""What a model is sent: the body of a call, the fields that cascade adds, and which of an application's fields pass.

An application's fields must be on an allow-list, since an unknown field could control anything.

A client library reads some fields of a body itself, and servers read more fields than they document: an address, a key,
headers, another model, a price, a limit of their own. So a field is sent only if it is listed here or opened by the
operator, and a client never chooses which server is asked, with which key, or what the call may cost:

* `STANDARD` fields are sent to every model.
* `OPTIONAL` fields are documented by a vendor and sent by client libraries. A model is sent those that its provider
  knows (`Knows`); for other models they are left out, and the answer says so.
* Every other field is refused, unless `allow_fields` of a model opens it. `is_closed` fields cannot be opened.

The same holds for tools: a vendor's own tools run on its servers, at a price of their own and at addresses in the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, fields_in, objects_in
from cascade.errors import ProviderError, RefusedFieldError
from cascade.money import PLAIN_TIERS
from cascade.providers.histories import accepted, cannot_think, vendor_of, without_thinking
from cascade.types import Request


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STANDARD = _names(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens "
    "modalities parallel_tool_calls presence_penalty reasoning_effort response_format seed stop temperature "
    "tool_choice tools top_logprobs top_p"
)
OPTIONAL = _names(
    "cache_control client_metadata context_management diagnostics include max_tool_calls metadata output_config "
    "prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier store thinking top_k "
    "user user_profile_id verbosity workspace_id"
)
"""Fields that change where a request is recorded, cached or counted, or that only one vendor reads. Those that change
how a reply is sampled are also in `conformal.scope.DRAWN`; those that litellm does not list are in `litellm._more`."""
OPENAI_OWN = OPTIONAL & _names(
    "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier "
    "store user verbosity"
)
"""The optional fields of OpenAI's own chat completions."""
CACHE_MARKS: Mapping[str, str] = {"cache_control": "anthropic", "prompt_cache_breakpoint": "openai"}
"""The vendor that reads each kind of mark. A mark is on a message, a part, a call or a tool; the prompt is cached up to
it. Marks change only the price."""
SETTABLE = _names(
    "chat_template_kwargs frequency_penalty min_p output_config parallel_tool_calls presence_penalty "
    "prompt_cache_retention reasoning reasoning_effort service_tier thinking top_k top_p verbosity"
)
"""The fields that an operator may send with each request of an entry (`models.NAME.settings`)."""
_SEARCH, _TIER = "web_search_options", "service_tier"
_EFFORT = frozenset({"thinking", "reasoning_effort"})
"""Two names for one setting; a model is sent only one of them."""
_EFFORTS = ((4_096, "high"), (2_048, "medium"))
"""Pairs of a minimum thinking budget in tokens and the reasoning effort, as in LiteLLM; below them it is low."""
_TOOL_KEYS = frozenset({"type", "function", "custom", "cache_control"})
_TOOL_TYPES = frozenset({"function", "custom"})
_FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict", "format", "cache_control"})
"""Keys of a function or a custom tool. litellm reads a vendor's own tools from other keys, such as `googleSearch`."""
_CLOSED = re.compile(
    r"messages|model|models|model_.*|n|best_of|stream|stream_options|client|organization|project|route|provider|proxy"
    r"|deployment_id|plugins|transforms|guardrails|cache|caching|tags|timeout|request_timeout|stream_timeout"
    r"|.*(?:api|base)_?(?:key|base|url|type|version|path).*|.*(?:url|uri|endpoint|host|proxies)"
    r"|.*(?:token|secret|password|credentials?|headers?|callbacks?|retries|fallbacks?|logger_fn|logging_obj)"
    r"|(?:extra|litellm|mock|aws|azure|vertex|s3|langfuse|langsmith|custom)_.*|_.*|.*_fallback_.*|.*_params"
    r"|(?:.*_)?cost(?:_.*)?|.*pricing.*|speed|inference_geo"
    r"|n(?:um)?_predict|num_return_sequences|(?:max|min)_new_tokens|(?:max|min)_length|max_tokens_to_sample|min_tokens"
    r"|ignore_eos",
    re.IGNORECASE,
)


def is_closed(name: str) -> bool:
    """Return whether a field can choose an address, a key, a header, a model, a price, a limit or a callback.

    >>> [name for name in ("api_base", "extra_headers", "n_predict", "top_k", "min_p") if is_closed(name)]
    ['api_base', 'extra_headers', 'n_predict']
    """
    return len(name) > _LONGEST or _CLOSED.fullmatch(name.strip()) is not None  # the pattern takes 1.8 s for 20 MB


def thinks(body: Mapping[str, Any]) -> bool:
    """Return whether a client asks the model to think, in Anthropic's form, and wants its thoughts."""
    return fields_in(body.get("thinking")).get("type") in ("enabled", "adaptive")


def _effort_of(options: Mapping[str, Any]) -> Any:
    """Effort for models that take no `thinking`: the client's, `high` if adaptive, else by the thinking budget."""
    thinking, effort = options["thinking"], fields_in(options.get("output_config")).get("effort")
    if effort is not None or thinking["type"] == "adaptive":
        return "high" if effort is None else effort
    budget = thinking.get("budget_tokens")
    return next((word for least, word in _EFFORTS if isinstance(budget, int) and budget >= least), "low")


_CHECKED = STANDARD - {"tools", "functions"}
"""The standard fields whose values need no check."""


class ModelFields(NamedTuple):
    """What one model is sent besides the standard fields.

    Attributes:
        model: its name.
        knows: returns the optional fields that its provider knows for a model.
        opened: the fields, and tools as "tools.TYPE", that the operator opens for it (`allow_fields`).
        tiers: the service tiers that it has a price for.
        searches: whether it has a price for web search.
        sends: the fields that the operator sends with each request; a client's own are left out.
        refuses: returns whether it is known to refuse a field.
    """

    model: str = ""
    knows: Callable[[str], frozenset[str]] = lambda _: frozenset()
    opened: frozenset[str] = frozenset()
    tiers: frozenset[str] = PLAIN_TIERS
    searches: bool = False
    sends: Mapping[str, Any] = {}
    refuses: Callable[[str], bool] = lambda _: False

    def takes(self, name: str, value: Any) -> bool:
        """Return whether the model is sent a field. A service tier or web search without a price is not bought."""
        if name in self.sends or (name == _SEARCH and not self.searches):
            return False
        if name == _TIER and not (value is None or (isinstance(value, str) and value in self.tiers)):
            return False
        opened = name in self.opened or name == _SEARCH
        return opened or name in STANDARD or (name in OPTIONAL and name in self.knows(self.model))

    def passes(self, chat: ChatRequest) -> dict[str, Any]:
        """Return the options of a request that the model is sent."""
        options = {name: value for name, value in chat.options.items() if self.takes(name, value)}
        if "thinking" in options:
            options.pop("reasoning_effort", None)
        elif thinks(chat.options) and not (_EFFORT & self.sends.keys() or self.refuses("reasoning_effort")):
            options.setdefault("reasoning_effort", _effort_of(chat.options))
        if _EFFORT & options.keys() and cannot_think(chat.messages, self.wire_model):
            options = {name: value for name, value in options.items() if name not in _EFFORT}
        return options

    def lacks(self, chat: ChatRequest) -> set[str]:
        """Return the options of a request that the model is sent under no name."""
        sent = self.passes(chat)
        given = {name for name, value in chat.options.items() if value is not None}
        return given - sent.keys() - (_EFFORT if _EFFORT & sent.keys() else frozenset())

    @property
    def wire_model(self) -> str:
        """The vendor's name of the model."""
        return str(self.sends.get("model", self.model))

    def marks(self, name: str) -> bool:
        """Return whether the model is sent a kind of cache mark: its vendor's own, or one that the operator opens."""
        return name in self.opened or vendor_of(self.wire_model) == CACHE_MARKS[name]


_UNKNOWN = ModelFields()


@dataclass(frozen=True)
class Fields:
    """The fields that each model of a cascade is sent.

    Args:
        models: the fields of each model, by its name. A model without an entry is sent the standard fields.
    """

    models: Mapping[str, ModelFields] = field(default_factory=dict)

    @cached_property
    def _unchanged(self) -> frozenset[str]:
        """The fields that every model is sent as they are."""
        return _CHECKED.difference(_EFFORT, *(rule.sends for rule in self.models.values()))

    def unsent(self, chat: ChatRequest, models: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the fields of a request that at least one of `models`, by default all, is not sent.

        Raises:
            RefusedFieldError: the request has fields that no model of the cascade may be sent; its `fields` lists all.
        """
        marked = _marks_in(chat)
        if chat.options.keys() <= self._unchanged and not marked:
            return ()
        if refused := list(dict.fromkeys(_refused(chat.options, self.models.values()))):
            listed = ", ".join(name[:_LONGEST] for name in refused[:_MOST])
            more = f" and {len(refused) - _MOST} more" if len(refused) > _MOST else ""
            opens = ", or have the operator open them for a model (models.NAME.allow_fields)"
            advice = f"Leave them out{'' if any(map(is_closed, refused)) else opens}."
            raise RefusedFieldError(
                f"The request has fields that are not passed on: {listed}{more}. {advice}", fields=tuple(refused)
            )
        rules = [self.models.get(name, _UNKNOWN) for name in (self.models if models is None else models)]
        lacking = set[str]().union(*(rule.lacks(chat) for rule in rules))
        unsent = [name for name in chat.options if name in lacking]
        return (*dict.fromkeys([*unsent, *(mark for mark in marked if not all(rule.marks(mark) for rule in rules))]),)

    def sent(self, request: Request) -> Request:
        """Return a call with only the fields that its model is sent; caps and prices are computed from these."""
        rule, chat = self.models.get(request.model, _UNKNOWN), request.chat
        if rule.sends or request.sends:  # `request.sends` may be that of the model it stands in for
            request = request._replace(sends=rule.sends)
        if chat is None:
            return request
        unread = frozenset([name for name in _marks_in(chat) if not rule.marks(name)])
        if not unread and chat.options.keys() <= STANDARD - _EFFORT and rule.sends.keys().isdisjoint(chat.options):
            return request
        options = rule.passes(chat)
        left_out = _EFFORT & (chat.options.keys() - options.keys())
        if left_out and not _EFFORT & options.keys() and cannot_think(chat.messages, rule.wire_model):
            chat = replace(chat, messages=without_thinking(chat.messages))
        if unread:
            lists = {"messages": chat.messages, **{name: options[name] for name in _TOOLS & options.keys()}}
            bare = {name: [_unmarked(holder, unread) for holder in listed or ()] for name, listed in lists.items()}
            chat = replace(chat, messages=bare.pop("messages"), options={**options, **bare})
        elif options != chat.options:
            chat = replace(chat, options=options)
        return request._replace(chat=chat)


_TOOLS, _HOLDING = frozenset({"tools", "functions"}), ("content", "tool_calls")


def _marks_in(chat: ChatRequest) -> list[str]:
    """Return the kinds of cache marks within a request, besides a top-level field of that name."""
    if not any(f'"{name}":' in chat.canonical for name in CACHE_MARKS):  # the usual case
        return []
    tools = [tool for name in sorted(_TOOLS) for tool in chat.options.get(name) or () if isinstance(tool, Mapping)]
    holders = [*chat.messages, *tools, *(tool["function"] for tool in tools if isinstance(tool.get("function"), dict))]
    holders += [part for holder in holders for name in _HOLDING for part in objects_in(holder.get(name))]
    return [name for name in CACHE_MARKS if any(name in holder for holder in holders)]


def _unmarked(holder: Any, names: frozenset[str]) -> Any:
    """Return a message or a tool without the named marks, on itself and on its parts, calls or function.

    Some servers read a text but not a list of parts, so a single text part left without its mark becomes a plain text.
    """
    if not isinstance(holder, Mapping):
        return holder
    bare = {name: value for name, value in holder.items() if name not in names}
    for name in _HOLDING:
        if isinstance(bare.get(name), list | tuple):
            bare[name] = [_unmarked(part, names) for part in bare[name]]
            if len(bare[name]) == 1 and isinstance(bare[name][0], Mapping) and bare[name][0].keys() == {"type", "text"}:
                bare[name] = bare[name][0]["text"]
    if isinstance(bare.get("function"), Mapping):
        bare["function"] = {name: value for name, value in bare["function"].items() if name not in names}
    return bare


_LONGEST, _MOST = 100, 20


def _refused(options: Mapping[str, Any], rules: Collection[ModelFields]) -> Iterator[str]:
    for name, value in options.items():
        if value is None or name in STANDARD or name in OPTIONAL:
            continue
        if not any(rule.takes(name, value) for rule in rules):
            yield name
    opened = frozenset[str]().union(*(rule.opened for rule in rules))
    for number, tool in enumerate(options.get("tools") or ()):
        kind = tool.get("type", "function")
        if not (isinstance(kind, str) and kind in _TOOL_TYPES):
            if f"tools.{kind}" not in opened:
                yield f"tools[{number}].type {str(kind)!r}"
        else:
            yield from (f"tools[{number}].{name}" for name in tool if name not in _TOOL_KEYS)
            keys = fields_in(tool.get(kind)).keys() - _FUNCTION_KEYS
            yield from (f"tools[{number}].{kind}.{name}" for name in sorted(keys))
    for number, function in enumerate(options.get("functions") or ()):
        names = list(function) if isinstance(function, Mapping) else ["(not an object)"]
        yield from (f"functions[{number}].{name}" for name in names if name not in _FUNCTION_KEYS)


# --- what cascade adds, and which additions a model refuses ---

REFUSABLE: Mapping[str, tuple[str, ...]] = {
    "logprobs": ("logprobs", "top_logprobs"),
    "temperature": ("temperature",),
    "seed": ("seed",),
    "max_tokens": ("max_tokens",),
}
"""Additions to a request that some models refuse, each with its fields. Without the field `max_tokens` the limit is
sent as `max_completion_tokens`."""


def added(request: Request) -> dict[str, Any]:
    """Return the fields that cascade adds to a request.

    These are a limit on the reply, so that the cost of a call has an upper bound, and log-probs, if they are wanted.
    For a question in cascade's own prompt, they also include temperature and seed.
    """
    chat = request.chat
    own = {} if chat is None else chat.options
    fields: dict[str, Any] = {}
    if "max_tokens" in request.without and own.get("max_completion_tokens") is None:
        fields["max_completion_tokens"] = own.get("max_tokens") or request.max_tokens
    elif chat is None or chat.max_tokens is None:
        fields["max_tokens"] = request.max_tokens
    if chat is None:
        fields["temperature"] = request.temperature
    if request.top_logprobs is not None and not own.get("logprobs"):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if chat is None and request.seed is not None:
        fields["seed"] = request.seed
    for name in request.without:
        for refusable in REFUSABLE[name]:
            fields.pop(refusable, None)
    return fields


# Some models do not accept log-probs, a temperature, or a limit under its older name, and answer 400. The error costs
# nothing and names the parameter, so the same request is sent once more without it.

_STATUSES = frozenset({400, 403, 422})
"""OpenAI's o1 answered 403 to a request for log-probs."""
_NAMED = {
    "logprobs": re.compile(r"log[ _-]?prob", re.IGNORECASE),
    "temperature": re.compile(r"\btemperature\b", re.IGNORECASE),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "max_tokens": re.compile(r"\bmax_tokens\b.*\bmax_completion_tokens\b|\bmax_completion_tokens\b.*\bmax_tokens\b"),
}
"""The names of a parameter in errors. The limit must stay, so an error about it must name the field to send instead."""


def refused(request: Request, error: ProviderError) -> frozenset[str]:
    """Return the additions to a request that the model refuses, according to the error.

    >>> from cascade.errors import from_status
    >>> from cascade.types import Question
    >>> asked = Request("o3", (), "o3", "answer", 1, Question("?"), 10, top_logprobs=1)
    >>> refused(asked, from_status(400, "Unsupported parameter: 'logprobs'"))
    frozenset({'logprobs'})
    """
    if error.status not in _STATUSES:
        return frozenset()
    ours = {*added(request), *({"max_tokens"} & own_options(request).keys())}
    return frozenset(name for name in REFUSABLE if name in ours and _NAMED[name].search(str(error)))


def own_options(request: Request) -> Mapping[str, Any]:
    """Return the fields of an application's request that a model is sent; `added` renames a limit that it refuses."""
    options = {} if request.chat is None else request.chat.options
    if "max_tokens" not in request.without or "max_tokens" not in options:
        return options
    return {name: value for name, value in options.items() if name != "max_tokens"}


# --- the body ---


def wire_body(request: Request, model: str) -> dict[str, Any]:
    """Return the JSON body of a chat completion request for OpenAI-compatible servers.

    An application's own request is sent unchanged, except for fields that the model is not sent (`fields`), for parts
    of its history that the model's vendor would refuse (`accepted`), for fields that cascade needs and the request does
    not set (`added`), and for the operator's own (`Request.sends`).

    Raises:
        RefusedFieldError: the request has a field that may not be sent to any model.
    """
    chat, own = request.chat, {**request.sends, "model": model}
    if chat is not None:
        if closed := [name for name in chat.options if is_closed(name)]:  # `Fields` refuses them before a call is made
            raise RefusedFieldError(f"Not passed on: {', '.join(closed)}. Leave them out.", fields=tuple(closed))
        messages = accepted(chat.messages, request.wire_model)
        return {"model": model, **own_options(request), "messages": messages, **added(request)} | own
    messages = [{"role": message.role, "content": sendable(message.content)} for message in request.messages]
    return {"model": model, "messages": messages, **added(request)} | own


def sendable(text: str) -> str:
    """Return a text that can be sent as UTF-8: surrogate pairs become their character, lone ones question marks."""
    if text.isascii():
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return whole.encode("utf-8", "replace").decode("utf-8")
