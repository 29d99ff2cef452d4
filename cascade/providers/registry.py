"""Providers by name, loaded when they are first asked for: built in, or an installed package's entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from cascade.checks import shown_name
from cascade.errors import ConfigError
from cascade.providers.base import Provider
from cascade.providers.exchange import Endpoint

ENTRY_POINT_GROUP = "cascade.providers"


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """What a provider is made from: its options, and an endpoint per model name ("" for all others)."""

    options: Mapping[str, Any]
    endpoints: Mapping[str, Endpoint]


Factory = Callable[[ProviderSettings], Provider]


OPTIONS: Mapping[str, tuple[str, ...]] = {
    "litellm": (),
    "openai_http": (),
    "local": ("context_tokens", "threads"),
    "replay": ("path",),
    "fake": ("replies",),
}
"""The options of the built-in providers. An installed provider checks its own."""


def names() -> tuple[str, ...]:
    """Return every provider that can be named, built in or installed."""
    return (*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP)))


def create(kind: str, settings: ProviderSettings) -> Provider:
    """Make the provider called `kind`.

    Raises:
        ConfigError: there is none of that name; the message lists those there are.
        MissingExtraError: its package is not installed; the message holds the pip command.
    """
    if kind in _BUILT_IN:
        return _BUILT_IN[kind](settings)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == kind:
            made: Provider = point.load()(settings)
            return made
    raise ConfigError([f"provider: there is no provider {shown_name(kind)}; known are {', '.join(names())}"])


def _litellm(settings: ProviderSettings) -> Provider:
    from importlib.util import find_spec

    from cascade.errors import MissingExtraError
    from cascade.providers.litellm import LiteLLM

    if find_spec("litellm") is None:
        raise MissingExtraError("litellm", "provider: litellm")
    return LiteLLM(settings.endpoints)


def _openai_http(settings: ProviderSettings) -> Provider:
    from cascade.providers.openai_http import OpenAIHTTP

    return OpenAIHTTP(settings.endpoints)


def _local(settings: ProviderSettings) -> Provider:
    from cascade.providers.local import Local, load_xllamacpp

    load_xllamacpp()
    return Local(**settings.options)


def _replay(settings: ProviderSettings) -> Provider:
    from cascade.providers.replay import Replay

    return Replay.open(str(settings.options["path"]))


def _fake(settings: ProviderSettings) -> Provider:
    from cascade.providers.fake import FakeProvider

    return FakeProvider(settings.options.get("replies"))


_BUILT_IN: Mapping[str, Factory] = {
    "litellm": _litellm,
    "openai_http": _openai_http,
    "local": _local,
    "replay": _replay,
    "fake": _fake,
}
