"""The options that several commands share, and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from cascade.checks import did_you_mean
from cascade.cli.output import notes
from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.guarantees.base import DEFAULT, KINDS, Guarantee, default_kind, get, is_known
from cascade.money import nano_usd

_SHARE = 0.1
"""Alpha where none is given, and delta where none is given for a kind that does not exist without."""

Episodes = Annotated[
    str, typer.Argument(help="A log (.jsonl, .parquet, a store's URL), demo, demo-ladder, or simulated:NAME.")
]
Where = Annotated[list[str] | None, typer.Option("--where", help="Only rows with COLUMN=VALUE. Repeatable.")]
Matched = Annotated[str | None, typer.Option("--matcher", help="Judge the answers anew against the gold answers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print as one JSON document.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Which random draws.")]
Configured = Annotated[
    Path | None, typer.Option("--config", "-c", help="The cascade that will serve: models, prices, prompts, strategy.")
]

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The policy directory to write. By default that of --policy.")
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--guarantee",
        help=f"What is promised: {', '.join(KINDS.built_in)}, or an installed one. By default coverage; a "
        "directory keeps every part of its promise that is not given, and with this it is asked for anew.",
    ),
]
NewKind = Annotated[
    str | None,
    typer.Option(
        "--guarantee", help=f"What is promised: {', '.join(KINDS.built_in)}, or an installed one. By default coverage."
    ),
]
Alpha = Annotated[
    float | None, typer.Option("--alpha", help="The share of questions that may be missed. By default 0.1.")
]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Promise it for all but this share of calibrations, not on average over them."),
]
Budget = Annotated[
    float | None, typer.Option("--budget", help="What a question may cost on average, in USD, as in 0.01.")
]
Most = Annotated[
    float | None,
    typer.Option("--most", help="What no question can cost more than, in USD. By default budget.per_question."),
]
BySegment = Annotated[
    bool, typer.Option("--by-segment", help="A promise for each segment of questions (a tenant, a task, a language).")
]
Together = Annotated[
    bool,
    typer.Option("--together", help="With --by-segment and --delta: delta for all segments at once, not for each."),
]
ByGroup = Annotated[
    bool,
    typer.Option("--by-group", "--groups", help="Until 0.7: as --by-segment, of the column group. Use --by-segment."),
]
Abstain = Annotated[bool, typer.Option("--abstain", help="Serve no answer where the best one is not sure enough.")]
ExpiresDays = Annotated[
    int | None, typer.Option("--expires-days", min=0, help="How many days it holds. By default without end.")
]
AllowEverything = Annotated[
    bool, typer.Option("--allow-everything", help="With too few questions, keep every answer of every step.")
]
Force = Annotated[bool, typer.Option("--force", help="Write over another policy in the directory.")]
METHODS = (
    "auto", "net_benefit", "index2", "boosted", "threshold", "depth", "reference",
    "cpo", "cpo_batch", "cpo_online", "ccpo",
)  # fmt: skip


def method_written(method: str) -> str:
    """Return a method as messages write it: networks with dashes.

    >>> method_written("cpo_batch"), method_written("net_benefit")
    ('cpo-batch', 'net_benefit')
    """
    return method.replace("cpo_", "cpo-")


METHODS_SAID = ", ".join(map(method_written, METHODS))
"""As `--help` lists them; each may be written with dashes or underscores."""


def method_named(said: str | None) -> str | None:
    """Return a method as it is called inside; what was not given stays so.

    >>> method_named("cpo-batch"), method_named("net_benefit"), method_named(None)
    ('cpo_batch', 'net_benefit', None)
    """
    return None if said is None else said.replace("-", "_")


Method = Annotated[
    str,
    typer.Option(
        "--policy",
        callback=method_named,
        help=f"What to fit: {METHODS_SAID}. auto tries all but networks (--networks) and takes "
        "the simplest that does as well as the best.",
    ),
]


BY_GROUP_GOES = (
    "--by-group makes certificates for the values of the column group, and treats the questions of one as unrelated. "
    "0.7 removes it: log what they are for (a tenant, a task) in the column segment, and use --by-segment."
)


class Asked(NamedTuple):
    """The options that say what is to be promised, as given. None and False: not given."""

    kind: str | None
    alpha: float | None
    delta: float | None
    budget: float | None
    most: float | None
    by_group: bool
    abstain: bool
    by_segment: bool = False
    together: bool = False


def wanted_guarantee(asked: Asked, config: CascadeConfig | None) -> Guarantee:
    """Return what is to be promised.

    Raises:
        UsageError: everything that is wrong with it.
    """
    kind, problems = asked.kind or default_kind(budget=asked.budget is not None), list[str]()
    if is_known(kind) and get(kind).on_cost and asked.alpha is not None:
        problems.append("--alpha is a share of questions, and a budget promises none; leave it out.")
    needs_delta = is_known(kind) and get(kind).needs_delta and asked.delta is None
    cap = config.budget.per_question if config is not None and asked.budget is not None else None
    alpha = _SHARE if asked.alpha is None else asked.alpha
    parts = Asked(kind, alpha, _SHARE if needs_delta else asked.delta, asked.budget,
                  cap if asked.most is None else asked.most, *asked[5:])  # fmt: skip
    wanted = _guarantee(parts, problems)
    if asked.by_group:
        notes().print(BY_GROUP_GOES, style="yellow", soft_wrap=True)
    if wanted is None or problems:
        raise UsageError(" ".join(problems))
    if needs_delta:
        said = f"{kind} is promised with a delta; it is {_SHARE:g} unless --delta says otherwise"
        notes().print(said, soft_wrap=True)
    return wanted


def _guarantee(parts: Asked, problems: list[str]) -> Guarantee | None:
    """Return the promise; None, and all that is wrong with it noted, where it is none."""
    kind = parts.kind or ""
    if not is_known(kind):
        problems.append(f"There is no guarantee {kind!r}{did_you_mean(kind, KINDS.names)}.")
        # what is left
        parts = Asked(DEFAULT, parts.alpha, parts.delta, None, None, by_group=False, abstain=False)
    amounts = []
    for option, amount in (("--budget", parts.budget), ("--most", parts.most)):
        try:
            amounts.append(nano_of(option, amount))
        except UsageError as error:
            problems.append(str(error))
            amounts.append(1)  # it was given, and that much is to be judged with the rest
    budget, most = amounts
    try:
        return Guarantee(
            parts.kind or "",
            parts.alpha,
            parts.delta,
            budget_nano_usd=budget,
            most_nano_usd=most,
            by_group=parts.by_group,
            abstain=parts.abstain,
            by_segment=parts.by_segment,
            together=parts.together,
        )
    except UsageError as error:
        problems += [str(error), *_options_for_money(parts)]
    return None


def _options_for_money(asked: Asked) -> list[str]:
    """Return which options say what a promise on money lacks."""
    said = []
    on_cost = asked.kind is not None and is_known(asked.kind) and get(asked.kind).on_cost
    if on_cost and asked.budget is None:
        said.append("Give the bound in USD a question, as in --budget 0.01.")
    if on_cost or asked.budget is not None:
        said += ["Give --most USD, or --config with budget.per_question."] if asked.most is None else []
    return said


def nano_of(option: str, amount: float | None) -> int | None:
    """Return an amount that was given in USD as nano-USD.

    Raises:
        UsageError: it is not above 0.
    """
    if amount is None:
        return None
    if not 0 < amount < 1e9:
        raise UsageError(f"{option} is an amount in USD above 0, not {amount}.")
    return nano_usd(amount)
