"""`promote`: looks at the observed requests, and puts a policy in force if it can be certified and saves money."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from cascade.api.judging import reviews_of
from cascade.config import CascadeConfig, load, modes_url, traces_url
from cascade.config.schema import ModesConfig
from cascade.errors import ConfigError, UsageError
from cascade.modes.look import LookResult, LookSettings, Row, complete, look_at, observed_in, unjudged, unseen
from cascade.modes.plan import LookPlan, plan_of, too_few
from cascade.modes.state import BY_PEOPLE, CascadeState, Draw, Look
from cascade.modes.store import LOST_S, ModeStore, now_iso
from cascade.records.traces import Store
from cascade.reports.report import Report, Result
from cascade.review.reviews import Reviews

LEASE_S = 300.0
"""Seconds after which another process may resume an unfinished look, whose process may have been killed."""
_MOST_TRIES = 3


@dataclass(frozen=True, repr=False, kw_only=True)
class Promotion(Result):
    """The outcome of an attempt to promote (a look).

    Attributes:
        cascade: the cascade's name.
        promoted: whether a policy is in force from now on.
        page: the arithmetic, as plain values (`modes.look`).
    """

    cascade: str
    promoted: bool
    page: Mapping[str, Any]


@dataclass(frozen=True, repr=False, kw_only=True)
class PromotionPlan(Result):
    """What the next look takes: the figures for a cascade, by its name."""

    cascade: str
    plan: LookPlan


def promote(
    config: CascadeConfig | str | Path = "cascade.yaml",
    *,
    cascade: str | None = None,
    plan: bool = False,
    if_ready: bool = False,
    by: str = "cascade promote",
) -> Promotion | PromotionPlan:
    """Certify a policy on the requests observed so far; if it also saves money, put it in force.

    Each look at certifying conversations spends a part of 1 − confidence, whether it promotes or not. They never
    certify again.

    Args:
        config: the configuration that is served, with a section modes.
        cascade: the cascade's name; by default server.name.
        plan: say what the next look takes; take no look.
        if_ready: look only if the plan says that there is enough; for a timer.
        by: who promotes, for the record.

    Returns:
        The outcome of the look, or the plan of the next one, which reads no certifying row: so the time of a look does
        not depend on them. The look is counted before a row is read, whatever it finds. One process looks at a time. If
        a process ends during its look, another one resumes it, with the same rows and the same level.

    Raises:
        UsageError: there are too few rows for any certificate, nothing was observed yet, or another process is looking.
            No look was taken.
        ConfigError: the configuration has no modes.
    """
    with _looking(config, cascade) as at:
        if plan:
            return at.planned()
        with at.leased():
            planned = at.planned() if if_ready else None
            return at.promoted(by) if planned is None or planned.plan.is_ready or at.is_open else planned


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

    config: CascadeConfig
    modes: ModesConfig
    store: ModeStore
    name: str

    @property
    def is_open(self) -> bool:
        """Whether an unfinished look is open; its level is already spent."""
        return any(look.verdict == "open" for look in self.store.looks(self.name))

    @cached_property
    def settings(self) -> LookSettings:
        """What a look is for."""
        reviews = None if self.modes.promise != BY_PEOPLE else reviews_of(self.config)
        _check_terms(reviews, self.modes.comparator)
        return LookSettings(self.modes, self.config, reviews)

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the right to look while the block runs. Raises UsageError if another process has it."""
        owner, now_s = secrets.token_hex(16), _now_s()
        self.store.change(self.name, lambda state: state.leased(owner, now_s, now_s + LEASE_S))
        try:
            yield
        finally:
            self.store.change(self.name, lambda state: state.released(owner))

    def promoted(self, by: str) -> Promotion:
        """Evaluate the certifying rows once, and put the policy in force if it may serve."""
        modes, store, name, settings = self.modes, self.store, self.name, self.settings
        store.expire(name, _now_s() - LOST_S)
        look = store.open_look(name, by, _now_s(), modes.delta, lambda *begun: too_few(modes.risk, *begun))
        result = self._result(look, settings)
        page, at = {**result.page, "spent": store.state(name).spent}, now_iso()

        def put_in_force(state: CascadeState) -> CascadeState:
            if result.in_force is None or state.era != look.era:
                return state
            return state.promoted(result.in_force, modes.level, by, at)

        promoted = store.close_look(look, page, result.files, put_in_force)
        if promoted is None:
            raise UsageError(f"Another process closed look {look.look} of {name} first: see the page /ui.")
        report = Report(
            tuple(_sentences(name, promoted, page)), document={"cascade": name, "promoted": promoted, **page}
        )
        return Promotion(reports=(report,), cascade=name, promoted=promoted, page=page)

    def _result(self, look: Look, settings: LookSettings) -> LookResult:
        """Look at the rows of an open look, and at those to fit that were drawn before it began."""
        drawn, why = self.store.draws(self.name, look=look.look), None
        if look.tries > _MOST_TRIES:
            why = f"{_MOST_TRIES} processes began this look, and each ended before it was done"
        elif look.era != self.store.state(self.name).era:
            why = "a certificate was withdrawn since it began, so its rows certify nothing"
        if why is not None:
            return unseen(look, settings, drawn, why)
        fit = [
            draw
            for draw in self.store.draws(self.name)
            if draw.era == look.era and draw.drawn_s <= look.opened_s
            if (draw.role != "certify" if draw.look is None else draw.look < look.look)
        ]
        both = [*fit, *drawn]
        try:
            observed = observed_in(self._rows(both), both, settings)
        except UsageError as error:
            return unseen(look, settings, drawn, f"no certificate: {error}")
        return look_at(observed, both, look, settings)

    def planned(self) -> PromotionPlan:
        """Return the plan of the next look; where people judge, the fitting rows tell how many answers are unjudged."""
        state = self.store.state(self.name)
        share = None
        if self.modes.promise == BY_PEOPLE:
            settled = [
                draw for draw in self.store.draws(self.name) if draw.era == state.era and draw.outcome != "pending"
            ]
            fit = [draw for draw in settled if draw.role != "certify" or draw.look is not None]
            share = unjudged(self._rows(fit), fit, self.settings)
        plan = plan_of(state, self.store.counts(self.name), self.modes, share)
        document = {"cascade": self.name, **plan._asdict()}
        report = Report((f"{self.name}: {plan.describe()}",), document=document)
        return PromotionPlan(reports=(report,), cascade=self.name, plan=plan)

    def _rows(self, drawn: list[Draw]) -> list[Row]:
        """Read the traces of drawn requests."""
        url = traces_url(self.config.traces)
        assert url is not None  # noqa: S101 - `modes_url` has looked
        models = [self.config.models[name].model for name in self.config.strategy.entries]
        with Store.open(url, read_only=True) as traces:
            return complete(traces.read({"walk": "null"}), drawn, models)


def _check_terms(reviews: Reviews | None, comparator: str | None) -> None:
    """Refuse reviews that cannot support a promise of regret. Raises UsageError."""
    if reviews is None:
        return
    terms, problems = reviews.terms, list[str]()
    if terms.ask != BY_PEOPLE:
        problems.append("they ask only which answer is better, and regret needs right or wrong for both")
    if terms.rate != 1:
        problems.append(f"they were begun with a drawn share of {terms.rate:g}, and here every drawn request is judged")
    if comparator not in {None, terms.matcher}:
        problems.append(f"they compare by {terms.matcher}, and modes.comparator is {comparator}")
    if problems:
        raise UsageError(f"These reviews cannot be used: {'; '.join(problems)}. Begin a new file: server.review.file.")


def _now_s() -> float:
    return datetime.now(UTC).timestamp()


def _sentences(cascade: str, promoted: bool, page: Mapping[str, Any]) -> Iterator[str]:
    if "fit_rows" in page:
        yield (
            f"{cascade}, look {page['look']}: {page['fit_rows']} rows fit the policy, and "
            f"{page['certifying_conversations']} conversations certify it. {page['missing']} of their "
            f"{page['requests']} requests have no outcome and count as losses."
        )
    yield (
        f"level: this look may spend {page['level']:.3g} of the {1 - page['confidence']:.3g} of all looks; "
        f"spent by now {page['spent']:.3g}."
    )
    if "losses" in page:
        about, lose = "differ from the guide", "differ"
        if page["promise"] == BY_PEOPLE:
            about, lose = "are answered wrongly where the guide is right", "lose, or differ and were not judged"
        yield (
            f"certificate: at most {page['risk']:.1%} of the requests {about} (comparator {page['comparator']}), if "
            f"after a cheaper model's answer the guide answers the rest of the conversation. {page['losses']} of "
            f"{page['requests']} {lose}, and about {page['losses_allowed']} may. Policy: {page['policy']}."
        )
    if "saving_usd" in page:
        yield (
            f"saving: {page['saving_usd']:.3g} USD a request on these conversations, of which cheaper models answer "
            f"{page['served_by_cheaper']:.0%}, with {page['audit']:.0%} of the "
            f"requests audited; the guide alone costs {page['guide_usd']:.3g} USD."
        )
    if promoted:
        yield f"promoted, certificate {page['certificate']}: it serves from now on."
    else:
        yield f"not promoted: {page.get('why', 'a certificate was withdrawn meanwhile')}."
