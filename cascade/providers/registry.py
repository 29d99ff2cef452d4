"""Providers by name, loaded when they are first asked for: built in, or an installed package's entry point.

Also the inputs of a provider: its options, each model's `Endpoint`, and the certificates that it trusts (`Trusted`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cascade.checks import checked_key, shown_name
from cascade.errors import ConfigError, UsageError
from cascade.providers.base import Provider
from cascade.registry import Registry, callable_alone

OPENAI_BASE = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a model, its key, the vendor's name of the model, and the dialect of a decision model.

    The key is in no repr.

    Raises:
        ConfigError: the key has a character that is not allowed in an HTTP header.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    dialect: str | None = None

    def __post_init__(self) -> None:
        """Strip blanks and line ends from the key."""
        if self.api_key is not None:
            try:
                object.__setattr__(self, "api_key", checked_key(self.api_key, "the key"))
            except ValueError as error:
                raise ConfigError([f"api_key: {error}"]) from None

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own API, at OpenAI or at Azure."""
        host = urlsplit(self.base_url or OPENAI_BASE).hostname or ""
        return host.endswith((".openai.com", ".openai.azure.com"))


@dataclass(frozen=True, slots=True)
class Trusted:
    """Certificate authorities that are trusted besides certifi's: a file and folders of PEM files."""

    file: str | None = None
    folders: str | None = None

    def problems(self) -> list[str]:
        """Return the missing files and folders: OpenSSL silently ignores a missing folder."""
        lost = self.file is not None and not Path(self.file).is_file()
        problems = [f"SSL_CERT_FILE: there is no file {self.file}"] if lost else []
        missing = [one for one in (self.folders or "").split(os.pathsep) if one and not Path(one).is_dir()]
        return problems + [f"SSL_CERT_DIR: the folder {one} does not exist" for one in missing]


CERTIFI_ALONE = Trusted()


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The inputs of a provider: its options, an endpoint per `Request.site` ("": all others), trusted certificates."""

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
