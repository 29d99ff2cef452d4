"""The entry point of the command `cascade`. Ctrl-C ends it with one line and exit code 130, even during imports."""

from __future__ import annotations

import os
import signal
from functools import partial


def main() -> None:
    """Run the command line (`cli.main`)."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # it may also be ignored, as under nohup
        signal.signal(signal.SIGINT, _stop)
    from cascade.cli import main as command

    command.ready = partial(signal.signal, signal.SIGINT, before)
    command.main()


def _stop(*_: object) -> None:
    """Exit at once. Nothing has been written or paid; an exception raised during an import could be swallowed."""
    os.write(2, b"stopped\n")
    os._exit(130)
