"""`cascade fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade.api.fitting import FitResult, fit
from cascade.api.promises import KIND
from cascade.cli.main import Shown, command, flag, say
from cascade.training.portfolio import METHODS, method_named, method_written

if TYPE_CHECKING:  # loaded where a network is trained
    from cascade.training.networks.progress import Progress, Tell

_METHODS_SAID = ", ".join(map(method_written, METHODS))


def _fit(**given: Any) -> FitResult:
    @contextmanager
    def working(said: str) -> Iterator[Tell]:
        with Shown(said) as shown, ended_gently(given["networks"].checkpoint):
            yield partial(show_training, shown)

    return fit(**given, working=working, tell=say)


fit_log = command(
    fit,
    "cascade fit episodes.parquet --alpha 0.1 -o policy",
    flags={
        "output": flag(
            *("--output", "-o"),
            kind=str,  # no Path: an empty text would be the current folder
            required=True,
            metavar="PATH",
            help="The policy directory to write.",
        ),
        "policy": flag(
            callback=method_named,
            help=f"The kind of policy: {_METHODS_SAID}. auto compares all but networks (--networks) and takes the "
            "simplest that does as well as the best.",
        ),
        "guarantee": flag(help=KIND),
        "levels": flag(metavar="NAME=ALPHA,…"),
        "default_level": flag(metavar="NAME"),
        "network_config": flag(metavar="FILE"),
        "steps": flag(),
        "checkpoint": flag(metavar="DIR"),
        "every": flag("--checkpoint-every", min=1),
    },
    call=_fit,
)


def show_training(shown: Shown, now: Progress) -> None:
    """Show how far the training of a network is."""
    said = f"covered {100 * now.coverage:.1f} %, kappa {now.kappa:.3g}, cost {now.cost:.3g} steps"
    shown.tell(f"training {now.method}", now.step, now.steps, said)
    if now.step == now.steps:
        shown.rest()


@contextmanager
def ended_gently(checkpoint: Path | None) -> Iterator[None]:
    """Treat SIGTERM like an interrupt, so that the checkpoint of the last step is written; print how to resume."""
    if checkpoint is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        from cascade.training.networks.progress import CHECKPOINT_FILE

        if (checkpoint / CHECKPOINT_FILE).exists():
            say(f"stopped; the same command with --checkpoint {checkpoint} --resume continues from here")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
