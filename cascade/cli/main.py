"""`cascade`: the commands, and their exit codes.

Exit codes: 0 done, 2 bad usage or bad input, 3 target infeasible or not certified, 4 budget exhausted, 5 provider
failed, 1 anything else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from cascade._names import __version__
from cascade.api.output import plain
from cascade.cli.output import LogFormatter, notes
from cascade.errors import CascadeError

PANELS = {
    "Begin": {
        "init": "init:init",
        "demo": "demo:app",
        "doctor": "doctor:doctor",
        "models": "models:app",
        "prices": "prices:prices",
    },
    "Answer": {"ask": "ask:ask", "serve": "serve:serve"},
    "Log requests": {"collect": "collect:collect_log", "import": "import_:import_log", "traces": "traces:app"},
    "See what it saves": {
        "prove": "prove:prove_logs",
        "compare": "compare:compare_log",
        "evaluate": "compare:evaluate_log",
    },
    "Learn and certify": {
        "fit": "fit:fit_log",
        "calibrate": "calibrate:calibrate_log",
        "review": "review:review_log",
        "verify": "verify:verify_log",
    },
    "In service": {
        "promote": "promote:promote_cascade",
        "monitor": "monitor:monitor_log",
        "onboard": "onboard:onboard_model",
    },
}
"""The module and the function of each command, by the panel of the help, in the order of the help."""
COMMANDS = {name: place for panel in PANELS.values() for name, place in panel.items()}
"""The module and the function of each command. A run imports only the module of its command."""


STOPPED = 130
"""The exit code after Ctrl-C, as of every shell."""
ready: Callable[[], object] = lambda: None  # noqa: E731 - `cli.start` sets another
"""Called when the modules of the command are loaded."""


class _Commands(TyperGroup):
    """Imports the module of a command when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's interface
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(f"cascade.cli.{module}"), name)
        alone = found if isinstance(found, typer.Typer) else typer.Typer(add_completion=False)
        if alone is not found:
            alone.command(cmd_name)(found)
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
    except SystemExit as end:  # typer makes one of Ctrl-C, and says nothing
        if end.code != STOPPED:
            raise
        _stop()


def _stop() -> NoReturn:
    notes().print("stopped")
    sys.exit(STOPPED)


if __name__ == "__main__":
    main()
