"""LiteLLM: over a hundred providers behind one call, with workarounds for its known faults.

It is imported at the first call; its environment is set before, so that it neither fetches prices nor reads a `.env` in
the working directory (F71); its own retries are off (F08); its time-outs are not relied on (F07); its exceptions
contain the key and are never chained (F04).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from cascade.budget.tokens import written_out
from cascade.chat import ENDINGS, ChatRequest, fields_in, objects_in
from cascade.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    CascadeError,
    MissingExtraError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    RefusedFieldError,
    StreamInterruptedError,
    UsageError,
    causes_of,
    from_status,
    quote,
)
from cascade.forks import after_fork, keep, no_fork
from cascade.providers import decision
from cascade.providers.base import TRACEPARENT, Payload
from cascade.providers.fields import OPTIONAL, SETTABLE, STANDARD, wire_body
from cascade.providers.histories import vendor_of
from cascade.providers.openai_http import retry_after_s
from cascade.providers.registry import Endpoint, ProviderSettings
from cascade.resilience import event_loop
from cascade.types import Request

_BEFORE_IMPORT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a price list at import and swaps it in mid-run
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # else it fetches a list of headers at a call, for up to 5 s
    "LITELLM_MODE": "PRODUCTION",  # else it loads .env from the working directory, which can redirect every call
    "HF_HUB_OFFLINE": "1",  # else counting tokens of some models goes to a model hub
}
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_lock = threading.Lock()


def _in_child() -> None:
    """Start without litellm's connections, which are shared with the parent."""
    global _lock  # noqa: PLW0603 - another thread may have held it at the fork
    _lock = threading.Lock()
    litellm = sys.modules.get("litellm")
    clients = getattr(litellm, "in_memory_llm_clients_cache", None)
    if litellm is not None and clients is not None:
        keep(clients)
        litellm.in_memory_llm_clients_cache = type(clients)()  # type: ignore[attr-defined]


after_fork(_in_child)


def load_litellm() -> Any:
    """Import litellm with its environment set, and restore the environment.

    Raises:
        MissingExtraError: litellm is not installed.
    """
    with no_fork(), _lock:
        return _load()


@functools.cache
def _load() -> Any:
    before = dict(os.environ)
    os.environ.update(_BEFORE_IMPORT)
    try:
        import litellm

        betas = sys.modules.get("litellm.anthropic_beta_headers_manager")
        getattr(betas, "_load_beta_headers_config", lambda: None)()
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        raise MissingExtraError("litellm", "provider: litellm") from None
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
    if importlib.util.find_spec("mcp") is None:
        _without_mcp()
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    litellm.telemetry = False
    litellm.user_url_validation = True  # else a URL in a message may reach the operator's own network
    litellm.disable_token_counter = True  # else it fetches images to count their tokens; cascade reads the usage sent
    litellm.disable_aiohttp_transport = True  # aiohttp reports a reset as a failed connect, and sessions as unclosed
    return litellm


def _without_mcp() -> None:
    """Replace a module that needs the package mcp; 1.106 imports it for each call to OpenAI's Responses API."""
    name = "litellm.responses.mcp.litellm_proxy_mcp_handler"
    unwanted = staticmethod(lambda tools: False)  # noqa: ARG005 - litellm names its argument
    handler = type("LiteLLM_Proxy_MCP_Handler", (), {"should_use_litellm_mcp_gateway": unwanted})
    module = ModuleType(name)
    module.LiteLLM_Proxy_MCP_Handler = handler  # type: ignore[attr-defined]
    sys.modules.setdefault(name, module)


async def _loaded() -> Any:
    """Return litellm; the first import runs in a thread, since it takes seconds."""
    return load_litellm() if _load.cache_info().currsize else await event_loop.in_thread(load_litellm)


@dataclass(slots=True)
class LiteLLM:
    """Answers through litellm.

    Args:
        endpoints: the configured endpoints, by `Request.site`. Without one, litellm finds the provider's address, and
            its key in the provider's usual environment variable.
    """

    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    _known: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)

    def knows(self, model: str) -> frozenset[str]:
        """Return the optional fields that litellm passes on to a model; for a user's own server, only `user`."""
        if model not in self._known:
            endpoint = self._endpoint(model)
            if endpoint is not None and endpoint.base_url is not None and not endpoint.is_openai:
                self._known[model] = frozenset({"user"})
            else:
                name = model if endpoint is None else endpoint.model or model
                supported = load_litellm().get_supported_openai_params(name) or ()
                self._known[model] = (OPTIONAL.intersection(supported) - {"thinking"} | _more(name)) - _controls()
        return self._known[model]

    def lacks(self, model: str, fields: Iterable[str]) -> list[str]:
        """Return the fields that litellm's list lacks for a model that it knows; none for a user's own server."""
        endpoint, litellm = self._endpoint(model), load_litellm()
        if endpoint is not None and endpoint.base_url is not None:
            return []
        name = model if endpoint is None else endpoint.model or model
        if not {name, name.partition("/")[2]} & litellm.model_cost.keys():
            return []
        supported = _supported(name) or fields
        return [field for field in fields if field in _LISTED and field not in supported]

    def _endpoint(self, model: str) -> Endpoint | None:
        return self.endpoints.get(model) or self.endpoints.get("")

    def load(self) -> None:
        """Import litellm, which takes seconds, and what it imports at its first call, without making a real one."""
        load_litellm().completion("openai/-", [{"role": "user", "content": "-"}], mock_response="-")

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request. The wait ends in time even if litellm does not; the call is then cancelled."""
        litellm, dialect = await _loaded(), getattr(self._endpoint(request.site), "dialect", None)
        if dialect is None:
            call = self._whole(litellm, self._arguments(request, timeout_s))
        else:
            call = self._decided(litellm, request, dialect, timeout_s)
        with self._mapping_errors(request):
            return await event_loop.on_loop(call, timeout_s)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the chunks of a stream, all of them within `timeout_s`."""
        if getattr(self._endpoint(request.site), "dialect", None) is not None:
            yield await self.complete(request, timeout_s)
            return
        call = self._chunks(await _loaded(), request, timeout_s)
        with self._mapping_errors(request):
            async with aclosing(event_loop.items_on_loop(call, timeout_s)) as chunks:
                async for chunk in chunks:
                    yield chunk

    @staticmethod
    async def _whole(litellm: Any, arguments: dict[str, Any]) -> Payload:
        return _whole(_plain(await litellm.acompletion(**arguments)))

    async def _decided(self, litellm: Any, request: Request, dialect: str, timeout_s: float) -> Payload:
        """Ask a decision model with litellm's own addresses and keys, and read its reply strictly."""
        call = getattr(litellm, "adecisions" if dialect == "openai" else "asystemone", None)
        if call is None:
            version = importlib.metadata.version("litellm")
            says = (
                f"litellm {version} calls no decision models: use 1.110 or newer, or set api_base for {request.model}."
            )
            raise BadRequestError(says, model=request.model)
        body = decision.body(request, dialect, self._name(request))
        reply = await call(**body, **self._reached(request), timeout=timeout_s, max_retries=0, num_retries=0)
        return decision.completion(_plain(reply), request, dialect)

    async def _chunks(self, litellm: Any, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        wrapper = await litellm.acompletion(**self._arguments(request, timeout_s), **_STREAMED)
        ends, refusals = list[str](), list[str]()
        if isinstance(getattr(wrapper, "completion_stream", None), AsyncIterable):
            wrapper.completion_stream = _noting_ends(wrapper.completion_stream, ends, refusals)
        try:
            async for chunk in wrapper:
                yield _streamed(chunk)
        finally:
            with suppress(Exception):
                await wrapper.aclose()
        yield _ending(request, wrapper, ends, "".join(refusals))

    async def close(self) -> None:
        """Do nothing: litellm keeps its connections for the process."""

    def _arguments(self, request: Request, timeout_s: float) -> dict[str, Any]:
        name = self._name(request)
        if request.chat is not None:
            _refuse_controls(request.chat)
            refuse_fetching(name, request.chat)
        arguments = wire_body(request, name) | {"timeout": timeout_s, "max_retries": 0, "num_retries": 0}
        for message in arguments["messages"]:
            message.pop("provider_specific_fields", None)  # litellm copies some of these into the request
        if request.sends:  # else litellm refuses fields that its list lacks for a newer model
            supported = _supported(name) or ()
            arguments["allowed_openai_params"] = [
                field for field in request.sends if field in _LISTED.difference(supported)
            ]
        if (traceparent := TRACEPARENT.get()) is not None:
            arguments["extra_headers"] = {"traceparent": traceparent}
        arguments["_skip_mcp_handler"] = True  # else 1.106 imports the package mcp where there are tools
        return arguments | self._reached(request)

    def _name(self, request: Request) -> str:
        """Return litellm's name for the model at its endpoint."""
        return getattr(self._endpoint(request.site), "model", None) or request.wire_model

    def _reached(self, request: Request) -> dict[str, Any]:
        """Return the arguments that name the address and the key."""
        endpoint, arguments = self._endpoint(request.site), dict[str, Any]()
        if endpoint is not None and endpoint.api_key is not None:
            arguments["api_key"] = endpoint.api_key
        if endpoint is not None and endpoint.base_url is not None:
            # Without its own key the server gets none: the default key must not go to another address.
            arguments |= {"api_base": endpoint.base_url, "api_key": endpoint.api_key or "none"}
            if "/" not in self._name(request):
                arguments["custom_llm_provider"] = "openai"
        return arguments

    @contextmanager
    def _mapping_errors(self, request: Request) -> Iterator[None]:
        """Map errors by status, text and class name: these hardly change between litellm's releases, its classes do."""
        try:
            yield
        except CascadeError:
            raise
        except Exception as error:  # noqa: BLE001 - litellm raises what any of its providers raises
            endpoint = self._endpoint(request.site)
            secrets = (endpoint.api_key,) if endpoint is not None and endpoint.api_key else ()
            raise map_error(request.model, error, secrets) from None


def _more(name: str) -> frozenset[str]:
    """Return the further fields that litellm passes on to a model unchanged."""
    if vendor_of(name) == "anthropic":
        return frozenset({"thinking", "output_config"})
    return frozenset({"include"} if "/responses/" in name else ())


_LISTED = (STANDARD & SETTABLE) | {"thinking", "verbosity"}
"""The settings that litellm lists for each model; it passes others on to some vendors without listing them."""
_NO_COMPLETION = re.compile(
    r"invalid response|returned an unexpected response|Received response - |provider returned .*'choices'"
    r"|Error building chunks|Expecting value|JSONDecodeError|Unable to (?:get|parse) json",
    re.IGNORECASE,
)


_NO_COMPLETION_OF_OLLAMA = re.compile("Invalid response object from API")  # litellm gives it status 400
_NO_KEY = re.compile(r"missing credentials|api_key client option must be set|missing.{0,40}api[_ ]key", re.IGNORECASE)


@functools.cache
def _controls() -> frozenset[str]:
    """Return the arguments that litellm uses itself instead of passing them on."""
    load_litellm()
    from litellm.types.utils import all_litellm_params

    return frozenset(all_litellm_params)


def _refuse_controls(chat: ChatRequest) -> None:
    """Raise RefusedFieldError for a field that the operator has opened but that would control litellm itself."""
    if steering := tuple(name for name in chat.options if name not in STANDARD and name in _controls()):
        problem = f"litellm would read these fields itself: {', '.join(steering)}. Use provider: openai_http for them."
        raise RefusedFieldError(problem, fields=steering)


_PASSED_ON = frozenset({"openai", "azure", "openrouter"})
"""litellm's providers, besides the OpenAI-compatible ones, to which it passes on image URLs unchanged."""
_REMOTE = re.compile(r"(?!data:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_MOST_EXPANDED = 1_000_000
"""The most bytes of a request once its `$ref`s are expanded, as litellm does for some vendors: each may double it."""
_MOST_DEEP = 300  # levels of its expanded schemas; Python writes JSON of fewer than 1,000


def refuse_fetching(model: str, chat: ChatRequest) -> None:
    """Raise UsageError if litellm would fetch an address in a message itself, or would expand too many `$ref`s."""
    count, levels = written_out(chat)
    if count > _MOST_EXPANDED or levels > _MOST_DEEP:
        raise UsageError("The schemas of the request are too large or too deep once their $refs are written out.")
    parts = [part for message in chat.messages for part in objects_in(message.get("content"))]
    named = [part for part in parts if _has_address({key: part[key] for key in part if key not in {"type", "text"}})]
    if not named:
        return
    provider = provider_of(model) if "/" in model else "openai"
    passed_on = provider in _PASSED_ON.union(load_litellm().openai_compatible_providers)
    if not passed_on or any(part.keys() - {"type", "image_url"} for part in named):
        raise UsageError(f"{model} cannot be sent this URL: send the image or file itself, as a data: URL.")


def _has_address(value: object) -> bool:
    if isinstance(value, str):
        return _REMOTE.match(value.lstrip()[:_SCHEME]) is not None
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(_has_address, inner))


_SCHEME = 64
"""How many leading characters of a value are searched for a URL's scheme."""


def _supported(model: str) -> list[str] | None:
    """Return the fields that litellm lists for a model, which it looks up without its prefix `openai/`."""
    bare = model.removeprefix("openai/")
    supported: list[str] | None = load_litellm().get_supported_openai_params(bare, None if bare == model else "openai")
    return supported


def provider_of(model: str) -> str:
    """Return litellm's provider of a model; "" if it knows none, and a call then fails with litellm's own message."""
    with suppress(Exception):  # any error of litellm's
        return str(load_litellm().get_llm_provider(model)[1])
    return ""


def missing_keys(model: str) -> list[str]:
    """Return the environment variables that litellm needs for a model and that are unset or empty."""
    missing = load_litellm().validate_environment(model).get("missing_keys")
    own = f"{provider_of(model).upper()}_API_KEY"  # litellm accepts an empty one as a key
    return missing or ([own] if os.environ.get(own) == "" else [])


def map_error(model: str, error: Exception, secrets: tuple[str, ...] = ()) -> ProviderError:
    """Return cascade's error for one of litellm's, which must not be chained, since it contains the request's key."""
    name, text = type(error).__name__, str(error)
    status = getattr(error, "status_code", None)
    if isinstance(error, TimeoutError) or ("Timeout" in name and status != 504):
        return ProviderTimeoutError(f"{model} did not finish in time ({name}).", model=model)
    if "MidStream" in name:
        return StreamInterruptedError(f"the stream of {model} broke ({name}).", model=model)
    if _NO_KEY.search(text):
        variable = " and ".join(missing_keys(model)) or "the environment variable of its provider"
        says = f"{model}: no key was found. Set {variable}, or name another one: api_key_env."
        return AuthenticationError(says, model=model)
    refused = isinstance(status, int) and 400 <= status < 500  # its text is the server's: "Invalid response_format"
    own = _NO_COMPLETION_OF_OLLAMA if refused else _NO_COMPLETION
    if own.search(text) or _caused_by(error, _NO_JSON):
        quoted = quote(text, secrets)
        return BadResponseError(f"{model} sent something other than a completion: {quoted}", model=model)
    if "Connection" in name or "Connection error" in text:
        return _broken(model, name, error)
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return from_status(
        504 if "Timeout" in name else status if isinstance(status, int) else 500,
        f"{name}: {text}",
        model=model,
        secrets=secrets,
        retry_after_s=retry_after_s(headers),
    )


def _broken(model: str, name: str, error: Exception) -> ProviderUnavailableError:
    """Return the error of a connection that was never made, or broke once the request may have been sent."""
    if _caused_by(error, _CONNECTING):
        return ProviderUnavailableError(f"{model} could not be reached ({name}).", model=model)
    says = f"{model}: the connection broke before an answer came ({name}); the call may be billed."
    return ProviderUnavailableError(says, model=model, billed="maybe")


_CONNECTING = re.compile(
    r"aiohttp\S*\.(ClientConnector\w*|ClientProxyConnection\w*|ConnectionTimeoutError)|httpcore\S*\.(ConnectError|ConnectTimeout)"
    r"|builtins\.ConnectionRefusedError|socket\.gaierror"
)
"""Errors that mean that there was no connection. Under aiohttp, httpx's ConnectError can also mean a reset."""
_NO_JSON = re.compile(r"\S*JSONDecodeError|builtins\.UnicodeDecodeError")


def _caused_by(error: BaseException, kinds: re.Pattern[str]) -> bool:
    """Return whether the class of an error, or of one of its causes, matches."""
    return any(kinds.fullmatch(f"{type(cause).__module__}.{type(cause).__name__}") for cause in causes_of(error))


def _plain(response: Any) -> Payload:
    """Return litellm's object as plain values; it has log-probs only if some were requested."""
    payload: Payload = response.model_dump(warnings=False) if hasattr(response, "model_dump") else dict(response)
    return payload


def _whole(payload: Payload) -> Payload:
    """Restore what litellm hides in a reply: a finish reason renamed "stop", a choice's error (F27), a refusal."""
    return {**payload, "choices": [_with_its_end(choice) for choice in payload.get("choices") or ()]}


def _with_its_end(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    message = fields_in(choice.get("message"))
    if (refusal := fields_in(message.get("provider_specific_fields")).get("refusal")) is not None:
        choice = {**choice, "message": {**message, "refusal": refusal}}
    aside = choice.get("provider_specific_fields")
    if not isinstance(aside, dict):
        return choice
    finish, native = choice.get("finish_reason"), aside.get("native_finish_reason")
    renamed = finish == "stop" and isinstance(native, str) and native.lower() not in ENDINGS
    return {**choice, "finish_reason": native if renamed else finish, "error": aside.get("error")}


def _streamed(chunk: Any) -> Payload:
    """Return a chunk without its usage and finish reason, which litellm invents if none came (F27)."""
    payload = dict(_plain(chunk))
    payload.pop("usage", None)
    payload["choices"] = [{**choice, "finish_reason": None} for choice in payload.get("choices") or ()]
    return payload


async def _noting_ends(chunks: AsyncIterable[Any], ends: list[str], refusals: list[str]) -> AsyncGenerator[Any, None]:
    """Pass on the provider's own chunks, except text after the end, and record bad finish reasons and refusals.

    litellm renames each bad finish reason "stop", leaves out refusals, and goes on after the end.
    """
    ended = False
    async for chunk in chunks:
        choices = getattr(chunk, "choices", None) or ()
        if ended and any(getattr(getattr(choice, "delta", None), "content", None) for choice in choices):
            continue
        for choice in choices:
            end = getattr(choice, "finish_reason", None)
            ended = ended or isinstance(end, str)
            if getattr(choice, "error", None):
                ends.append("error")
            elif isinstance(end, str) and end.lower() not in ENDINGS:
                ends.append(end)
            elif isinstance(refusal := getattr(getattr(choice, "delta", None), "refusal", None), str):
                refusals.append(refusal)
        yield chunk


def _ending(request: Request, wrapper: Any, ends: list[str], refusal: str) -> Payload:
    """Return a last chunk with the refusal, the finish reason and the usage that the provider sent.

    The first of `ends`, the provider's own bad finish reasons, takes precedence.
    """
    reasons = (getattr(wrapper, f"{when}_finish_reason", None) for when in ("received", "intermittent"))
    finish = next(filter(None, (*ends, *reasons)), None)  # the second if it came with the last text, as from Gemini
    if finish is None:
        raise StreamInterruptedError(
            f"the stream of {request.model} ended without a finish reason.", model=request.model
        )
    sent = [usage for chunk in getattr(wrapper, "chunks", ()) if (usage := getattr(chunk, "usage", None)) is not None]
    choice = {"index": 0, "delta": {"refusal": refusal} if refusal else {}, "finish_reason": str(finish)}
    return {"choices": [choice], "usage": _plain(sent[-1]) if sent else None}


def create(settings: ProviderSettings) -> LiteLLM:
    """Return the provider. Raises MissingExtraError if litellm is not installed."""
    if importlib.util.find_spec("litellm") is None:
        raise MissingExtraError("litellm", "provider: litellm")
    return LiteLLM(settings.endpoints)
