"""Providers by name, loaded when they are first asked for: built in, or an installed package's entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cascade.checks import shown_name
from cascade.errors import ConfigError, UsageError
from cascade.providers.base import Provider
from cascade.providers.exchange import CERTIFI_ALONE, Endpoint, Trusted
from cascade.registry import Registry, callable_alone


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """What a provider is made from: its options, an endpoint per model name ("" for all others), and whom it trusts."""

    options: Mapping[str, Any]
    endpoints: Mapping[str, Endpoint]
    trusted: Trusted = CERTIFI_ALONE


Factory = Callable[[ProviderSettings], Provider]


PROVIDERS: Registry[Factory] = Registry(
    "provider",
    "cascade.providers",
    {
        "litellm": "cascade.providers.litellm:create",
        "openai_http": "cascade.providers.openai_http:create",
        "local": "cascade.providers.local:create",
        "replay": "cascade.providers.replay:create",
        "fake": "cascade.providers.fake:create",
    },
    callable_alone,
)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "litellm": (),
    "openai_http": (),
    "local": ("context_tokens", "threads"),
    "replay": ("path",),
    "fake": ("replies",),
}
"""The options of the built-in providers. An installed provider checks its own."""


def create(kind: str, settings: ProviderSettings) -> Provider:
    """Make the provider called `kind`.

    Raises:
        ConfigError: there is none of that name, or it cannot be imported; the message lists those there are.
        MissingExtraError: its package is not installed; the message holds the pip command.
    """
    try:
        factory = PROVIDERS.find(kind)
    except UsageError as error:
        raise ConfigError([f"provider: {error}"]) from None
    if factory is None:
        listed = ", ".join(PROVIDERS.names)
        raise ConfigError([f"provider: there is no provider {shown_name(kind)}; known are {listed}"])
    return factory(settings)
