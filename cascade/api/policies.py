"""Reads the policy that a command is given: a policy directory, settings, or a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from cascade.config.policies import DirectoryConfig, PolicyConfig
from cascade.errors import ConfigError, UsageError
from cascade.files import damaged, there
from cascade.policies.directory import CERTIFICATE_FILE, POLICY_FILE, PolicyDirectory

PolicyGiven: TypeAlias = str | PathLike[str] | Mapping[str, Any]
"""A policy directory, a configuration file, or a policy's settings, as YAML in braces or as a mapping."""


def settings_of(policy: PolicyGiven) -> PolicyConfig:
    """Return the settings of a policy: as they are, those of a configuration, or what names a directory.

    Raises:
        UsageError: there is no such file.
        ConfigError: lists every problem with it.
    """
    from cascade.config import load, policy_section
    from cascade.config.yamlfile import parse_yaml

    if isinstance(policy, Mapping) or str(policy).lstrip().startswith("{"):
        return policy_section(policy if isinstance(policy, Mapping) else parse_yaml(str(policy), "--policy"))
    path = Path(policy)
    if path.is_dir():
        return DirectoryConfig(kind="directory", path=str(path))
    if not path.is_file():
        raise UsageError(
            f"There is no file or folder '{policy}', nor is it a policy such as {{kind: uala, threshold: 0.3}}."
        )
    if path.name in {POLICY_FILE, CERTIFICATE_FILE}:
        raise UsageError(f"{policy} is a file of a policy directory; name the directory: --policy {path.parent}")
    return load(path).policy


def read_directory(path: Path) -> PolicyDirectory:
    """Read a policy directory.

    Raises:
        UsageError: the folder is not a policy directory.
        ConfigError: lists every problem with it, also files that were changed.
    """
    try:
        present = there(path / POLICY_FILE)
    except ConfigError as error:
        raise damaged(error) from None
    if not present:
        make = "cascade fit LOG --promise agreement --confidence 0.9"
        raise UsageError(f"{path} is not a policy directory: it has no {POLICY_FILE}. Make one with: {make} -o {path}")
    return PolicyDirectory.read(path)
