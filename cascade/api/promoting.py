"""`promote`: looks at the observed requests, and puts a policy in force if it can be certified and saves money."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.judging import reviews_of
from cascade.api.output import Result, plain_text
from cascade.config import CascadeConfig, load, modes_url, traces_url
from cascade.conformal.monitor import Monitor
from cascade.episodes.store import Store
from cascade.errors import ConfigError, UsageError
from cascade.modes.draws import look_level, spent_level
from cascade.modes.looking import Asked, Found, Rows, look_at, too_few, unseen
from cascade.modes.people import KIND, check_terms
from cascade.modes.plan import Plan
from cascade.modes.planning import planned
from cascade.modes.state import CascadeState, Draw, Opened
from cascade.modes.store import LOST_S, ModeStore, now_iso

LEASE_S = 300.0
"""How long a process may look before another one resumes its look: it may have been killed."""
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Promotion(Result):
    """The outcome of a look.

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
    """What a promotion still takes until it is likely.

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
    config: CascadeConfig | str | Path,
    *,
    cascade: str | None = None,
    canary: float | None = None,
    by: str = "promote",
    anyway: bool = False,
) -> Promotion:
    """Look at the certifying rows, and put a policy in force if it can be certified and saves money.

    The look is counted before a row is read, and its rows never certify again, whatever it finds. One process looks at
    a time. If a process ends during its look, another one resumes it, with the same rows and the same share of delta.

    Args:
        config: the configuration of the server, with a section `modes`.
        cascade: the cascade's name; `server.name` by default.
        canary: the share of keys that the policy serves; `modes.canary` by default.
        by: who promotes, for the record.
        anyway: look even if the latest plan and a new one both say that no promotion is likely now.

    Raises:
        UsageError: there are too few rows for any certificate, no promotion is likely, or another process is looking.
            No look was taken.
        ConfigError: the configuration has no modes.
    """
    settings = load(config)
    name = _name(settings, cascade)
    share = settings.modes.canary if canary is None and settings.modes is not None else canary or 0.0
    if not 0 < share <= 1:
        raise UsageError(f"A canary is a share of the keys above 0, at most 1, not {share:g}.")
    with _store(settings) as store, _leased(store, name):
        if not anyway:
            _refuse_unlikely(settings, store, name)
        return _promoted(settings, store, name, share, by)


def _refuse_unlikely(settings: CascadeConfig, store: ModeStore, name: str) -> None:
    """Raise UsageError if the latest plan and a new one both say that no promotion is likely now."""
    kept, state = store.plan(name), store.state(name)
    if kept is None or not kept.plan.is_about(state) or kept.plan.is_likely or _is_open(store, name):
        return
    plan = _planned(settings, store, name).plan
    if not plan.is_likely:
        assert settings.modes is not None  # noqa: S101 - `_name` has looked
        level = look_level(settings.modes.delta, plan.look)
        raise UsageError(
            f"{name} was not looked at: {plan.describe().rstrip('.')}. The look would spend {level:.3g} of delta. "
            f"To look all the same: cascade promote --anyway"
        )


def _is_open(store: ModeStore, name: str) -> bool:
    """Whether an unfinished look is open; its share of delta is already spent."""
    return any(one.verdict == "open" for one in store.looks(name))


def promote_if_likely(
    config: CascadeConfig | str | Path, *, cascade: str | None = None, by: str = "promote"
) -> Promotion | PromotionPlan:
    """Plan, and promote if the plan says that a promotion is likely, or if a look was interrupted.

    The plan reads only fitting rows, so the time of the look does not depend on the certifying rows.

    Raises:
        UsageError: another process is looking, or nothing was observed yet.
        ConfigError: the configuration has no modes.
    """
    settings = load(config)
    name = _name(settings, cascade)
    with _store(settings) as store, _leased(store, name):
        plan = _planned(settings, store, name)
        if not plan.plan.is_likely and not _is_open(store, name):
            return plan
        assert settings.modes is not None  # noqa: S101 - `_name` has looked
        return _promoted(settings, store, name, settings.modes.canary, by)


def plan_promotion(config: CascadeConfig | str | Path, *, cascade: str | None = None) -> PromotionPlan:
    """Estimate from the fitting rows what a promotion still takes. No certifying row is read.

    The plan is kept for the server's page.

    Raises:
        ConfigError: the configuration has no modes.
        UsageError: nothing was observed yet.
    """
    settings = load(config)
    name = _name(settings, cascade)
    with _store(settings) as store:
        return _planned(settings, store, name)


@contextmanager
def _store(settings: CascadeConfig) -> Iterator[ModeStore]:
    store = ModeStore.open(modes_url(settings) or "")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _leased(store: ModeStore, name: str) -> Iterator[None]:
    """Hold the right to look while the block runs. Raises UsageError if another process has it."""
    owner, now_s = secrets.token_hex(16), _now_s()
    if not store.lease(name, owner, now_s, now_s + LEASE_S):
        left_s = max(0.0, store.leased_until(name) - now_s)
        raise UsageError(f"Another process is looking at {name}. Try again once it is done, in {left_s:.0f} s at most.")
    try:
        yield
    finally:
        store.release(name, owner)


def _now_s() -> float:
    return datetime.now(UTC).timestamp()


def _promoted(settings: CascadeConfig, store: ModeStore, name: str, canary: float, by: str) -> Promotion:
    """Look once, and put the policy in force if it may serve."""
    modes = settings.modes
    assert modes is not None  # noqa: S101 - `_name` has looked
    asked = _asked(settings)
    store.expire(name, _now_s() - LOST_S)
    opened = store.open_look(name, by, _now_s(), lambda look, fit, certify: too_few(asked, look, fit, certify))
    found = _found(settings, store, name, opened, asked)
    page = {**found.page, "delta_spent": spent_level(modes.delta, opened.look), "canary": canary}
    held, at = found.in_force, now_iso()
    files = {file: base64.b64encode(data).decode("ascii") for file, data in found.files.items()}

    def put_in_force(state: CascadeState) -> CascadeState:
        if held is None or state.era != opened.era:
            return state
        monitor = Monitor.start(alpha=held.alpha, delta=held.delta, level=look_level(modes.level, opened.look))
        return state.promoted(held, monitor, canary, by, at)

    if not store.close_look(name, opened.look, page, files, put_in_force):
        raise UsageError(f"Another process closed look {opened.look} of {name} first: see the page /ui of the server.")
    return Promotion(name, store.looks(name)[opened.look - 1].verdict == "promoted", canary, page)


def _found(settings: CascadeConfig, store: ModeStore, name: str, opened: Opened, asked: Asked) -> Found:
    """Look at the rows of an open look."""
    why = None
    if opened.tries > _MOST_TRIES:
        why = f"{_MOST_TRIES} processes began this look, and each ended before it was done"
    elif opened.era != store.state(name).era:
        why = "a certificate was withdrawn since it began, so its rows certify nothing"
    if why is not None:
        return Found(unseen(asked, opened, why))
    drawn = [one for one in store.draws(name) if one.era == opened.era and one.drawn_s <= opened.opened_s]
    return look_at(_rows(settings, drawn, asked), opened.certifying, asked, opened.look)


def _planned(settings: CascadeConfig, store: ModeStore, name: str) -> PromotionPlan:
    modes = settings.modes
    assert modes is not None  # noqa: S101 - `_name` has looked
    state, counts, drawn = store.state(name), store.counts(name), store.draws(name)
    may_fit = [
        one
        for one in drawn
        if one.era == state.era and one.outcome != "pending" and (one.role == "fit" or one.look is not None)
    ]
    asked = _asked(settings)
    rows = _rows(settings, may_fit, asked)
    share = modes.share if state.rate is None or modes.per_day is None else state.rate
    plan = planned(rows, asked, state.looks + 1, counts, share * modes.certify)
    plan = replace(plan, era=state.era)
    store.keep_plan(name, plan)
    return PromotionPlan(name, plan)


def _asked(settings: CascadeConfig) -> Asked:
    modes = settings.modes
    assert modes is not None  # noqa: S101 - `_name` has looked
    reviews = None if modes.guarantee != KIND else reviews_of(settings)
    check_terms(reviews, modes.comparator)
    return Asked(modes.alpha, modes.delta, modes.audit, modes.comparator, settings, modes.guarantee, reviews)


def _name(settings: CascadeConfig, cascade: str | None) -> str:
    if settings.modes is None:
        raise ConfigError(["modes: the configuration has no such section, so nothing was observed"])
    name = settings.server.name
    if cascade not in {None, name}:
        raise UsageError(f"There is no cascade {cascade!r} in this configuration; it serves {name}.")
    return name


def _rows(settings: CascadeConfig, drawn: list[Draw], asked: Asked) -> Rows:
    """Read the traces of drawn requests."""
    url = traces_url(settings.traces)
    assert url is not None  # noqa: S101 - `modes_url` has looked
    models = [settings.models[place].model for place in settings.strategy.places]
    with Store.open(url, read_only=True) as traces:
        return Rows(traces.read({"walk": "null"}), drawn, models, asked)


def _said(found: Promotion) -> Iterator[str]:
    page, look = found.page, found.page["look"]
    if "fit_rows" in page:
        fit, certify, missing = page["fit_rows"], page["certifying_conversations"], page["missing"]
        yield (
            f"{found.cascade}, look {look}: {fit} rows fit the policy, and {certify} conversations certify it. "
            f"{missing} of these conversations have no outcome and count as losses."
        )
    yield (
        f"delta: {page['delta']:g} over all looks; this one may spend {page['delta']:g}/({look}·{look + 1}) = "
        f"{page['delta_of_this_look']:.3g}; spent by now {page['delta_spent']:.3g}."
    )
    if "losses" in page:
        about, lose = "differ from the guide", "differ"
        if page["guarantee"] == KIND:
            about, lose = "are answered wrongly where the guide is right", "lose, or differ and were judged by nobody"
        yield (
            f"certificate: at most {page['alpha']:.1%} of the requests {about} (comparator "
            f"{page['comparator']}). {page['losses']} of {page['certifying_conversations']} {lose}, and up to "
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
        yield f"not promoted: {page.get('why', 'a certificate was withdrawn meanwhile')}."
