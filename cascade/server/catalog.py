"""The models that a client sees (the cascade, its levels, each configured one); who answers for a name (`route`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.checks import did_you_mean
from cascade.config import CascadeConfig
from cascade.errors import ConfigError
from cascade.server.refusals import Refused


class Route(NamedTuple):
    """The target of a request: the cascade at one of its levels (None: the default), or one model alone."""

    level: str | None = None
    model: str | None = None

    @property
    def cascaded(self) -> bool:
        """Whether a policy decides who answers."""
        return self.model is None


@dataclass(frozen=True)
class Catalog:
    """Every model name that a client may request.

    Args:
        name: the cascade's name.
        models: the models of its ladder, the cheapest first; the last one is the guide.
        others: configured models that are not in the ladder.
        levels: the levels of its policy, the cheapest first.
        places: the models by their places in the configuration, the aliases that the clients of another gateway know.

    >>> catalog = Catalog("support", ("small", "large"), levels=("low",))
    >>> [*catalog.routes]
    ['support', 'support:low', 'small', 'large']
    >>> catalog.route("support", bypass=True)
    Route(level=None, model='large')
    """

    name: str
    models: tuple[str, ...]
    others: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    routes: Mapping[str, Route] = field(init=False)

    def __post_init__(self) -> None:
        """List the routes by their names."""
        levels = {f"{self.name}:{level}": Route(level=level) for level in self.levels}
        alone = {model: Route(model=model) for model in (*self.models, *self.others)}
        named = {self.name: Route(), **levels, **alone}
        aliases = {place: Route(model=model) for place, model in self.places.items() if place not in named}
        object.__setattr__(self, "routes", named | aliases)

    @classmethod
    def of(cls, config: CascadeConfig, levels: Iterable[str]) -> Catalog:
        """Return the catalog of a configuration.

        Raises:
            ConfigError: no chat request can be served with it; lists every problem.
        """
        problems = list(_problems(config))
        if problems:
            raise ConfigError(problems)
        ladder = tuple(config.models[entry].model for entry in config.strategy.entries)
        others = dict.fromkeys(entry.model for entry in config.models.values() if entry.model not in ladder)
        places = {place: entry.model for place, entry in config.models.items()}
        return cls(config.server.name, ladder, tuple(others), tuple(levels), places)

    @property
    def guide(self) -> str:
        """The model that savings are compared with, and that answers requests which bypass the cascade."""
        return self.models[-1]

    def route(self, name: object, *, bypass: bool = False) -> Route:
        """Return the route of a model name.

        Args:
            name: the model name in the request.
            bypass: whether the guide answers instead of the cascade.

        Raises:
            Refused: there is no such model (404), or the request names none (400).
        """
        if not isinstance(name, str) or not name:
            raise Refused(400, f"model is missing; known: {', '.join(self.routes)}", param="model")
        if name not in self.routes:
            raise Refused(
                404,
                f"The model {name[:100]!r} does not exist: ask for {self.name}, or set server.name to the name that "
                f"the application asks for{did_you_mean(name[:100], self.routes)}",
                code="model_not_found",
                param="model",
            )
        found = self.routes[name]
        return Route(model=self.guide) if bypass and found.cascaded else found

    def listing(self) -> dict[str, Any]:
        """Return all models in OpenAI's form."""
        return {"object": "list", "data": [self.entry(name) for name in self.routes]}

    def entry(self, name: str) -> dict[str, Any]:
        """Return one model in OpenAI's form. Raises Refused (404) if it does not exist."""
        route = self.route(name)
        return {"id": name, "object": "model", "created": 0, "owned_by": "cascade" if route.cascaded else "provider"}


def _problems(config: CascadeConfig) -> Iterable[str]:
    """Yield why chat requests cannot be served with a configuration."""
    why = config.strategy.no_chat
    if why is not None:
        yield f"strategy: {why}; use strategy: {{kind: ladder, models: […]}}"
    for place, entry in config.models.items():
        if entry.model == config.server.name:
            yield f"server.name: models.{place} is called {entry.model}, too; give the cascade another name"
