"""The command line: the program itself, and how a command prints.

Text for people, or one JSON document, goes to stdout. Everything else goes to stderr, including the progress of long
computations (`Meter`): one line that changes on a terminal, otherwise a line every ten seconds.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Iterable
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperGroup

from cascade._version import __version__
from cascade.errors import CascadeError, UsageError
from cascade.text import escaped, printable, wrapped

if TYPE_CHECKING:
    from cascade.reports.report import Report, Result


class SafeConsole(Console):
    """A console without markup that strips control codes from texts; its own colours are other segments."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with lines wrapped between words on a terminal, and unchanged elsewhere."""
        if self.is_terminal:
            objects = tuple([_broken(text, self.width) for text in objects])
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the output of a renderable, its texts passed through `printable`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def _broken(text: Any, width: int) -> Any:
    return "\n".join([wrapped(line, width) for line in text.split("\n")]) if isinstance(text, str) else text


class LogFormatter(logging.Formatter):
    """Formats a log line with `printable`, since it may quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable(super().format(record))


def console() -> Console:
    """Return the console for results."""
    return SafeConsole()


def notes() -> Console:
    """Return the console for everything but the result: progress, warnings, errors."""
    return SafeConsole(stderr=True)


def say(text: str) -> None:
    """Print a notice that the reader of a result must know, on stderr."""
    notes().print(text, style="yellow")


def print_result(result: Result, *, as_json: bool, details: bool | None = None) -> None:
    """Print a result, as text or as one JSON document; raise its error, if it has one."""
    print_json(result.to_dict()) if as_json else console().print(result.text(details=details, width=_width()))
    if result.error is not None:
        raise result.error


def print_report(report: Report, *, as_json: bool) -> None:
    """Print a report with its tables, or its document as JSON."""
    print_json(report.document) if as_json else console().print(report.text(details=True, width=_width()))


def _width() -> int | None:
    """Return the number of columns of the terminal; None if the output goes elsewhere, such as into a pipe."""
    return shutil.get_terminal_size((0, 0)).columns or None


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; control characters are written as escapes."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_number, allow_nan=False)
    sys.stdout.write(escaped(text) + "\n")


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_QUIET_S = 10.0
"""The least seconds between two lines of progress if there is no terminal."""


class Meter:
    """Shows how many parts of a task are done, and how many there are."""

    def __init__(self) -> None:
        self._out, self._printed = notes(), time.monotonic()
        self._line = self._out.status("")

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._out.is_terminal:
            self._line.stop()

    def tell(self, name: str, done: int, total: int, figure: str = "", *, always: bool = False) -> None:
        """Show the progress of a task, with a figure beside it; without a terminal, `always` prints it at once."""
        text = f"{name}: {done:,} of {total:,}{figure and f', {figure}'}"
        if self._out.is_terminal:
            self._line.update(Text(text))
        elif always or time.monotonic() - self._printed >= _QUIET_S:
            self._printed = time.monotonic()
            self._out.print(text)


# --- the program: its commands, each loaded by its name when it is called ---

PANELS = {
    "Begin": {
        "init": "setup:init",
        "demo": "demo:demo",
        "doctor": "doctor:doctor",
        "models": "setup:app",
        "prices": "setup:prices",
    },
    "Answer": {"ask": "answer:ask", "serve": "answer:serve"},
    "Log requests": {"collect": "logs:collect", "import": "logs:import_log", "traces": "logs:app"},
    "See what it saves": {"prove": "policies:prove", "compare": "policies:compare", "evaluate": "policies:evaluate"},
    "Learn and certify": {"fit": "policies:fit", "review": "review:review", "verify": "policies:verify"},
    "In service": {"promote": "policies:promote", "onboard": "policies:onboard"},
}
"""The module and the function of each command, by the panel of the help, in the order of the help."""
COMMANDS = {name: target for panel in PANELS.values() for name, target in panel.items()}
"""The module and the function of each command. A run imports only the module of its command."""


def loaded(name: str) -> Any:
    """Return a command by its name: a function, or an app of several commands."""
    module, _, function = COMMANDS[name].partition(":")
    return getattr(import_module(f"cascade.cli.{module}"), function)


STOPPED = 130
"""The exit code after Ctrl-C, as in shells (128 + SIGINT)."""


class _Commands(TyperGroup):
    """Imports the module of a command when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's interface
        if cmd_name not in COMMANDS:
            from cascade.checks import did_you_mean

            raise UsageError(f"There is no command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS)}")
        target = loaded(cmd_name)
        alone = target if isinstance(target, typer.Typer) else typer.Typer(add_completion=False)
        if alone is not target:
            alone.command(cmd_name)(target)
        command: Any = typer.main.get_command(alone)
        command.name = cmd_name
        command.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return command


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
    context: typer.Context,
    _version_option: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more on stderr.")] = False,
) -> None:
    """Set up what all commands share."""
    log_from(logging.INFO if verbose else logging.WARNING, timed=context.invoked_subcommand == "serve")


def log_from(level: int, *, timed: bool) -> None:
    """Log to stderr from a level on; `timed` adds the time to each line."""
    handler = logging.StreamHandler(sys.stderr)
    form = "%(asctime)s %(levelname)s %(message)s" if timed else "%(levelname)s %(message)s"
    handler.setFormatter(LogFormatter(form, "%Y-%m-%dT%H:%M:%S%z"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    logging.getLogger("cascade").setLevel(level)


def main() -> None:
    """Run the command line; print a `CascadeError`, or what the system refuses, as a message, and exit with a code."""
    try:
        app()
    except (CascadeError, OSError) as error:
        notes().print(f"error: {error}", style="red")
        sys.exit(getattr(error, "exit_code", 1))
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
