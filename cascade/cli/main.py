"""The command line: how a command prints, and the program itself.

Text for people, or one JSON document, goes to stdout; everything else to stderr, the progress of a long computation
among it: a bar on a terminal, otherwise a line now and then (`Shown`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from typer.core import TyperGroup

from cascade._names import __version__
from cascade.api.output import plain, shown, spelled
from cascade.errors import CascadeError

if TYPE_CHECKING:
    from cascade.api.output import Result


class SafeConsole(Console):
    """A console that strips control codes from texts; its own colours and cursor movements are other segments."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the output of a renderable, its texts passed through `shown`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


class LogFormatter(logging.Formatter):
    """Formats a log line with `shown`, since it may quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return shown(super().format(record))


def console() -> Console:
    """Return the console for results."""
    return SafeConsole(highlight=False, soft_wrap=False)


def notes() -> Console:
    """Return the console for everything but the result: progress, warnings, errors."""
    return SafeConsole(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a sentence that the reader of a result must know, on stderr."""
    notes().print(plain(text), style="yellow", soft_wrap=True)


def print_result(result: Result, *, as_json: bool, details: bool = False) -> None:
    """Print a result, as text or as one JSON document; raise its error, if it has one.

    No line is broken: a command with a line break could not be run.
    """
    if as_json:
        print_json(result.to_dict())
    else:
        sys.stdout.write(f"{result.text(details=True) if details else result}\n")
    if result.error is not None:
        raise result.error


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; control characters are written as escapes."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_number, allow_nan=False)
    sys.stdout.write(spelled(text) + "\n")


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_QUIET_S = 10.0
"""Least seconds between two lines if there is no terminal."""


class Shown:
    """Progress by name: how many parts of each task are done, and how many there are."""

    def __init__(self, working: str = "") -> None:
        self._out = notes()
        self._bar: Progress | None = None
        self._said = time.monotonic()
        if self._out.is_terminal:
            parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*parts, TextColumn("{task.fields[said]}"), console=self._out, transient=True)
            self._task = self._bar.add_task(working, total=None, said="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, name: str, done: int, total: int, said: str = "", *, always: bool = False) -> None:
        """Show the progress of a task.

        Args:
            name: the task.
            done: how many of its parts are done.
            total: how many parts there are.
            said: a figure beside it.
            always: print a line even if one was printed just before.
        """
        if self._bar is not None:
            (task,) = self._bar.tasks
            if (task.description, task.total) != (plain(name), total) or done < task.completed:
                self._bar.remove_task(self._task)  # resetting it would keep its total
                self._task = self._bar.add_task(plain(name), total=total, said="")
            self._bar.update(self._task, completed=done, said=said)
        elif always or time.monotonic() - self._said >= _QUIET_S:
            self._said = time.monotonic()
            beside = f", {said}" if said else ""
            self._out.print(plain(f"{name}: {done:,} of {total:,}{beside}"), soft_wrap=True)


# --- the program: its commands, each loaded by its name when it is called ---

PANELS = {
    "Begin": {
        "init": "init:init",
        "demo": "demo:demo",
        "doctor": "doctor:doctor",
        "models": "models:app",
        "prices": "models:prices",
    },
    "Answer": {"ask": "ask:ask", "serve": "serve:serve"},
    "Log requests": {
        "collect": "collect:collect_log",
        "import": "import_:import_log",
        "traces": "traces:app",
    },
    "See what it saves": {
        "prove": "study:prove",
        "compare": "study:compare",
        "evaluate": "verbs:evaluate_log",
    },
    "Learn and certify": {
        "fit": "fit:fit_log",
        "review": "review:review_log",
        "verify": "verbs:verify_policy",
    },
    "In service": {
        "promote": "verbs:promote_policy",
        "onboard": "verbs:onboard_model",
    },
}
"""The module and the function of each command, by the panel of the help, in the order of the help."""
COMMANDS = {name: place for panel in PANELS.values() for name, place in panel.items()}
"""The module and the function of each command. A run imports only the module of its command."""


def loaded(name: str) -> Any:
    """Return a command by its name: a function, or an app of several commands."""
    module, _, function = COMMANDS[name].partition(":")
    return getattr(import_module(f"cascade.cli.{module}"), function)


STOPPED = 130
"""The exit code after Ctrl-C, as in shells (128 + SIGINT)."""
ready: Callable[[], object] = lambda: None  # noqa: E731 - `cli.start` sets another
"""Called when the modules of the command are loaded."""


class _Commands(TyperGroup):
    """Imports the module of a command when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's interface
        if cmd_name not in COMMANDS:
            return None
        found = loaded(cmd_name)
        alone = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
        if alone is not found:
            alone.command(cmd_name)(found)
        made: Any = typer.main.get_command(alone)
        made.name = cmd_name
        made.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return made


app = typer.Typer(
    name="cascade",
    help="Most of a strong language model's quality at a fraction of its cost, with a number on the risk.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"cascade {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    _version_option: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more on stderr.")] = False,
) -> None:
    """Set up what all commands share."""
    ready()
    level = logging.INFO if verbose else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    logging.getLogger("cascade").setLevel(level)


def main() -> None:
    """Run the command line; print each `CascadeError` as one message, and end with its exit code."""
    try:
        app()
    except CascadeError as error:
        notes().print(f"[bold red]error:[/] {plain(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _stop()
    except SystemExit as end:  # typer raises this on Ctrl-C without a message
        if end.code != STOPPED:
            raise
        _stop()


def _stop() -> NoReturn:
    notes().print("stopped")
    sys.exit(STOPPED)


if __name__ == "__main__":
    main()
