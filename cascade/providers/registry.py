"""Providers by name, loaded when they are first needed: built in, from an entry point, or a user's own factory.

Also the inputs of a provider: its options, and each model's `Endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cascade.checks import shown_name
from cascade.errors import ConfigError, UsageError
from cascade.providers.base import Provider
from cascade.registry import Registry, callable_alone

OPENAI_BASE = "https://api.openai.com/v1"
LITELLM, OPENAI_HTTP, LOCAL, REPLAY, FAKE = "litellm", "openai_http", "local", "replay", "fake"
"""The built-in kinds. `REPLAY` replays a log, including the calls of verifiers."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model, its key, the vendor's name of the model, and the dialect of a decision model.

    The key never appears in a repr.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    dialect: str | None = None

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own API, at OpenAI or at Azure."""
        host = urlsplit(self.base_url or OPENAI_BASE).hostname or ""
        return host.endswith((".openai.com", ".openai.azure.com"))


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The inputs of a provider: its options, and an endpoint per `Request.site` ("": all others)."""

    options: Mapping[str, Any]
    endpoints: Mapping[str, Endpoint]


Factory = Callable[[ProviderSettings], Provider]


PROVIDERS: Registry[Factory] = Registry(
    "provider",
    "cascade.providers",
    {
        LITELLM: "cascade.providers.litellm:create",
        OPENAI_HTTP: "cascade.providers.openai_http:create",
        LOCAL: "cascade.providers.local:create",
        REPLAY: "cascade.providers.replay:create",
        FAKE: "cascade.providers.fake:create",
    },
    callable_alone,
    by_place=True,
)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    LITELLM: (),
    OPENAI_HTTP: (),
    LOCAL: ("context_tokens", "threads"),
    REPLAY: ("path",),
    FAKE: ("replies",),
}
"""The options of the built-in providers. Any other provider checks its own."""
DECIDING = frozenset({OPENAI_HTTP, LITELLM, REPLAY, FAKE})  # they pass on the dialects of decision models


def create(kind: str, settings: ProviderSettings) -> Provider:
    """Make the provider called `kind`.

    Raises:
        ConfigError: the provider does not exist, or cannot be imported; the message lists the known ones.
        MissingExtraError: its package is not installed; the message has the pip command.
    """
    try:
        factory = PROVIDERS.find(kind)
    except UsageError as error:
        raise ConfigError([f"provider: {error}"]) from None
    if factory is None:
        listed = ", ".join(PROVIDERS.names)
        raise ConfigError([f"provider: there is no provider {shown_name(kind)}; known are {listed}"])
    return factory(settings)
