"""Which fields of an application's request a model is sent: an allow-list, since an unknown field may choose anything.

A client library reads some fields of a body itself, and servers read more of them than they publish: an address, a key,
headers, another model, a price, a limit of their own. So a field is sent only if it is listed here or opened by the
operator, and what a client sends never chooses who is asked, with which key, or what it may cost:

* `STANDARD` fields are sent to every model.
* `OPTIONAL` fields are published by a vendor and sent by client libraries. A model is sent those that its provider says
  it knows (`Knows`); for another model they are left out, and the answer says so.
* Every other field is refused, unless `allow_fields` of a model opens it. `is_closed` fields cannot be opened.

The same holds for tools: a vendor's own tools run on its servers, at a price of their own and at addresses in the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.errors import RefusedFieldError
from cascade.money import PLAIN_TIERS
from cascade.types import Request


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STANDARD = _names(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens "
    "modalities parallel_tool_calls presence_penalty reasoning_effort response_format seed stop temperature "
    "tool_choice tools top_logprobs top_p"
)
OPTIONAL = _names(
    "cache_control client_metadata context_management diagnostics max_tool_calls metadata output_config "
    "prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier store top_k "
    "user user_profile_id verbosity workspace_id"
)
"""Fields that change where a request is recorded, cached or counted, or that only one vendor reads."""
OPENAI_OWN = OPTIONAL & _names(
    "metadata prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier service_tier "
    "store user verbosity"
)
"""The optional fields of OpenAI's own chat completions."""
_SEARCH, _TIER = "web_search_options", "service_tier"
_TOOL_KEYS = frozenset({"type", "function", "custom", "cache_control"})
_TOOL_TYPES = frozenset({"function", "custom"})
_FUNCTION_KEYS = frozenset({"name", "description", "parameters", "strict", "format", "cache_control"})
"""Keys of a function, or of a custom tool; litellm reads a vendor's own tool in others, such as `googleSearch`."""
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
    """Whether a field can choose an address, a key, a header, a model, a price, a limit or a callback.

    >>> [name for name in ("api_base", "extra_headers", "n_predict", "top_k", "min_p") if is_closed(name)]
    ['api_base', 'extra_headers', 'n_predict']
    """
    return _CLOSED.fullmatch(name.strip()) is not None


_CHECKED = STANDARD - {"tools", "functions"}
"""Fields that need no look at their values."""


def _nothing(_model: str) -> frozenset[str]:
    return frozenset()


class ModelFields(NamedTuple):
    """What one model is sent besides the standard fields.

    Attributes:
        model: its name.
        knows: returns the optional fields that its provider knows for a model.
        opened: the fields, and tools as "tools.TYPE", that the operator opens for it (`allow_fields`).
        tiers: the service tiers that it has a price for.
        searches: whether it has a price for web search.
    """

    model: str = ""
    knows: Callable[[str], frozenset[str]] = _nothing
    opened: frozenset[str] = frozenset()
    tiers: frozenset[str] = PLAIN_TIERS
    searches: bool = False

    def takes(self, name: str, value: Any) -> bool:
        """Whether the model is sent a field. A tier or a search without a price is not bought."""
        if name == _SEARCH:
            return self.searches
        if name == _TIER and not (value is None or (isinstance(value, str) and value in self.tiers)):
            return False
        return name in STANDARD or name in self.opened or (name in OPTIONAL and name in self.knows(self.model))


_UNKNOWN = ModelFields()


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that each model of a cascade is sent.

    Args:
        models: by a model's name. A model without an entry is sent the standard fields.
    """

    models: Mapping[str, ModelFields] = field(default_factory=dict)

    def unsent(self, chat: ChatRequest, models: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the fields of a request that at least one of some models is not sent; by default of all models.

        Raises:
            RefusedFieldError: the request has fields that no model of the cascade may be sent; names every one.
        """
        if chat.options.keys() <= _CHECKED:
            return ()
        refused = list(dict.fromkeys(_refused(chat.options, self.models.values())))
        if refused:
            listed = ", ".join(name[:_LONGEST] for name in refused[:_MOST])
            more = f" and {len(refused) - _MOST} more" if len(refused) > _MOST else ""
            advice = "Leave them out."
            if not any(map(is_closed, refused)):
                advice = "Leave them out, or have the operator open them for a model (models.NAME.allow_fields)."
            raise RefusedFieldError(
                f"The request has fields that are not passed on: {listed}{more}. {advice}", fields=tuple(refused)
            )
        rules = [self.models.get(name, _UNKNOWN) for name in (self.models if models is None else models)]
        return tuple(name for name, value in chat.options.items() if not all(rule.takes(name, value) for rule in rules))

    def sent(self, request: Request) -> Request:
        """Return a call with the fields that its model is sent; caps and prices read what is left."""
        chat = request.chat
        if chat is None or chat.options.keys() <= STANDARD:
            return request
        rule = self.models.get(request.model, _UNKNOWN)
        options = {name: value for name, value in chat.options.items() if rule.takes(name, value)}
        return request if len(options) == len(chat.options) else request._replace(chat=replace(chat, options=options))


_LONGEST, _MOST = 100, 20


def _refused(options: Mapping[str, Any], rules: Collection[ModelFields]) -> Iterator[str]:
    for name, value in options.items():
        if name in STANDARD or name in OPTIONAL:
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
            held = tool.get(kind)
            keys = held if isinstance(held, Mapping) else ()
            yield from (f"tools[{number}].{kind}.{name}" for name in keys if name not in _FUNCTION_KEYS)
    for number, function in enumerate(options.get("functions") or ()):
        names = list(function) if isinstance(function, Mapping) else ["(not an object)"]
        yield from (f"functions[{number}].{name}" for name in names if name not in _FUNCTION_KEYS)
