"""A command made from the function that it calls: the function's signature and docstring define each option once.

An option's name, type and default are those of the parameter, its help is the parameter's line under "Args:". A command
adds only what a signature does not say: a short flag, bounds, another name (`Flag`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer

from cascade.api.output import Result
from cascade.cli.output import print_result, say
from cascade.guarantees.base import KINDS

KIND = f"The kind of guarantee: {', '.join(KINDS.built_in)}, or an installed one. By default coverage."
"""The help of --guarantee, where the kinds are listed."""
_TOLD = frozenset({"tell", "show", "working"})
"""Parameters that a command fills in itself."""


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
    "seed": flag(min=0),
    "splits": flag(min=1),
    "steps": flag(min=1),
    "budget_usd": flag("--budget"),
    "most_usd": flag("--most"),
    "by_group": flag("--by-group", "--groups"),
    "expires_days": flag(min=0),
    "concurrency": flag(min=1, max=1_000),
}
"""Parameters that are written the same way in every command."""


def command(
    act: Callable[..., Any],
    example: str,
    *,
    flags: Mapping[str, Flag] | None = None,
    call: Callable[..., Result] | None = None,
    after: Callable[[Any, Mapping[str, Any]], None] | None = None,
) -> Callable[..., None]:
    """Return a command that calls a function of the package and prints its result.

    Args:
        act: the function; its keyword `tell` takes notices.
        example: a command line that its help shows.
        flags: what is written otherwise than `FLAGS` says, by parameter.
        call: calls the function with what was given; by default the function itself.
        after: called with the result and what was given once the result is printed; it raises where the command has to
            end with an error.
    """
    made = sorted(_parameters(act, {**FLAGS, **(flags or {})}), key=lambda one: one.default is not one.empty)
    groups = dict(_groups(act))
    run = call or partial(act, tell=say)

    def called(*, as_json: bool, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(_flat(name, field)) for field in group._fields})
        found = run(**given)
        print_result(found, as_json=as_json)
        if after is not None:
            after(found, given)

    as_json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
    made.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json))
    called.__name__ = act.__name__
    called.__doc__ = f"{_summary(act)}\n\nExample: {example}"
    called.__annotations__ = {one.name: one.annotation for one in made}
    called.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    return called


def _parameters(act: Callable[..., Any], flags: Mapping[str, Flag]) -> Iterator[inspect.Parameter]:
    said, hints = _args(act), _hints(act)
    for name, one in inspect.signature(act).parameters.items():
        if name in _TOLD:
            continue
        if hasattr(hints[name], "_fields"):  # a tuple of options: each is an option of the command
            fields, defaults = get_type_hints(hints[name]), hints[name]._field_defaults
            told = _args(hints[name], "Attributes")
            for field, hint in fields.items():
                flat = _flat(name, field)
                yield _parameter(flat, hint, defaults[field], told.get(field, field), flags.get(flat, Flag()))
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
    required = default is inspect.Parameter.empty
    if positional and required and not how.names:
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


def _groups(act: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, hint) for name, hint in _hints(act).items() if hasattr(hint, "_fields"))


def _flat(group: str, field: str) -> str:
    """Return the name of an option of a group: that of the group for the field that offers it.

    >>> _flat("networks", "offered"), _flat("networks", "steps")
    ('networks', 'steps')
    """
    return {"offered": group, "config": f"{group.removesuffix('s')}_config"}.get(field, field)


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
    """Return what a docstring says before its first section."""
    said = re.split(r"\n\n(?:Args|Raises|Returns):", inspect.getdoc(act) or "")[0].replace("`", "")
    return "\n\n".join(" ".join(part.split()) for part in said.split("\n\n"))


def _args(act: Any, section: Literal["Args", "Attributes"] = "Args") -> dict[str, str]:
    """Return what a docstring says of each parameter."""
    _, _, rest = (inspect.getdoc(act) or "").partition(f"{section}:\n")
    listed = rest.split("\n\n")[0]
    parts = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    return {name: " ".join(said.split()).replace("`", "") for name, said in parts}
