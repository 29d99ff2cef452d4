"""The model names that a client sees, what answers to each, and the request that a client's body and headers make."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, fields_in, objects_in, sendable
from cascade.checks import did_you_mean
from cascade.config import CascadeConfig
from cascade.errors import ConfigError
from cascade.server.dialects import Dialect
from cascade.server.errors import GatewayError


class Route(NamedTuple):
    """The target of a request: a cascade at one of its levels (None: the default), or just one of its models."""

    cascade: str
    level: str | None = None
    model: str | None = None

    @property
    def cascaded(self) -> bool:
        """Whether a policy decides which model answers."""
        return self.model is None


@dataclass(frozen=True)
class Catalog:
    """Every model name that a client may request of one cascade.

    Args:
        models: the models of its ladder, the cheapest first; the last one is the guide.
        others: configured models that are not in the ladder.
        levels: the levels of its policy, the cheapest first.
        aliases: models by their names in the configuration, which the clients of another gateway know.

    >>> catalog = Catalog("support", ("small", "large"), levels=("low",))
    >>> [*catalog.routes]
    ['support', 'support:low', 'small', 'large']
    """

    name: str
    models: tuple[str, ...]
    others: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def routes(self) -> Mapping[str, Route]:
        """The route of each name."""
        route = partial(Route, self.name)
        routes = {self.name: route(), **{f"{self.name}:{level}": route(level=level) for level in self.levels}}
        routes |= {model: route(model=model) for model in (*self.models, *self.others)}
        return routes | {alias: route(model=model) for alias, model in self.aliases.items() if alias not in routes}

    @classmethod
    def of(cls, config: CascadeConfig, levels: Iterable[str]) -> Catalog:
        """Return the catalog of a configuration. Raises ConfigError, with every problem, if it serves no chat."""
        why, name = config.strategy.no_chat, config.server.name
        problems = [] if why is None else [f"strategy: {why}; use strategy: {{kind: ladder, models: […]}}"]
        problems += [
            f"server.name: models.{alias} is called {name}, too; give the cascade another name"
            for alias, entry in config.models.items()
            if entry.id == name
        ]
        if problems:
            raise ConfigError(problems)
        models = {name: entry.id for name, entry in config.models.items() if entry.decides is None}  # others only judge
        ladder = tuple(models[entry] for entry in config.strategy.entries if entry in models)
        others = dict.fromkeys(model for model in models.values() if model not in ladder)
        return cls(name, ladder, tuple(others), tuple(levels), models)

    @property
    def guide(self) -> str:
        """The model against which savings are measured."""
        return self.models[-1]


class Names:
    """Every model name that a client may request of a server. If several cascades have a model, the first one gets it.

    Raises ConfigError if the name of a cascade means something else in another one.
    """

    def __init__(self, *catalogs: Catalog) -> None:
        names, self.routes = [catalog.name for catalog in catalogs], dict[str, Route]()
        counts = Counter(name for catalog in catalogs for name in catalog.routes)
        if twice := [name for name in dict.fromkeys(names) if counts[name] > 1]:
            advice = "is a name in several files; give the cascade another name"
            raise ConfigError(f"server.name: {name} {advice}" for name in twice)
        self.cascades = ", ".join(names)
        for catalog in catalogs:
            self.routes |= {name: route for name, route in catalog.routes.items() if name not in self.routes}

    def route(self, name: object) -> Route:
        """Return the route of a model name. Raises GatewayError if there is none (404), or none is named (400)."""
        if not isinstance(name, str) or not name:
            raise GatewayError(400, f"model is missing; known: {', '.join(self.routes)}", param="model")
        if name not in self.routes:
            message = (
                f"The model {name[:100]!r} does not exist: ask for {self.cascades}, or set server.name to the name "
                f"that the application asks for{did_you_mean(name[:100], self.routes)}"
            )
            raise GatewayError(404, message, code="model_not_found", param="model")
        return self.routes[name]

    def entry(self, name: str) -> dict[str, Any]:
        """Return one model in OpenAI's form. Raises GatewayError (404) if it does not exist."""
        owner = "cascade" if self.route(name).cascaded else "provider"
        return {"id": name, "object": "model", "created": 0, "owned_by": owner, "type": "model", "display_name": name}


class ClientRequest(NamedTuple):
    """One chat request.

    Attributes:
        name: the model that the client named.
        route: the cascade at one of its levels, or one model.
        chat: the request that is sent to the models.
        dialect: its form, in which it is answered.
        stream: whether the client reads server-sent events.
        explain: whether the response explains the answer step by step.
        deadline_s: how long the client waits; None if it does not say.
    """

    name: str
    route: Route
    chat: ChatRequest
    dialect: Dialect
    stream: bool = False
    explain: bool = False
    deadline_s: float | None = None

    @classmethod
    def of(cls, dialect: Dialect, headers: Mapping[str, str], names: Names) -> ClientRequest:
        """Read a request.

        Args:
            dialect: the form in which the client wrote the body, with the body.
            headers: by their names in lower case. `x-cascade-deadline-s`, `x-cascade-explain`, `x-cascade-group` and
                `x-cascade-segment` are read.
            names: those that the server has.

        Raises:
            GatewayError: there is no such model, or a field of the envelope is wrong.
            UsageError: the request cannot be sent to a model.
        """
        body = dialect.body
        route = names.route(body.get("model"))
        stream, options = body.get("stream"), body.get("stream_options")
        if not (stream is None or isinstance(stream, bool)):
            raise GatewayError(400, "stream must be true or false.", param="stream")
        if not (options is None or isinstance(options, Mapping)):
            raise GatewayError(400, "stream_options must be an object.", param="stream_options")
        group, segment = headers.get("x-cascade-group") or None, headers.get("x-cascade-segment") or None  # "": none
        chat = sendable(ChatRequest.from_openai(dialect.request(), group=group, segment=segment))
        files = (part.get("file") for turn in chat.messages for part in objects_in(turn.get("content")))
        if "file_id" in chat.canonical and any(fields_in(file).get("file_id") is not None for file in files):
            raise GatewayError(400, "A file_id names a file of the server's own account. Send the file's data.")
        explain = headers.get("x-cascade-explain", "").strip().lower() in {"1", "true", "yes", "on"}
        deadline_s = _seconds(headers.get("x-cascade-deadline-s"))
        return cls(body["model"], route, chat, dialect, bool(stream), explain, deadline_s)


def _seconds(written: str | None) -> float | None:
    """Return a header's number of seconds. Raises GatewayError if it is not a number above 0."""
    if written is None:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(written)) < math.inf:
            return seconds
    raise GatewayError(400, "x-cascade-deadline-s must be a number above 0.", param="x-cascade-deadline-s")
