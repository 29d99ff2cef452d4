"""The command line: how a command prints, how one is made from the function that it calls, and the program itself.

Text for people, or one JSON document, goes to stdout; everything else to stderr, the progress of a long computation
among it: a bar on a terminal, otherwise a line now and then (`Shown`).

A function's signature and docstring define each option of its command once: its name, type and default are those of the
parameter, its help is the parameter's line under "Args:". A command adds only what a signature does not say: a short
flag, bounds, another name (`Flag`).
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    Self,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from cascade._names import __version__
from cascade.api.output import Result, SafeConsole, plain, shown, spelled
from cascade.errors import CascadeError, NotCertifiedError

if TYPE_CHECKING:
    from cascade.api.output import Result


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


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result, as text for this terminal or as one JSON document."""
    if as_json:
        print_json(result.to_dict())
        return
    out = console()
    for part in result.parts(out.width):
        out.print(part, crop=False)  # a command with a line break could not be run


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


# --- a command made from its function ---

_TOLD = frozenset({"tell", "show", "working"})
"""Parameters that a command fills in itself."""
_MADE = {"report": "written"}
"""Parameters that name a file which the function makes, and how a line on stderr says so."""


class Flag(NamedTuple):
    """How a parameter is written on the command line, where its signature does not say it.

    Attributes:
        names: the flags, such as "--output" and "-o"; by default the parameter's name. Empty for an argument.
        kind: its type on the command line; by default the signature's.
        more: further settings of `typer.Option` or `typer.Argument`.
    """

    names: tuple[str, ...] = ()
    kind: Any = None
    more: Mapping[str, Any] = {}


def flag(*names: str, kind: Any = None, **more: Any) -> Flag:
    """Return how a parameter is written; see `Flag`."""
    return Flag(names, kind, more)


FLAGS: Mapping[str, Flag] = {
    "log": flag(metavar="episodes"),
    "output": flag("--output", "-o"),
    "config": flag("--config", "-c"),
    "models": flag(kind=str | None),
    "policy": flag("--policy"),
    "probes": flag(min=2),
    "seed": flag(min=0),
    "splits": flag(min=1),
    "steps": flag(min=1),
    "expires_days": flag(min=0),
    "concurrency": flag(min=1, max=1_000),
}
"""Parameters with the same flags in every command."""


def command(
    act: Callable[..., Any],
    example: str,
    *,
    flags: Mapping[str, Flag] | None = None,
    call: Callable[..., Result] | None = None,
) -> Callable[..., None]:
    """Return a command that calls a function of the package, prints its result, and ends with its `error`.

    Args:
        act: the function; its keyword `tell` takes notices, `show` and `working` its progress.
        example: a command line that its help shows.
        flags: what is written otherwise than `FLAGS` says, by parameter.
        call: calls the function with what was given; by default with what it shows and tells on stderr, too.
    """
    made = sorted(_parameters(act, {**FLAGS, **(flags or {})}), key=lambda one: one.default is not one.empty)
    run = call or partial(_run, act)

    def called(*, as_json: bool, **given: Any) -> None:
        found = run(**given)
        print_result(found, as_json=as_json)
        if found.error is not None:
            raise found.error

    as_json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
    made.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json))
    called.__name__ = act.__name__
    called.__doc__ = f"{_summary(act)}\n\nExample: {example}"
    called.__annotations__ = {one.name: one.annotation for one in made}
    called.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    return called


def _run(act: Callable[..., Result], **given: Any) -> Result:
    """Call a function; show its notices, its progress and the files that it makes on stderr."""
    parameters = inspect.signature(act).parameters
    shown: dict[str, Any] = {name: how for name, how in (("tell", say), ("working", Shown)) if name in parameters}
    with ExitStack() as stack:
        if "show" in parameters:
            shown["show"] = stack.enter_context(Shown()).tell
        found = act(**given, **shown)
    for name, made in _MADE.items():
        if given.get(name) is not None:
            notes().print(f"{made}: {plain(str(given[name]))}", soft_wrap=True)
    return found


def _parameters(act: Callable[..., Any], flags: Mapping[str, Flag]) -> Iterator[inspect.Parameter]:
    said, hints = _args(act), _hints(act)
    for name, one in inspect.signature(act).parameters.items():
        if name in _TOLD:
            continue
        positional = one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        text = said.get(name, name)  # `python -OO` has no docstrings
        yield _parameter(name, hints[name], one.default, text, flags.get(name, Flag()), positional=positional)


def _parameter(
    name: str, hint: Any, default: Any, said: str, how: Flag, *, positional: bool = False
) -> inspect.Parameter:
    kind, text = _plain(hint) if how.kind is None else how.kind, f"{said[0].upper()}{said[1:]}"
    more = dict(how.more)
    if more.pop("required", False):
        default = inspect.Parameter.empty
    if positional and not how.names:
        written = typer.Argument(**{"help": text, **more})
    else:
        names = how.names or (f"--{name.replace('_', '-')}",)
        written = typer.Option(*names, **{"help": text, **more})
    default = Path(default) if kind is Path and isinstance(default, str) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, written])


def _hints(act: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters; that of its result may name what is not loaded."""
    annotations = {name: one for name, one in act.__annotations__.items() if name != "return"}
    return get_type_hints(SimpleNamespace(__annotations__=annotations), act.__globals__)


def _plain(hint: Any) -> Any:
    """Return the type that is read from the command line: of several the one that a text can become.

    >>> _plain(float | Sequence[float] | None), _plain(str | Path | None), _plain(str | Mapping[str, float] | None)
    (list[float] | None, pathlib.Path | None, str | None)
    """
    kinds = get_args(hint) or (hint,)
    several = [one for one in kinds if get_origin(one) in {Sequence, Iterable}]
    found: Any = None
    if several:
        found = list[_plain(get_args(several[0])[0])]  # type: ignore[misc]
    else:
        found = next(one for one in (bool, int, float, Path, str) if one in kinds)
    return found | None if NoneType in kinds else found


def _summary(act: Callable[..., Any]) -> str:
    """Return the text of a docstring before its first section."""
    said = re.split(r"\n\n(?:Args|Raises|Returns):", inspect.getdoc(act) or "")[0].replace("`", "")
    return "\n\n".join(" ".join(part.split()) for part in said.split("\n\n"))


def _args(act: Any) -> dict[str, str]:
    """Return the description of each parameter in a docstring."""
    _, _, rest = (inspect.getdoc(act) or "").partition("Args:\n")
    listed = rest.split("\n\n")[0]
    parts = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    return {name: " ".join(said.split()).replace("`", "") for name, said in parts}


# --- the program: its commands, each loaded by its name when it is called ---

PANELS = {
    "Begin": {
        "init": "cli.init:init",
        "demo": "cli.demo:demo",
        "doctor": "cli.doctor:doctor",
        "models": "cli.models:app",
        "prices": "cli.models:prices",
    },
    "Answer": {"ask": "cli.ask:ask", "serve": "cli.serve:serve"},
    "Log requests": {
        "collect": "cli.collect:collect_log",
        "import": "cli.import_:import_log",
        "traces": "cli.traces:app",
    },
    "See what it saves": {
        "prove": "cli.study:prove",
        "compare": "cli.study:compare",
        "evaluate": "api.evaluating:evaluate",
    },
    "Learn and certify": {
        "fit": "cli.fit:fit_log",
        "review": "cli.review:review_log",
        "verify": "api.verifying:verify",
    },
    "In service": {
        "promote": "api.promoting:promote",
        "onboard": "api.onboarding:onboard",
    },
}
"""The module and the function of each command, by the panel of the help, in the order of the help."""
_EXAMPLES = {
    "evaluate": 'cascade evaluate episodes.parquet --policy "{kind: threshold, threshold: 0.3}"',
    "verify": "cascade verify policy episodes.parquet",
    "promote": "cascade promote cascade.yaml --if-ready",
    "onboard": "cascade onboard new-model episodes.parquet -o probes.jsonl --probes 200",
}
"""A command line for each command that is made from its function in `api`; `_flags` has what else it needs."""
COMMANDS = {name: place for panel in PANELS.values() for name, place in panel.items()}
"""The module and the function of each command. A run imports only the module of its command."""


def _flags(name: str) -> Mapping[str, Flag]:
    """Return what a command writes otherwise than `FLAGS` says; its kinds and methods are listed when it is loaded."""
    if name == "promote":
        return {"config": flag()}
    return {}


def loaded(name: str) -> Any:
    """Return a command by its name: a function, or an app of several commands."""
    module, _, place = COMMANDS[name].partition(":")
    found = getattr(import_module(f"cascade.{module}"), place)
    return command(found, _EXAMPLES[name], flags=_flags(name)) if name in _EXAMPLES else found


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
        notes().print(f"[bold red]error:[/] {plain(_in_flags(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _stop()
    except SystemExit as end:  # typer raises this on Ctrl-C without a message
        if end.code != STOPPED:
            raise
        _stop()


def _in_flags(error: CascadeError) -> str:
    """Return an error's message, with a flag where its advice names an argument of Python."""
    advice = error.advice if isinstance(error, NotCertifiedError) else None
    if advice is None:
        return str(error)
    flags = re.sub(r"(\w+)=True", lambda found: f"--{found[1].replace('_', '-')}", advice)
    return str(error).replace(advice, flags)


def _stop() -> NoReturn:
    notes().print("stopped")
    sys.exit(STOPPED)


if __name__ == "__main__":
    main()
