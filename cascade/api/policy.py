"""A policy directory as an object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.output import Result, plain_text
from cascade.api.policies import policy_directory
from cascade.factory import HeldPolicy
from cascade.guarantees.certificate import statement, to_document
from cascade.policies import base
from cascade.policies.artifact import write
from cascade.types import Certificate


@dataclass(frozen=True, slots=True)
class Policy(Result):
    """A policy with its certificates, as `fit` or `calibrate` wrote it.

    Attributes:
        held: the contents of its directory.
    """

    held: HeldPolicy

    @classmethod
    def load(cls, directory: str | Path) -> Policy:
        """Read a policy directory; if it has levels, the default level.

        Raises:
            UsageError: the folder is no policy directory.
            ConfigError: lists every problem with it, also files that were changed.
        """
        return cls(policy_directory(Path(directory)))

    def save(self, directory: str | Path) -> None:
        """Write the policy directory byte for byte as it was read, without the model card.

        Raises:
            UsageError: it cannot be written.
        """
        write(Path(directory), self.held.artifact)

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The promises: a certificate for each segment; empty if there are none."""
        return tuple(self.held.artifact.certificates)

    @property
    def deciding(self) -> base.Policy:
        """The policy as it serves, at its certified thresholds."""
        return self.held.deciding

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield what is printed, for a terminal of so many columns."""
        yield Text(f"policy: {plain_text(self.held.section.kind)}", style="bold")
        yield from (Text(plain_text(statement(one))) for one in self.certificates)
        if not self.certificates:
            yield Text("It has no certificate.")

    def to_dict(self) -> dict[str, Any]:
        """Return its kind and its certificates as plain values."""
        return {"kind": self.held.section.kind, "certificates": [to_document(one) for one in self.certificates]}
