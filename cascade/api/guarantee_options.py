"""The options of a promise, and the `Guarantee` made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.api.output import Tell
from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.guarantees.base import DEFAULT, KINDS, Guarantee, default_kind, get, is_known
from cascade.money import nano_usd

if TYPE_CHECKING:
    from cascade.config import CascadeConfig

_SHARE = 0.1
"""The default alpha, and the default delta of the kinds that require one."""

BY_GROUP_GOES = (
    "--by-group makes certificates for the values of the column group, and treats the questions of one as unrelated. "
    "0.7 removes it: log what they are for (a tenant, a task) in the column segment, and use --by-segment."
)


class GuaranteeOptions(NamedTuple):
    """The options of a promise, as given. None and False mean not given. Money in USD a question."""

    kind: str | None = None
    alpha: float | None = None
    delta: float | None = None
    budget_usd: float | None = None
    most_usd: float | None = None
    by_group: bool = False
    abstain: bool = False
    by_segment: bool = False
    together: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> GuaranteeOptions:
        """Return the options among the arguments of a call; `guarantee` is the kind or a whole `Guarantee`.

        Raises:
            UsageError: the call gives a whole guarantee, and parts of one beside it.
        """
        asked, parts = given["guarantee"], {name: given[name] for name in cls._fields[1:]}
        if not isinstance(asked, Guarantee):
            return cls(asked, **parts)
        if any(parts.values()):
            raise UsageError("The guarantee is given as a whole: give alpha, delta and the like in it, not beside it.")
        budget, most = (None if one is None else one / 1e9 for one in (asked.budget_nano_usd, asked.most_nano_usd))
        alpha = None if asked.rules.on_cost else asked.alpha
        flags = (asked.by_group, asked.abstain, asked.by_segment, asked.together)
        return cls(asked.kind, alpha, asked.delta, budget, most, *flags)


def wanted_guarantee(asked: GuaranteeOptions, config: CascadeConfig | None, tell: Tell) -> Guarantee:
    """Return the promise to make; tell which parts differ from the options.

    Raises:
        UsageError: lists every problem.
    """
    kind, problems = asked.kind or default_kind(budget=asked.budget_usd is not None), list[str]()
    if is_known(kind) and get(kind).on_cost and asked.alpha is not None:
        problems.append("--alpha is a share of questions, and a budget promises none; leave it out.")
    needs_delta = is_known(kind) and get(kind).needs_delta and asked.delta is None
    cap = config.budget.per_question if config is not None and asked.budget_usd is not None else None
    alpha = _SHARE if asked.alpha is None else asked.alpha
    parts = GuaranteeOptions(kind, alpha, _SHARE if needs_delta else asked.delta, asked.budget_usd,
                  cap if asked.most_usd is None else asked.most_usd, *asked[5:])  # fmt: skip
    wanted = _guarantee(parts, problems)
    if asked.by_group:
        tell(BY_GROUP_GOES)
    if wanted is None or problems:
        raise UsageError(" ".join(problems))
    if needs_delta:
        tell(f"{kind} is promised with a delta; it is {_SHARE:g} unless --delta says otherwise")
    return wanted


def _guarantee(parts: GuaranteeOptions, problems: list[str]) -> Guarantee | None:
    """Return the promise. If it is not valid, note every problem and return None."""
    kind = parts.kind or ""
    if not is_known(kind):
        problems.append(f"There is no guarantee {kind!r}{did_you_mean(kind, KINDS.names)}.")
        # the other kinds
        parts = GuaranteeOptions(DEFAULT, parts.alpha, parts.delta, None, None, by_group=False, abstain=False)
    amounts = []
    for option, amount in (("--budget", parts.budget_usd), ("--most", parts.most_usd)):
        try:
            amounts.append(nano_of(option, amount))
        except UsageError as error:
            problems.append(str(error))
            amounts.append(1)  # it was given, so it is checked with the rest
    budget, most = amounts
    try:
        return Guarantee(
            parts.kind or "",
            parts.alpha,
            parts.delta,
            budget_nano_usd=budget,
            most_nano_usd=most,
            **dict(zip(parts._fields[5:], parts[5:], strict=True)),
        )
    except UsageError as error:
        problems += [str(error), *_options_for_money(parts)]
    return None


def _options_for_money(asked: GuaranteeOptions) -> list[str]:
    """Return advice for the options that a promise about money lacks."""
    said = []
    on_cost = asked.kind is not None and is_known(asked.kind) and get(asked.kind).on_cost
    if on_cost and asked.budget_usd is None:
        said.append("Give the bound in USD a question, as in --budget 0.01.")
    if on_cost or asked.budget_usd is not None:
        said += ["Give --most USD, or --config with budget.per_question."] if asked.most_usd is None else []
    return said


def nano_of(option: str, amount: float | None) -> int | None:
    """Return an amount in USD as nano-USD.

    Raises:
        UsageError: it is not above 0.
    """
    if amount is None:
        return None
    if not 0 < amount < 1e9:
        raise UsageError(f"{option} is an amount in USD above 0, not {amount}.")
    return nano_usd(amount)
