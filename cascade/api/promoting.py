"""`promote`: looks at the observed requests, and puts a policy in force if it can be certified and saves money."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.judging import reviews_of
from cascade.api.output import Result, plain_text
from cascade.config import CascadeConfig, load, modes_url, traces_url
from cascade.config.schema import ModesConfig
from cascade.conformal.monitor import Monitor
from cascade.episodes.store import Store
from cascade.errors import ConfigError, UsageError
from cascade.modes.draws import look_level, spent_level
from cascade.modes.look import Asked, Found, Rows, look_at, too_few, unseen
from cascade.modes.people import KIND, check_terms
from cascade.modes.plan import Plan
from cascade.modes.planning import planned
from cascade.modes.state import CascadeState, Draw, Opened
from cascade.modes.store import LOST_S, ModeStore, now_iso

LEASE_S = 300.0
"""Seconds after which another process may resume an unfinished look, whose process may have been killed."""
_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Promotion(Result):
    """The outcome of an attempt to promote (a look).

    Attributes:
        cascade: the cascade's name.
        promoted: whether a policy is in force from now on.
        canary: the share of keys that it serves.
        page: the arithmetic, as plain values (`modes.look`).
    """

    cascade: str
    promoted: bool
    canary: float
    page: Mapping[str, Any]

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        for said in _said(self):
            yield Text(plain_text(said))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {"cascade": self.cascade, "promoted": self.promoted, "canary": self.canary, **self.page}


@dataclass(frozen=True, slots=True)
class PromotionPlan(Result):
    """An estimate of what is still missing for a promotion to be likely.

    Attributes:
        cascade: the cascade's name.
        plan: the figures.
    """

    cascade: str
    plan: Plan

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
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
    """Try to certify a policy on the certifying rows, and put it in force if that succeeds and it saves money.

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
    if canary is not None and not 0 < canary <= 1:
        raise UsageError(f"A canary is a share of the keys above 0, at most 1, not {canary:g}.")
    with _looking(config, cascade) as at, at.leased():
        if not anyway:
            at.refuse_unlikely()
        return at.promoted(at.modes.canary if canary is None else canary, by)


def promote_if_likely(
    config: CascadeConfig | str | Path, *, cascade: str | None = None, by: str = "promote"
) -> Promotion | PromotionPlan:
    """Make a plan; promote if it says that a promotion is likely, or if a look was interrupted.

    The plan reads only fitting rows, so the time of the look does not depend on the certifying rows.

    Raises:
        UsageError: another process is looking, or nothing was observed yet.
        ConfigError: the configuration has no modes.
    """
    with _looking(config, cascade) as at, at.leased():
        plan = at.planned()
        return at.promoted(at.modes.canary, by) if plan.plan.is_likely or at.is_open else plan


def plan_promotion(config: CascadeConfig | str | Path, *, cascade: str | None = None) -> PromotionPlan:
    """Estimate from the fitting rows what a promotion still needs. No certifying row is read.

    The plan is kept for the server's page.

    Raises:
        ConfigError: the configuration has no modes.
        UsageError: nothing was observed yet.
    """
    with _looking(config, cascade) as at:
        return at.planned()


@contextmanager
def _looking(config: CascadeConfig | str | Path, cascade: str | None) -> Iterator[_Looking]:
    """Open the store of a cascade's modes while the block runs."""
    settings = load(config)
    if settings.modes is None:
        raise ConfigError(["modes: the configuration has no such section, so nothing was observed"])
    name = settings.server.name
    if cascade not in {None, name}:
        raise UsageError(f"There is no cascade {cascade!r} in this configuration; it serves {name}.")
    with closing(ModeStore.open(modes_url(settings) or "")) as store:
        yield _Looking(settings, settings.modes, store, name)


@dataclass(frozen=True)
class _Looking:
    """A cascade that may be looked at: its configuration, and where its modes are kept."""

    settings: CascadeConfig
    modes: ModesConfig
    store: ModeStore
    name: str

    @property
    def is_open(self) -> bool:
        """Whether an unfinished look is open; its share of delta is already spent."""
        return any(one.verdict == "open" for one in self.store.looks(self.name))

    @cached_property
    def asked(self) -> Asked:
        """The request for a look."""
        modes = self.modes
        reviews = None if modes.guarantee != KIND else reviews_of(self.settings)
        check_terms(reviews, modes.comparator)
        return Asked(modes.alpha, modes.delta, modes.audit, modes.comparator, self.settings, modes.guarantee, reviews)

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the right to look while the block runs. Raises UsageError if another process has it."""
        owner, now_s = secrets.token_hex(16), _now_s()
        if not self.store.lease(self.name, owner, now_s, now_s + LEASE_S):
            left_s = max(0.0, self.store.leased_until(self.name) - now_s)
            again = f"Try again once it is done, in {left_s:.0f} s at most."
            raise UsageError(f"Another process is looking at {self.name}. {again}")
        try:
            yield
        finally:
            self.store.release(self.name, owner)

    def refuse_unlikely(self) -> None:
        """Raise UsageError if the latest plan and a new one both say that no promotion is likely now."""
        kept, state = self.store.plan(self.name), self.store.state(self.name)
        if kept is None or not kept.plan.is_about(state) or kept.plan.is_likely or self.is_open:
            return
        plan = self.planned().plan
        if not plan.is_likely:
            level = look_level(self.modes.delta, plan.look)
            raise UsageError(
                f"{self.name} was not looked at: {plan.describe().rstrip('.')}. The look would spend {level:.3g} of "
                "delta. To look all the same: cascade promote --anyway"
            )

    def promoted(self, canary: float, by: str) -> Promotion:
        """Evaluate the certifying rows once, and put the policy in force if it may serve."""
        modes, store, name, asked = self.modes, self.store, self.name, self.asked
        store.expire(name, _now_s() - LOST_S)
        opened = store.open_look(name, by, _now_s(), lambda look, fit, certify: too_few(asked, look, fit, certify))
        found = self._found(opened)
        page = {**found.page, "delta_spent": spent_level(modes.delta, opened.look), "canary": canary}
        held, at = found.in_force, now_iso()
        files = {file: base64.b64encode(data).decode("ascii") for file, data in found.files.items()}

        def put_in_force(state: CascadeState) -> CascadeState:
            if held is None or state.era != opened.era:
                return state
            monitor = Monitor.start(alpha=held.alpha, delta=held.delta, level=look_level(modes.level, opened.look))
            return state.promoted(held, monitor, canary, by, at)

        if not store.close_look(name, opened.look, page, files, put_in_force):
            raise UsageError(
                f"Another process closed look {opened.look} of {name} first: see the page /ui of the server."
            )
        return Promotion(name, store.looks(name)[opened.look - 1].verdict == "promoted", canary, page)

    def _found(self, opened: Opened) -> Found:
        """Look at the rows of an open look."""
        why = None
        if opened.tries > _MOST_TRIES:
            why = f"{_MOST_TRIES} processes began this look, and each ended before it was done"
        elif opened.era != self.store.state(self.name).era:
            why = "a certificate was withdrawn since it began, so its rows certify nothing"
        if why is not None:
            return Found(unseen(self.asked, opened, why))
        drawn = self.store.draws(self.name)
        drawn = [one for one in drawn if one.era == opened.era and one.drawn_s <= opened.opened_s]
        return look_at(self._rows(drawn), opened.certifying, self.asked, opened.look)

    def planned(self) -> PromotionPlan:
        """Plan a promotion, and keep the plan."""
        state, counts, modes = self.store.state(self.name), self.store.counts(self.name), self.modes
        may_fit = [
            one
            for one in self.store.draws(self.name)
            if one.era == state.era and one.outcome != "pending" and (one.role == "fit" or one.look is not None)
        ]
        share = modes.share if state.rate is None or modes.per_day is None else state.rate
        plan = planned(self._rows(may_fit), self.asked, state.looks + 1, counts, share * modes.certify)
        plan = replace(plan, era=state.era)
        self.store.keep_plan(self.name, plan)
        return PromotionPlan(self.name, plan)

    def _rows(self, drawn: list[Draw]) -> Rows:
        """Read the traces of drawn requests."""
        url = traces_url(self.settings.traces)
        assert url is not None  # noqa: S101 - `modes_url` has looked
        models = [self.settings.models[place].model for place in self.settings.strategy.places]
        with Store.open(url, read_only=True) as traces:
            return Rows(traces.read({"walk": "null"}), drawn, models, self.asked)


def _now_s() -> float:
    return datetime.now(UTC).timestamp()


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
            about, lose = "are answered wrongly where the guide is right", "lose, or differ and were not judged"
        yield (
            f"certificate: at most {page['alpha']:.1%} of the requests {about} (comparator "
            f"{page['comparator']}). {page['losses']} of {page['certifying_conversations']} {lose}, and up to "
            f"{page['losses_allowed']} would certify. Policy: {page['policy']}; cheaper models serve "
            f"{page['served_by_cheaper']:.0%} alone."
        )
        yield (
            f"saving: {page['saving_usd']:.3g} USD a request on average, with {page['audit']:.0%} of them audited; "
            f"the guide alone costs {page['guide_usd']:.3g} USD. It is at least {page['least_saving_usd']:.3g} USD, "
            f"except with probability .05/({look}·{look + 1}) = {page['saving_level_of_this_look']:.3g}, if no request "
            f"costs more than four times the most expensive request among the fitting rows."
        )
    if found.promoted:
        yield f"promoted, certificate {page['certificate']}: it serves {found.canary:.0%} of the keys from now on."
    else:
        yield f"not promoted: {page.get('why', 'a certificate was withdrawn meanwhile')}."
