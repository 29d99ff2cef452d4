"""Reads the policy that a command is given: a policy directory, settings, or a configuration file; and `Policy`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from cascade.api.output import Result, plain_text
from cascade.config.policies import DirectoryConfig, PolicyConfig
from cascade.conformal.certificate import Certificate
from cascade.errors import ConfigError, UsageError
from cascade.files import damaged, there
from cascade.policies.directory import CERTIFICATE_FILE, POLICY_FILE, PolicyDirectory

PolicyGiven: TypeAlias = str | PathLike[str] | Mapping[str, Any]
"""A policy directory, a configuration file, or a policy's settings, as YAML in braces or as a mapping."""


def settings_of(given: PolicyGiven) -> PolicyConfig:
    """Return the settings of a policy: as they are, those of a configuration, or what names a directory.

    Raises:
        UsageError: there is no such file.
        ConfigError: lists every problem with it.
    """
    from cascade.config import load, policy_section
    from cascade.config.yamlfile import parse_yaml

    if isinstance(given, Mapping) or str(given).lstrip().startswith("{"):
        return policy_section(given if isinstance(given, Mapping) else parse_yaml(str(given), "--policy"))
    path = Path(given)
    if path.is_dir():
        return DirectoryConfig(kind="directory", path=str(path))
    if not path.is_file():
        raise UsageError(
            f"There is no file or folder '{given}', nor is it a policy such as {{kind: threshold, threshold: 0.3}}."
        )
    if path.name in {POLICY_FILE, CERTIFICATE_FILE}:
        raise UsageError(f"{given} is a file of a policy directory; name the directory: --policy {path.parent}")
    return load(path).policy


def current_directory(path: Path) -> PolicyDirectory:
    """Read a policy directory. Raises as `policy_directory`."""
    _check_there(path)
    return PolicyDirectory.read(path)


def _check_there(path: Path) -> None:
    try:
        found = there(path / POLICY_FILE)
    except ConfigError as error:
        raise damaged(error) from None
    if not found:
        raise UsageError(f"{path} is not a policy directory: it has no {POLICY_FILE}. Make one with: {MAKE} -o {path}")


MAKE = "cascade fit LOG --promise agreement --confidence 0.9"


@dataclass(frozen=True, slots=True)
class Policy(Result):
    """A policy directory: a policy with its certificates, as `fit` wrote it."""

    directory: PolicyDirectory

    @classmethod
    def load(cls, directory: str | Path) -> Policy:
        """Read a policy directory.

        Raises:
            UsageError: the folder is not a policy directory.
            ConfigError: lists every problem with it, also files that were changed.
        """
        return cls(current_directory(Path(directory)))

    def save(self, directory: str | Path) -> None:
        """Write the policy directory byte for byte as it was read.

        Raises:
            UsageError: it cannot be written.
        """
        self.directory.write(Path(directory))

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates: one for all requests, or one for each segment or level; empty if there are none."""
        return tuple(self.directory.certificates.values())

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        yield Text(f"policy: {plain_text(self.directory.policy.kind)}", style="bold")
        yield from (Text(plain_text(each.statement())) for each in self.certificates)
        if not self.certificates:
            yield Text("It has no certificate.")

    def to_dict(self) -> dict[str, Any]:
        """Return its kind and its certificates as plain values."""
        return {"kind": self.directory.policy.kind, "certificates": [each.document for each in self.certificates]}
