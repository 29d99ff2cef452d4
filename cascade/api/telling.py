"""How an act tells its caller what must be known before it has a result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

Tell: TypeAlias = Callable[[str], None]
"""Takes one sentence. The command line prints it on stderr."""


class CascadeWarning(UserWarning):
    """Something about a log or a call that the reader of its result must know."""


def warn(text: str) -> None:
    """Tell by a `CascadeWarning`: what the functions of the package do where no `tell` is given."""
    warnings.warn(text, CascadeWarning, stacklevel=3)
