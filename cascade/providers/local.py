"""Real models in this process, through xllamacpp: no key, no server to start, no network.

A model is a name in `weights.registry` or the path of a GGUF file. It is loaded once, at the first call, which takes
seconds, and memory of about one and a half times the file's size. A model answers one question at a time (several would
share its speed), so concurrent calls queue.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cascade.errors import (
    BadRequestError,
    BadResponseError,
    MissingExtraError,
    ModelFileError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from cascade.forks import after_fork, keep_for_ever
from cascade.providers import weights
from cascade.providers.base import Payload
from cascade.providers.fields import wire_body
from cascade.providers.reading import with_tool_calls
from cascade.providers.registry import ProviderSettings
from cascade.resilience.event_loop import in_thread
from cascade.safety import broken_up
from cascade.text import map_json
from cascade.types import Request

DEFAULT_CONTEXT_TOKENS = 4_096
_QUIET = -1


def load_xllamacpp() -> Any:
    """Import xllamacpp so that its threads sleep at barriers instead of spinning.

    With other work on the same cores, spinning makes it up to 20 times slower (`design/providers.md`).

    Raises:
        MissingExtraError: xllamacpp is not installed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        import xllamacpp
    except ModuleNotFoundError:
        raise MissingExtraError("xllamacpp", "provider: local") from None
    return xllamacpp


def start_server(model: str, *, context_tokens: int = DEFAULT_CONTEXT_TOKENS, threads: int = 0) -> Any:
    """Load a model; the result has `handle_chat_completions`, and an OpenAI-compatible API on loopback.

    Args:
        model: a registry name or the path of a GGUF file.
        context_tokens: the most tokens of prompt and answer together.
        threads: CPU threads, 0 for the number of usable cores, at most 8.

    Raises:
        ModelFileError: the file does not exist, or is not a model.
    """
    path = weights.find(model)
    xllamacpp = load_xllamacpp()
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {path.stem}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.port = 0  # any free one
    params.ui = False
    params.verbosity = _QUIET
    count = threads or min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    params.cpuparams.n_threads = count
    params.cpuparams_batch.n_threads = count
    try:
        server = xllamacpp.Server(params)
        # A server that is deleted before it listens never ends; an answered call proves that it listens.
        server.handle_chat_completions({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
        return server
    except RuntimeError as error:
        raise ModelFileError(
            f"{path} could not be loaded: {str(error) or 'not a GGUF model, or too little memory'}."
        ) from None


@dataclass(slots=True, weakref_slot=True)
class Local:
    """Answers requests with models in this process."""

    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    threads: int = 0
    _models: dict[str, _Model] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _closed: bool = False

    def __post_init__(self) -> None:
        after_fork(self._in_child)

    def _in_child(self) -> None:
        """Start without models: the threads that run them are the parent's."""
        for model in self._models.values():
            keep_for_ever(model)
        self._models, self._lock = {}, threading.Lock()

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request. A call that cannot begin in time never begins; a running one ends at `max_tokens`."""
        payload = await in_thread(lambda: self._model(request).ask(_body(request), request, timeout_s))
        return payload if request.chat is None else with_tool_calls(payload, request.chat)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield chunks as the model writes them; a request with tools is answered in one piece."""
        if request.chat is not None and request.chat.tools:
            yield await self.complete(request, timeout_s)
            return
        body = _body(request) | {"stream": True, "stream_options": {"include_usage": True}}
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[Payload | None]()

        def take(chunk: Payload | None) -> None:
            with suppress(RuntimeError):  # the reader's loop was closed
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        def write() -> None:
            try:
                self._model(request).ask(body, request, timeout_s, take)
            finally:
                take(None)

        writing = asyncio.ensure_future(in_thread(write))
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            await writing
        finally:
            writing.cancel()

    async def close(self) -> None:
        """Unload the models."""
        await in_thread(self._unload)

    def _unload(self) -> None:
        with self._lock:
            self._closed = True
            self._models.clear()

    def _model(self, request: Request) -> _Model:
        with self._lock:
            if self._closed:
                raise ProviderUnavailableError(f"{request.model}: this provider was closed.", model=request.model)
            model = self._models.get(request.wire_model)
            if model is None:
                server = start_server(request.wire_model, context_tokens=self.context_tokens, threads=self.threads)
                model = self._models[request.wire_model] = _Model(server)
            return model


class _Model:
    """One loaded model and its queue."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._busy = threading.Lock()

    def ask(self, body: dict[str, Any], request: Request, timeout_s: float, take: Any = None) -> Payload:
        if not self._busy.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise ProviderTimeoutError(
                f"{request.model} was busy for {timeout_s:.1f} s.", model=request.model, billed="no"
            )
        # The engine reads special tokens in any text, even inside a message; only the chat template may write them.
        data = map_json(body["messages"], lambda value: broken_up(value) if isinstance(value, str) else value)
        body = body | {"messages": data}
        try:
            arguments = (body,) if take is None else (body, take)
            answer = self._server.handle_chat_completions(*arguments)
        except (ValueError, TypeError) as error:
            raise BadRequestError(f"{request.model} refused the request: {error}.", model=request.model) from None
        except RuntimeError as error:
            raise BadResponseError(f"{request.model} failed: {error}.", model=request.model) from None
        finally:
            self._busy.release()
        return answer if isinstance(answer, dict) else {}


def _body(request: Request) -> dict[str, Any]:
    """Return a body that llama.cpp answers well: without `tool_choice: required`, which makes it write garbage."""
    body = wire_body(request, request.wire_model)
    if request.chat is None:
        return body
    if body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), Mapping):
        body["tool_choice"] = "auto"
    if not request.chat.tools:
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    return body


def create(settings: ProviderSettings) -> Local:
    """Return the provider; no model is loaded yet. Raises MissingExtraError if xllamacpp is not installed."""
    load_xllamacpp()
    return Local(**settings.options)
