"""`promote`: look at the observed requests, and put a policy in force if it can be certified and saves money."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade.config import CascadeConfig, load
from cascade.config.schema import AuditsConfig, ModesConfig
from cascade.conformal.certificate import digest
from cascade.errors import ConfigError, UsageError
from cascade.modes.look import LookResult, Row, complete, look_at, observed_in, unseen
from cascade.modes.state import CascadeState, Draw, Look, NextLook, next_look
from cascade.modes.store import ModeStore, now_iso
from cascade.records.traces import Store
from cascade.reports.report import Report, Result
from cascade.serving.conditions import made_for

_MOST_TRIES = 3


@dataclass(frozen=True, repr=False, kw_only=True)
class Promotion(Result):
    """The outcome of an attempt to promote.

    Attributes:
        cascade: the cascade's name.
        promoted: whether a policy is in force from now on.
        page: the arithmetic of the look, as plain values (`modes.look`); empty if none was taken.
        plan: in that case, what the next look takes.
    """

    cascade: str
    promoted: bool = False
    page: Mapping[str, Any] = field(default_factory=dict)
    plan: NextLook | None = None


def promote(config: CascadeConfig | str | Path = "cascade.yaml", *, plan: bool = False) -> Promotion:
    """Certify a policy on the requests observed so far; if it also saves money, put it in force.

    Each look at certifying conversations spends a part of 1 − confidence, whether it promotes or not, and they never
    certify again. Until there are enough of them, no look is taken, so a timer may call this.

    Args:
        config: the configuration that is served, with a section modes.
        plan: report what the next look takes, and take no look.

    Returns:
        The outcome of the look, or the plan of the next one. A plan reads no certifying row, so the time of a look does
        not depend on these rows. A look is counted before a row is read, whatever it finds. One process looks at a
        time. If it ends during its look, another one resumes the look, with the same rows and the same level.

    Raises:
        UsageError: nothing was observed yet, or another process is looking. No look was taken.
        ConfigError: the configuration has no modes.
    """
    settings = load(config)
    modes, audits, name = settings.modes, settings.audits, settings.server.name
    if modes is None or audits is None:
        raise ConfigError(["modes: the configuration has no such section, so nothing was observed"])
    with ModeStore.shared(settings.modes_url or "") as store:
        if store.state(name).observes not in {None, digest(made_for(settings))}:
            raise UsageError(
                f"{name} is served with another configuration than this: promote with its file and environment, or "
                "restart `cascade serve` with this configuration and let it observe requests. No look was taken."
            )
        now_s = store.now_s()
        store.count(name, now_s)
        if plan:
            return _planned(name, next_look(store.state(name), store.counts(name), modes))
        look = store.open_look(name, now_s, modes)
        return _planned(name, look) if isinstance(look, NextLook) else _promoted(store, look, settings, modes, audits)


def _planned(name: str, plan: NextLook) -> Promotion:
    lines = f"{name}: {plan.describe()}", *filter(None, [plan.counts.hindrance])
    document = {"cascade": name, **plan._asdict(), "counts": plan.counts._asdict()}
    return Promotion(reports=(Report(lines, document=document),), cascade=name, plan=plan)


def _promoted(
    store: ModeStore, look: Look, settings: CascadeConfig, modes: ModesConfig, audits: AuditsConfig
) -> Promotion:
    """Evaluate the certifying rows once, and put the policy in force if it may serve."""
    name, result = look.cascade, _result(store, look, settings, modes, audits.probability)
    page, at = {**result.page, "spent": store.state(name).spent}, now_iso()

    def put_in_force(state: CascadeState) -> CascadeState:
        if result.in_force is None or state.era != look.era:
            return state
        return state.promoted(result.in_force, audits.level, at)

    promoted = store.close_look(look, page, result.files, put_in_force)
    if promoted is None:
        raise UsageError(f"Another process closed look {look.look} of {name} first: see the page /ui.")
    report = Report(tuple(_sentences(name, promoted, page)), document={"cascade": name, "promoted": promoted, **page})
    return Promotion(reports=(report,), cascade=name, promoted=promoted, page=page)


def _result(store: ModeStore, look: Look, settings: CascadeConfig, modes: ModesConfig, audit: float) -> LookResult:
    """Evaluate an open look, on its rows and on the rows for fitting that were drawn before it began."""
    drawn, why = store.draws(look.cascade, look=look.look), None
    if look.tries > _MOST_TRIES:
        why = f"{_MOST_TRIES} processes began this look, and each ended before it was done"
    elif look.era != store.state(look.cascade).era:
        why = "a certificate was withdrawn since it began, so its rows certify nothing"
    if why is not None:
        return unseen(look, modes, drawn, why)
    fit = [
        draw
        for draw in store.draws(look.cascade)
        if draw.era == look.era and draw.drawn_s <= look.opened_s
        if (draw.role != "certify" if draw.look is None else draw.look < look.look)
    ]
    both = [*fit, *drawn]
    try:
        observed = observed_in(_rows(settings, both), both, settings, modes)
    except UsageError as error:
        return unseen(look, modes, drawn, f"no certificate: {error}")
    return look_at(observed, both, look, modes, audit)


def _rows(settings: CascadeConfig, drawn: list[Draw]) -> list[Row]:
    """Read the traces of drawn requests."""
    models = [settings.models[name].id for name in settings.strategy.entries]
    with Store(settings.traces_url or "", read_only=True) as traces:
        return complete(traces.read({"walk": "null"}), drawn, models)


def _sentences(cascade: str, promoted: bool, page: Mapping[str, Any]) -> Iterator[str]:
    if "fit_rows" in page:
        yield (
            f"{cascade}, look {page['look']}: {page['fit_rows']} rows fit the policy, and "
            f"{page['certifying_conversations']} conversations certify it. {page['missing']} of their "
            f"{page['requests']} requests have no outcome and count as losses."
        )
    yield (
        f"level: this look may spend {page['level']:.3g} of the {1 - page['confidence']:.3g} for all looks; "
        f"spent so far: {page['spent']:.3g}."
    )
    if "losses" in page:
        yield (
            f"certificate: at most {page['risk']:.1%} of the requests differ from the guide (comparator "
            f"{page['comparator']}), if after a cheaper model's answer the guide answers the rest of the conversation. "
            f"{page['losses']} of {page['requests']} differ, and about {page['losses_allowed']} may. "
            f"Policy: {page['policy']}."
        )
    if "saving_usd" in page:
        yield (
            f"saving: {page['saving_usd']:.3g} USD per request on these conversations, of which cheaper models answer "
            f"{page['served_by_cheaper']:.0%}, with {page['audit']:.0%} of the "
            f"requests audited; the guide alone costs {page['guide_usd']:.3g} USD."
        )
    if promoted:
        yield f"promoted, certificate {page['certificate']}: it serves from now on."
    else:
        yield f"not promoted: {page.get('why', 'a certificate was withdrawn meanwhile')}."
