"""`fit` of policy networks: what is asked of them, checked, and how far their training is."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cascade.cli.options import method_written
from cascade.cli.output import notes, plain
from cascade.cli.problems import Problems
from cascade.config.problems import problems_behind, problems_in
from cascade.config.yamlfile import read_yaml
from cascade.errors import ConfigError, UsageError
from cascade.policies.files import writable
from cascade.policies.learned import NETWORKS
from cascade.training.choice.portfolio import AUTO
from cascade.training.networks import progress
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.keeping import CALLED, CHECKPOINT_FILE, EVERY, OPTION, Checkpoints
from cascade.training.networks.trainer import BARE, Networks, require_torch

Offered = Annotated[
    bool,
    typer.Option(
        "--networks",
        help="Offer --policy auto two policy networks, CCPO and CPO batch. Each is trained five times, for seconds to "
        "minutes each. Needs the extra train.",
    ),
]
NetworkConfig = Annotated[
    Path | None,
    typer.Option("--network-config", metavar="FILE", help="How networks are trained, YAML or JSON: docs/networks.md."),
]
Steps = Annotated[int | None, typer.Option("--steps", help="Steps that networks are trained for. By default 1,000.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where networks are trained: cpu, or cuda, which does not give the same bytes every time. By default cpu.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Keep the training of one network there, to go on with."),
]
CheckpointEvery = Annotated[
    int | None, typer.Option("--checkpoint-every", min=1, help=f"Steps between checkpoints. By default {EVERY}.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from --checkpoint, if one is there, to the same bytes in the end.")
]
_WORKING = "choosing, fitting and certifying"


class NetworksAsked(NamedTuple):
    """What is asked of policy networks, as given."""

    offered: bool = False
    config: Path | None = None
    steps: int | None = None
    device: str | None = None
    checkpoint: Path | None = None
    every: int | None = None
    resume: bool = False

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        there = {"--networks": self.offered, "--network-config": self.config is not None}
        there |= {"--steps": self.steps is not None, "--device": self.device is not None}
        there |= {"--checkpoint": self.checkpoint is not None, "--checkpoint-every": self.every is not None}
        return [name for name, one in (there | {"--resume": self.resume}).items() if one]

    def networks(self, config: CCPOConfig | None, tell: progress.Tell) -> Networks:
        """Return what trains them."""
        kept = None
        if self.checkpoint is not None:
            kept = Checkpoints(self.checkpoint, self.every or EVERY, self.resume, _say)
        return Networks(config, offered=self.offered, checkpoints=kept, tell=tell)


def _say(text: str) -> None:
    notes().print(plain(text), soft_wrap=True)


def wanted_config(problems: Problems, given: NetworksAsked, method: str) -> CCPOConfig | None:
    """Return how networks are to be trained; None where none are, or all that is wrong with it is noted."""
    used = method in NETWORKS or (method == AUTO and given.offered)
    for said in _conflicts(given, method, used=used):
        problems.add(said)
    config = problems.of(lambda: _config(given))
    if used and config is not None:
        problems.of(lambda: require_torch(config.device))
    if given.checkpoint is not None:
        with problems.noted():
            _check_checkpoint(given.checkpoint, resume=given.resume)
    return config if used else None


def _conflicts(given: NetworksAsked, method: str, *, used: bool) -> Iterator[str]:
    """Yield which options do not go with each other."""
    if given.offered and method in NETWORKS:
        named = method_written(method)
        yield f"--networks offers networks to --policy auto, and --policy {named} is one; leave it out."
    elif given.options and not used:
        several = f"{', '.join(given.options)} {'is' if len(given.options) == 1 else 'are'}"
        named = ", ".join(map(method_written, NETWORKS))
        yield f"{several} of policy networks: --policy {named}, or auto with --networks."
    if given.checkpoint is not None and method == AUTO:
        yield "--checkpoint keeps the training of one network, and auto trains several: name one, as --policy ccpo."
    if given.checkpoint is None and (given.resume or given.every is not None):
        yield "--resume and --checkpoint-every go with --checkpoint DIR."


def _check_checkpoint(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that cannot be written, or where the checkpoint of another run stands."""
    writable(folder, CALLED, OPTION)
    if not resume and (folder / CHECKPOINT_FILE).exists():
        raise UsageError(f"{folder} holds a checkpoint: --resume goes on from it; or choose another --checkpoint.")


def _config(given: NetworksAsked) -> CCPOConfig:
    """Return the settings: those of the file, and those that were given beside it.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    document: dict[str, Any] = {} if given.config is None else dict(_document(given.config))
    document |= {} if given.steps is None else {"steps": given.steps}
    document |= {} if given.device is None else {"device": given.device}
    try:
        return CCPOConfig.model_validate(document)
    except ValidationError as error:
        found = [*problems_in(CCPOConfig, document, error), *problems_behind(CCPOConfig, document, error)]
        source = "the settings of networks" if given.config is None else str(given.config)
        raise ConfigError(dict.fromkeys(found), source) from None


def _document(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"There is no file {path} with settings of networks.")
    return read_yaml(path, "docs/networks.md has an example")


def bare_conflicts(method: str, there: dict[str, bool]) -> Iterator[str]:
    """Yield what does not go with a network that carries no certificate, by the names of the options."""
    besides = [name for name, given in there.items() if given]
    if method in BARE and besides:
        yield (
            f"--policy {method_written(method)} carries no certificate, and {', '.join(besides)} "
            f"{'is' if len(besides) == 1 else 'are'} of one; leave out, or take --policy cpo-batch or ccpo."
        )


# --- how far it is ---

_QUIET_S = 10.0
"""How long to be silent between two lines where there is no terminal."""
_REDRAWN_S = 0.1


class Showing:
    """How far a fit is, on stderr: a bar while a network is trained on a terminal, a line now and then elsewhere."""

    def __init__(self, working: str = _WORKING) -> None:
        self._out, self._working = notes(), working
        self._bar: Progress | None = None
        self._said, self._last = time.monotonic(), 0
        if self._out.is_terminal:
            parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*parts, TextColumn("{task.fields[said]}"), console=self._out, transient=True)
            self._task = self._bar.add_task(working, total=None, said="")  # what it does when it trains nothing

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, now: progress.Progress) -> None:
        """Show how far the training of a network is."""
        anew, self._last = now.step <= self._last or not self._last, now.step
        if self._bar is not None and anew:
            self._replace(f"training {now.method}", now.steps, now.step - 1)
        ended = now.step == now.steps
        since = time.monotonic() - self._said
        if since < (_QUIET_S if self._bar is None else _REDRAWN_S) and not (ended and self._bar is not None):
            return
        self._said = time.monotonic()
        if self._bar is None:
            said = f"training {now.method}: step {now.step:,} of {now.steps:,}, {_figures(now)}"
            self._out.print(plain(said), soft_wrap=True)
        else:
            self._bar.update(self._task, completed=now.step, said=_figures(now))
            if ended:
                self._replace(self._working, None, 0)

    def _replace(self, description: str, total: int | None, completed: int) -> None:
        """Show something else; a task that is reset would keep its total."""
        assert self._bar is not None  # noqa: S101 - there is a terminal
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=total, completed=completed, said="")


def _figures(now: progress.Progress) -> str:
    return f"covered {100 * now.coverage:.1f} %, kappa {now.kappa:.3g}, cost {now.cost:.3g} steps"


@contextmanager
def ended_gently(given: NetworksAsked) -> Iterator[None]:
    """Let SIGTERM end the program as an interrupt does, so that the checkpoint of the last step is written; say so."""
    if given.checkpoint is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (given.checkpoint / CHECKPOINT_FILE).exists():
            _say(f"stopped; the same command with --checkpoint {given.checkpoint} --resume goes on from here")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
