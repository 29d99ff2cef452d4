"""The settings that name a policy directory in place of a policy."""

from __future__ import annotations

from typing import Literal, NoReturn

from pydantic import Field

from cascade.errors import UsageError
from cascade.policies.config import PolicyConfig


class DirectoryConfig(PolicyConfig):
    """A policy directory, as `cascade calibrate` writes it: a policy with the thresholds that were certified for it."""

    kind: Literal["directory"]
    path: str = Field(min_length=1)

    def build(self) -> NoReturn:
        """Refuse: a directory is read, with its files and certificates, by `factory.read_policy`.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.path} is a policy directory: read it with cascade.factory.read_policy.")
