"""A YAML file read as if an enemy wrote it: bounded, without objects, without duplicate keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cascade.errors import ConfigError, redact

MAX_FILE_BYTES = 1_000_000
MAX_ALIASES = 50
"""More YAML aliases than this is a bomb, not a configuration (F66)."""


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses duplicate keys and floods of aliases."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > MAX_ALIASES:
                raise yaml.YAMLError(f"more than {MAX_ALIASES} aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if isinstance(key, str) and key in seen:
                raise yaml.YAMLError(f"{key!r} stands twice, the second time in line {key_node.start_mark.line + 1}")
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read a YAML file safely: bounded, without tags that make objects.

    Raises:
        ConfigError: it is missing, too large, not YAML, or not a mapping.
    """
    source = str(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError([f"the file is larger than {MAX_FILE_BYTES} bytes"], source)
        text = path.read_text("utf-8")
        document = yaml.load(text, _Loader)  # noqa: S506 - a subclass of the safe loader
    except FileNotFoundError:
        raise ConfigError([f"there is no file {path}; `cascade init` writes one"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"it cannot be read: {error}"], source) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError([f"it is not valid YAML: {' '.join(redact(str(error)).split())[:300]}"], source) from None
    if not isinstance(document, Mapping):
        raise ConfigError(["it holds no settings; `cascade init` writes an example"], source)
    return document
