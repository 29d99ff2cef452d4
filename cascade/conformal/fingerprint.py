"""What a certificate is made for: the strategy, models, prices and prompts of a cascade, compared part by part.

A change in any of them makes another cascade, of whose requests the certificate says nothing. A part that is not on
record is None and is not compared; `unknown` lists such parts. `serving.made_for` describes a configuration in the
same parts.

A cascade is a mapping of plain JSON values:

    strategy        the section of the configuration, without its prompts
    horizon         the number of steps
    models          by role: name, max_tokens, temperature, seed, and the agent through which it answers, if any
    step_models     the model that answers each step; None if several do
    prices          by model, pico-USD a token
    prompts_sha256  the hash of the prompts
    own_files       the SHA-256 of each of the user's files that decides an answer; left out if there is none
    served_by       by model: the kind of provider, and the address without user, query and keys
    echoes          by model, the model names in its replies
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from cascade.conformal.scope import Kind, seen, shown
from cascade.table import Log

MadeFor: TypeAlias = Mapping[str, Any]
SETTINGS = ("max_tokens", "temperature", "seed")
"""The settings of a model that decide its answers."""
_BY_NAME: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "prices": ("the price of {}", lambda _old, _new: False),
    "own_files": ("the file of {}", lambda old, _new: old is None),
    "served_by": ("the provider of {}", lambda old, new: old is None or new is None),
    "echoes": ("the name that {} answers by", lambda _old, _new: False),
}
"""The parts that are compared for the names that both cascades have: a label, and whether a value is not on record."""


class Calls(Protocol):
    """What a log says about its calls (`episodes.rows.Facts`)."""

    @property
    def models(self) -> Mapping[str, Sequence[str]]:
        """The models asked in each role."""

    @property
    def step_models(self) -> Sequence[str | None]:
        """Of a ladder, the only model that answered each step; empty for other plans."""

    @property
    def echoes(self) -> Mapping[str, Sequence[str]]:
        """By model, the names in its replies."""

    @property
    def kinds(self) -> Mapping[str, Kind | None]:
        """The kind of each request by its id."""


def of_log(log: Log, calls: Calls) -> MadeFor:
    """Return the part of a cascade that a log records."""
    unsaid = dict.fromkeys(SETTINGS)
    return {
        **dict.fromkeys(("strategy", "prices", "prompts_sha256", "served_by")),
        "horizon": int(log.steps[-1]) + 1,
        "models": {role: {"name": " or ".join(names), **unsaid} for role, names in calls.models.items()} or None,
        "step_models": list(calls.step_models) if any(calls.step_models) else None,
        "echoes": {model: list(names) for model, names in calls.echoes.items()} or None,
    }


def certified_for(
    log: Log, bought: Log, calls: Calls, cascade: MadeFor | None = None, earlier: MadeFor | None = None
) -> MadeFor:
    """Return what a new certificate is made for: the cascade, and what its requests and their steps were like.

    `shown` has the counts of the requests at each step, `requests` their kinds: the certificate covers no others
    (`conformal.scope`).

    Args:
        log: the requests that prove it.
        bought: the same, with the nodes that the policy buys.
        calls: what the whole log says about its calls.
        cascade: the configured cascade; None: as the log records it.
        earlier: what an earlier certificate of the policy is made for. A log records less than a configuration, so its
            parts stay where there is no configuration, unless the log is of another cascade.
    """
    logged = of_log(log, calls)
    recorded = {**(logged if cascade is None else cascade)}
    if cascade is None and earlier is not None and not any(differences(earlier, logged)):
        recorded |= {name: value for name, value in earlier.items() if value is not None}
    kinds = [calls.kinds.get(name) for name in log.ids]
    return {**recorded, "shown": shown(bought), "echoes": logged["echoes"], "requests": seen(kinds)}


def differences(then: MadeFor, now: MadeFor, subject: str = "the certificate") -> list[str]:
    """Return the differences between two cascades, a sentence each; `what` is made for the first.

    >>> small = {"models": {"base": {"name": "small", "seed": None}}}
    >>> differences(small, {"models": {"base": {"name": "large", "seed": 1}}})
    ['base is large; the certificate was made for small']
    """
    return [f"{label} is {_text(new)}; {subject} was made for {_text(old)}" for label, old, new in _compared(then, now)]


def _compared(then: MadeFor, now: MadeFor) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts that differ: a label, the value of the first cascade, and that of the second."""

    def on_record(name: str) -> bool:
        return then.get(name) is not None and now.get(name) is not None

    if on_record("strategy"):  # it names the models of a ladder in their order
        yield from _innermost("strategy", then["strategy"], now["strategy"])
    else:
        if on_record("step_models"):
            yield from _order(then["step_models"], now["step_models"])
        if on_record("horizon") and then["horizon"] != now["horizon"]:
            yield "the number of steps", then["horizon"], now["horizon"]
    if on_record("models"):
        yield from _models(then, now)
    if on_record("prompts_sha256") and then["prompts_sha256"] != now["prompts_sha256"]:
        yield "the hash of the prompts", then["prompts_sha256"][:8], now["prompts_sha256"][:8]
    yield from _by_name(then, now)


def _by_name(then: MadeFor, now: MadeFor) -> Iterator[tuple[str, Any, Any]]:
    for section, (label, unsaid) in _BY_NAME.items():
        old, new = then.get(section) or {}, now.get(section) or {}
        for name in sorted(old.keys() & new.keys()):
            was, here = old[name], new[name]
            changed = not {*here} <= {*was} if section == "echoes" else was != here
            if changed and not unsaid(was, here):
                yield label.format(name), was or "unknown", here or "unknown"


def _innermost(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost values that differ, each with its path. Items of lists are compared if they have names."""
    if _names(old) is not None and _names(old) == _names(new):
        old, new = ({entry["name"]: entry for entry in items} for items in (old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("kind") == new.get("kind"):
        for name in dict.fromkeys([*old, *new]):
            yield from _innermost(f"{path}.{name}", old.get(name), new.get(name))
    elif old != new:
        yield path, old, new


def _names(items: Any) -> list[str] | None:
    """Return the names of a list's items; None if it is no list, or an item has none of its own."""
    if not isinstance(items, list | tuple) or not all(
        isinstance(entry, Mapping) and "name" in entry for entry in items
    ):
        return None
    names = [entry["name"] for entry in items]
    return names if len({*names}) == len(names) else None


def _models(then: MadeFor, now: MadeFor) -> Iterator[tuple[str, Any, Any]]:
    old, new = then["models"], now["models"]
    if old.keys() - new.keys() and new.keys() - old.keys():  # in a ladder each model is its own role
        yield "the list of models", models_said(then), models_said(now)
        return
    for role in sorted(old.keys() | new.keys()):
        was, here = old.get(role, {"name": None}), new.get(role, {"name": None})
        if was["name"] != here["name"]:
            yield role, was["name"], here["name"]
        elif _is_known(was) and _is_known(here):
            yield from (
                (f"{role}.{name}", was.get(name), here.get(name))
                for name in (*SETTINGS, "agent")
                if was.get(name) != here.get(name)
            )


def _is_known(settings: Mapping[str, Any]) -> bool:
    """Whether a model's settings are on record; a seed on record may still be None."""
    return settings.get("max_tokens") is not None


def _order(old: Sequence[str | None], new: Sequence[str | None]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the orders of the models if the same models answer other steps."""
    same_models = len(old) == len(new) and {*old} - {None} == {*new} - {None}
    if same_models and any(None not in pair and pair[0] != pair[1] for pair in zip(old, new, strict=True)):
        yield "the order of the models", _in_order(old), _in_order(new)


def _in_order(names: Iterable[str | None]) -> str:
    return ", then ".join([name or "any" for name in names])


def models_said(cascade: MadeFor) -> str:
    """Return the models of a cascade as text, those of a ladder in their order; empty if not recorded.

    >>> models_said({"models": {"base": {"name": "small"}, "guide": {"name": "large"}}})
    'base small, guide large'
    >>> models_said({"models": {"a": {"name": "a"}, "b": {"name": "b"}}, "step_models": ["b", "a"]})
    'b, then a'
    """
    models, order = cascade.get("models") or {}, cascade.get("step_models") or [None]
    if None not in order and {*order} == {*models}:
        return _in_order(order)
    named = {role: model["name"] for role, model in models.items()}
    return ", ".join([name if role == name else f"{role} {name}" for role, name in named.items()])


def _text(value: Any) -> str:
    """Return a value as text: a price as rates, of a section its kind and of a list its names."""
    if isinstance(value, Mapping) and "input" in value:
        rates = [f"{name} {rate / 1e6:g}" for name, rate in value.items() if rate and isinstance(rate, int)]
        above = [f"above {value['above']}"] if value.get("above") else []
        return ", ".join(["USD per million", *rates, *above])
    if isinstance(value, Mapping) and "address" in value:
        return " at ".join([str(text) for text in (value["provider"], value["address"]) if text is not None])
    if isinstance(value, Mapping):
        return str(value.get("kind", value.get("name", dict(value))))
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return "none" if value is None else str(value)


def unknown(cascade: MadeFor) -> list[str]:
    """Return the parts of a cascade that were not recorded; a change in them would not be noticed.

    >>> unknown({"strategy": None, "models": None, "prices": {}, "prompts_sha256": "00"})
    ['the strategy', 'the models', 'where the models are served']
    """
    models, strategy = cascade.get("models") or {}, cascade.get("strategy")
    ladder = len(models) > 1 and all(role == model["name"] for role, model in models.items())
    lacks = {
        "the strategy": strategy is None,
        "the models": cascade.get("models") is None,
        "the prices": cascade.get("prices") is None,
        "the order of the models": strategy is None and ladder and not all(cascade.get("step_models") or [None]),
        "the models’ settings": not all(map(_is_known, models.values())),
        "where the models are served": not all((cascade.get("served_by") or {"": None}).values()),
        "the prompts": cascade.get("prompts_sha256") is None,
    }
    return [name for name, missing in lacks.items() if missing]


def renaming(logged: MadeFor, configured: MadeFor) -> str:
    """Return how a log gets the configured names of its models, if it has as many and all have other names; else ""."""
    old, new = logged.get("step_models") or (), configured.get("step_models") or ()
    if None in old or None in new or len(old) != len(new) or {*old} & {*new}:
        return ""
    renamed = " ".join([f"--rename {was}={here}" for was, here in zip(old, new, strict=True)])
    return f"If these are the same models under other names: cascade import LOG -o NEW {renamed}" if old else ""
