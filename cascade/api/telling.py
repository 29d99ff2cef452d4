"""How an act tells its caller what must be known before it has a result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

logger = logging.getLogger("cascade")

Tell: TypeAlias = Callable[[str], None]
"""Takes one sentence. The command line prints it on stderr."""


def warn(text: str) -> None:
    """Tell the logger `cascade`: what the functions of the package do where no `tell` is given."""
    logger.warning("%s", text)
