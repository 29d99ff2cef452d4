"""Reads untrusted YAML: limited in size and depth, without object tags, aliases or duplicate keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cascade.errors import ConfigError, quote
from cascade.safety import read_bounded

MAX_FILE_BYTES = 1_000_000
REFUSE_ALIASES = True
MAX_DEPTH = 20
MAX_NODES = 10_000
"""The maximum number of names and values in a file; a configuration with a hundred models has a tenth of that."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses aliases (they can expand exponentially) and stops at `MAX_NODES`."""

    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise yaml.YAMLError(f"it has more than {MAX_NODES} names and values")
        if REFUSE_ALIASES and self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, str) and key in keys:
                raise yaml.YAMLError(f"{key!r} appears twice, the second time in line {key_node.start_mark.line + 1}")
            if isinstance(key, str):
                keys.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a YAML file safely: limited in size, without tags that create objects.

    Raises ConfigError if it is missing, too large, not YAML, or not a mapping.
    """
    source = str(path)
    try:
        data = read_bounded(path, MAX_FILE_BYTES, or_open_pipe=True)
        text = "" if data is None else data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([f"there is no file {path}; `cascade init` writes one"]) from None
    except OSError as error:
        raise ConfigError([f"it cannot be read: {error.strerror or error}"], source) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            [f"it cannot be read: {error.reason} at byte {error.start}; save it as UTF-8"], source
        ) from None
    if data is None:
        raise ConfigError([f"the file is larger than {MAX_FILE_BYTES} bytes"], source)
    return parse_yaml(text, source)


def parse_yaml(text: str, source: str) -> Mapping[str, Any]:
    """Read settings from YAML text, as safely as `read_yaml`; errors name `source`. Raises ConfigError."""
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError([f"it is not valid YAML: {_message(error)}"], source) from None
    if not isinstance(document, Mapping):
        raise ConfigError(["it holds no settings; `cascade init` writes an example"], source)
    if _depth(document) > MAX_DEPTH:
        raise ConfigError([f"it is nested deeper than {MAX_DEPTH} levels"], source)
    return document


def _message(error: Exception) -> str:
    """Return a YAML error's message without the quoted line, which may contain a key."""
    problem = getattr(error, "problem", None) or (str(error) if isinstance(error, yaml.YAMLError) else "")
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark else ""
    return f"{quote(problem) or 'a value that cannot be read'}{line}"


def _depth(value: object, level: int = 0) -> int:
    """Return the depth of a document, at most one more than is allowed."""
    if level > MAX_DEPTH or not isinstance(value, Mapping | list):
        return level
    inner = value.values() if isinstance(value, Mapping) else value
    return max((_depth(inside, level + 1) for inside in inner), default=level)
