"""The state of a cascade with modes, for the page: who serves, the looks and their cost in delta, and the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cascade.config import CascadeConfig, modes_url
from cascade.errors import UsageError
from cascade.modes.draws import look_level, spent_level
from cascade.modes.plan import plan_of
from cascade.modes.state import CascadeState, Change, Counts, Draw, InForce, Look
from cascade.modes.store import ModeStore
from cascade.server.pages import chart
from cascade.server.pages.words import share
from cascade.text import capital, counted, percent

_NEWEST = 5_000
"""The most drawn rows that are read, the newest ones."""
_CHANGES = 8


class Promise(NamedTuple):
    """A certificate in service, as a page shows it.

    Attributes:
        title: what it covers.
        statement: its promise in words.
        id: the certificate's.
        n: requests that it was made from.
        created, expires: dates, ISO 8601.
        days_left: days until it expires.
        problems: the reasons why it does not hold here today.
        audits, missed: how many audits were counted, and how many were missed.
        alpha: the promised share; None if the promise is not about a share of requests.
        line: the evidence against it, audit by audit; None if only the last value is known.
        delta: the share of calibrations that may give a certificate which does not hold; None for a promise on average.
    """

    title: str
    statement: str
    id: str
    n: int
    created: str
    expires: str | None
    days_left: int | None
    problems: tuple[str, ...]
    audits: int
    missed: int
    alpha: float | None
    line: chart.Line | None = None
    e_value: float | None = None
    alarm_at: float | None = None
    delta: float | None = None

    @property
    def audited(self) -> str:
        """The result of the audits, in a sentence."""
        if not self.audits:
            return "No audit yet."
        said = f"{self.missed} of {counted(self.audits, 'audit')} differed ({share(self.missed / self.audits)})."
        if self.e_value is None or self.alarm_at is None:
            return said
        return f"{said} Evidence against it: {self.e_value:.2g}; an alarm needs {self.alarm_at:.3g}."


class Standing(NamedTuple):
    """The state of a cascade, for the page.

    Attributes:
        state: its state.
        said: who serves, in a sentence.
        counts: drawn rows.
        looks: all looks, the latest first.
        changes: the latest changes, the latest first.
        delta, spent, next_look: the error probability of all certificates together, what looks have spent of it, and
            what the next one would spend.
        certificate: the certificate in force; None if there is none.
        observed: the traces of requests that were drawn while observing.
        plan: what the next look takes, in a sentence; None while a policy is in force.
        automatic: whether the server promotes by itself.
    """

    state: CascadeState
    said: str
    counts: Counts
    looks: Sequence[Look]
    changes: Sequence[Change]
    delta: float
    spent: float
    next_look: float
    certificate: Promise | None
    observed: frozenset[str]
    plan: str | None = None
    automatic: bool = False


def read_standing(config: CascadeConfig, guide: str) -> Standing | None:
    """Return the state of a configuration's cascade; None if it has no modes. Raises StoreError."""
    modes, url = config.modes, modes_url(config)
    if modes is None or url is None:
        return None
    store, name = ModeStore.open(url), config.server.name
    try:
        state, drawn = store.state(name), store.draws(name, newest=_NEWEST)
        held = state.in_force
        counted = [] if held is None else store.draws(name, newest=_NEWEST, counted_for=held.certificate)
        counts, looks = store.counts(name), store.looks(name)
    except UsageError:  # it has not been served yet
        state, drawn, counted, counts, looks = CascadeState(name), [], [], Counts(), []
    finally:
        store.close()
    return Standing(
        state,
        _said(state, guide),
        counts,
        looks[::-1],
        state.changes[::-1][:_CHANGES],
        modes.delta,
        spent_level(modes.delta, state.looks),
        look_level(modes.delta, state.looks + 1),
        _in_force(state, counted, looks, (guide, modes.delta)),
        frozenset([one.trace_id for one in drawn if one.source == "observe"]),
        None if state.mode == "enforce" else f"{capital(plan_of(state, counts, modes).describe())}.",
        modes.promote == "automatic",
    )


def _said(state: CascadeState, guide: str) -> str:
    """Return who serves, in a sentence."""
    if state.killed:
        return f"The kill switch is on: {guide} answers everything."
    if state.mode == "observe":
        return f"{guide} answers everything; the server observes what a cascade would have done."
    if state.mode == "fallback":
        return f"After an alarm, {guide} answers everything until there is a new certificate."
    return "The policy answers, under a certificate that audits watch."


def _broken(held: InForce, guide: str) -> str:
    """Return the event that the promise bounds, in words."""
    if held.by_people:
        return (
            f"answered wrongly where {guide} is right, as people judge; answers equal by {held.comparator} lose nothing"
        )
    return f"served otherwise than {guide} would answer, by the comparator {held.comparator}"


def _in_force(
    state: CascadeState, counted: Sequence[Draw], looks: Sequence[Look], about: tuple[str, float]
) -> Promise | None:
    """Return the certificate in force of a cascade with modes."""
    held, monitor = state.in_force, state.monitor
    guide, delta = about
    if held is None or monitor is None:
        return None
    values = [1.0, *(one.e_value for one in counted if one.e_value is not None)]
    issued = [one.at for one in looks if one.look == held.look]
    statement = (
        f"At most {percent(held.alpha)} of the requests that the policy may answer are {_broken(held, guide)}. "
        f"All certificates ever issued hold together with probability at least {percent(delta, rest=True)}."
    )
    problems = [] if state.alarm is None else [state.alarm]
    problems += ["It is not in service: the mode is observe."] if state.mode == "observe" else []
    return Promise(
        f"Look {held.look}",
        statement,
        held.certificate,
        held.n,
        issued[0] if issued else "",
        None,
        None,
        tuple(problems),
        monitor.audits,
        monitor.misses,
        held.alpha,
        chart.evidence(values, monitor.level),
        monitor.e_value,
        1 / monitor.level,
    )
