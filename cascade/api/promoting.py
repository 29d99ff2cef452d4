"""`promote`: a look at what was observed, and a policy in force where it can be certified and saves something."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.output import plain_text
from cascade.api.result import Result
from cascade.config import CascadeConfig, load, modes_url, traces_url
from cascade.conformal.monitor import Monitor
from cascade.episodes.store import Store
from cascade.errors import ConfigError, UsageError
from cascade.modes.draws import look_level, spent_level
from cascade.modes.looking import Asked, Rows, look_at, too_few
from cascade.modes.planning import Plan, planned
from cascade.modes.state import Draw
from cascade.modes.store import ModeStore, now_iso

_LOST_S = 3_600.0
"""Rows that are pending for so long are missing: the process that drew them was killed."""


@dataclass(frozen=True, slots=True)
class Promotion(Result):
    """What a look found.

    Attributes:
        cascade: the cascade's name.
        promoted: whether a policy is in force from now on.
        canary: the share of keys that it serves.
        page: the arithmetic, as plain values (`modes.looking`).
    """

    cascade: str
    promoted: bool
    canary: float
    page: Mapping[str, Any]

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield what is printed, for a terminal of so many columns."""
        for said in _said(self):
            yield Text(plain_text(said))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {"cascade": self.cascade, "promoted": self.promoted, "canary": self.canary, **self.page}


@dataclass(frozen=True, slots=True)
class PromotionPlan(Result):
    """What it takes until a promotion is likely.

    Attributes:
        cascade: the cascade's name.
        plan: the figures.
    """

    cascade: str
    plan: Plan

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield what is printed, for a terminal of so many columns."""
        yield Text(plain_text(f"{self.cascade}: {self.plan.describe()}"))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {"cascade": self.cascade, **self.plan.to_dict()}


def promote(
    config: CascadeConfig | str | Path, *, cascade: str | None = None, canary: float | None = None, by: str = "promote"
) -> Promotion:
    """Look at the rows that certify, and put the policy in force that is certified and saves something.

    The look is counted before a row is read, and its rows never certify again, whatever it finds.

    Args:
        config: the configuration that is served, with its section `modes`.
        cascade: the cascade's name; `server.name` by default.
        canary: the share of keys that the policy serves; `modes.canary` by default.
        by: who asks, for the record.

    Raises:
        UsageError: there are too few rows for any certificate; nothing was looked at.
        ConfigError: the configuration has no modes.
    """
    settings = load(config)
    modes, name = settings.modes, _name(settings, cascade)
    assert modes is not None  # noqa: S101 - `_name` has looked
    share = modes.canary if canary is None else canary
    if not 0 < share <= 1:
        raise UsageError(f"A canary is a share of the keys above 0, at most 1, not {share:g}.")
    asked = Asked(modes.alpha, modes.delta, modes.audit, modes.comparator, settings)
    store = ModeStore.open(modes_url(settings) or "")
    try:
        state = store.state(name)
        store.expire(name, datetime.now(UTC).timestamp() - _LOST_S)
        counts = store.counts(name)
        why = too_few(asked, state.looks + 1, counts.fit, counts.conversations)
        if why is not None:
            raise UsageError(f"{name} was not looked at: {why}. Observe more first: cascade promote CONFIG --plan")
        look, certifying = store.open_look(name, by)
        rows = _rows(settings, store.draws(name), modes.comparator)
        found = look_at(rows, certifying, asked, look)
        page = {**found.page, "delta_spent": spent_level(modes.delta, look), "canary": share}
        files = {name: base64.b64encode(data).decode("ascii") for name, data in found.files.items()}
        store.close_look(name, look, "promoted" if found.promoted else "refused", page, files)
        if found.in_force is not None:
            held = found.in_force
            monitor = Monitor.start(alpha=held.alpha, delta=held.delta, level=look_level(modes.level, look))
            store.change(name, lambda one: one.promoted(held, monitor, share, by, now_iso()))
    finally:
        store.close()
    return Promotion(name, found.promoted, share, page)


def plan_promotion(config: CascadeConfig | str | Path, *, cascade: str | None = None) -> PromotionPlan:
    """Say from the rows that may fit what it takes until a promotion is likely. No certifying row is read.

    Raises:
        ConfigError: the configuration has no modes.
        UsageError: nothing was observed yet.
    """
    settings = load(config)
    modes, name = settings.modes, _name(settings, cascade)
    assert modes is not None  # noqa: S101 - `_name` has looked
    store = ModeStore.open(modes_url(settings) or "")
    try:
        state, counts, drawn = store.state(name), store.counts(name), store.draws(name)
    finally:
        store.close()
    asked = Asked(modes.alpha, modes.delta, modes.audit, modes.comparator, settings)
    may_fit = [one for one in drawn if one.outcome != "pending" and (one.role == "fit" or one.look is not None)]
    rows = _rows(settings, may_fit, modes.comparator)
    return PromotionPlan(name, planned(rows, asked, state.looks + 1, counts, modes.share * modes.certify))


def _name(settings: CascadeConfig, cascade: str | None) -> str:
    if settings.modes is None:
        raise ConfigError(["modes: the configuration has no such section, so nothing was observed"])
    name = settings.server.name
    if cascade not in {None, name}:
        raise UsageError(f"There is no cascade {cascade!r} in this configuration; it serves {name}.")
    return name


def _rows(settings: CascadeConfig, drawn: list[Draw], comparator: str | None) -> Rows:
    """Read what the traces have of drawn requests."""
    url = traces_url(settings.traces)
    assert url is not None  # noqa: S101 - `modes_url` has looked
    models = [settings.models[place].model for place in settings.strategy.places]
    with Store.open(url, read_only=True) as traces:
        return Rows(traces.read({"walk": "null"}), drawn, models, comparator)


def _said(found: Promotion) -> Iterator[str]:
    page, look = found.page, found.page["look"]
    yield (
        f"{found.cascade}, look {look}: {page['fit_rows']} rows fit, {page['certifying_conversations']} conversations "
        f"certify, of which {page['missing']} lack an outcome and count as losses."
    )
    yield (
        f"delta: {page['delta']:g} over all looks; this one may spend {page['delta']:g}/({look}·{look + 1}) = "
        f"{page['delta_of_this_look']:.3g}; spent by now {page['delta_spent']:.3g}."
    )
    if "losses" in page:
        yield (
            f"certificate: at most {page['alpha']:.1%} of the requests differ from the guide (comparator "
            f"{page['comparator']}). {page['losses']} of {page['certifying_conversations']} differ, and up to "
            f"{page['losses_allowed']} would certify. Policy: {page['policy']}; cheaper models serve "
            f"{page['served_by_cheaper']:.0%} alone."
        )
        yield (
            f"saving: {page['saving_usd']:.3g} USD a request on average, with {page['audit']:.0%} of them audited; "
            f"the guide alone costs {page['guide_usd']:.3g} USD. At least {page['least_saving_usd']:.3g} USD, but for "
            f"a chance of .05/({look}·{look + 1}) = {page['saving_level_of_this_look']:.3g}, if no request costs more "
            f"than four times the dearest that fitted."
        )
    if found.promoted:
        yield f"promoted, certificate {page['certificate']}: it serves {found.canary:.0%} of the keys from now on."
    else:
        yield f"not promoted: {page['why']}."
