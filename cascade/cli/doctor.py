"""`cascade doctor`: check a set-up before any question is paid for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import typer

from cascade.cli import options as opt
from cascade.cli.main import print_report
from cascade.config import CascadeConfig, default_traces_url, environment, load
from cascade.config.policies import OwnConfig
from cascade.config.schema import GuaranteeConfig, ModelConfig
from cascade.conformal.certificate import MOVES
from cascade.conformal.scope import UNRECORDED, form_unsaid
from cascade.errors import CascadeError, ConfigError, NotCertifiedError, NoTracesError
from cascade.factory import build_strategy, endpoints
from cascade.money import Usage, dollars, usd_or_none
from cascade.orchestrator import Orchestrator
from cascade.providers import weights
from cascade.providers.registry import LITELLM, LOCAL, OPENAI_BASE, OPENAI_HTTP
from cascade.records.address import parse
from cascade.records.traces import Store
from cascade.reports.report import Report, Table
from cascade.serving.certified import CALIBRATE, in_service
from cascade.text import counted

_STORE_S = 10.0
"""How long a store has to answer."""


class Finding(NamedTuple):
    """One line: what was checked, the result ("ok", "note" or "problem"), and what it means."""

    what: str
    state: str
    says: str


def doctor(
    config: opt.Configs = [opt.CONFIG],  # noqa: B006 - typer copies it
    as_json: opt.AsJson = False,
) -> None:
    """Check configurations with their keys, prices, files, stores and certificates. This calls no model.

    Several configurations are also checked for use in one server.

    Example: cascade doctor --config cascade.yaml
    """
    findings, several = list[Finding](), len(config) > 1
    for path in config:
        prefix = f"{path}: " if several else ""
        findings += [finding._replace(what=prefix + finding.what) for finding in _findings(path)]
    if several and all(finding.state != "problem" for finding in findings):
        findings += _server(config)
    problems = sum(finding.state == "problem" for finding in findings)
    lines = (f"{counted(problems, 'problem') if problems else 'No problem'}.",)
    first = sorted(findings, key=lambda finding: finding.state != "problem")
    document = [finding._asdict() for finding in findings]
    print_report(Report(lines, (Table("", Finding._fields, tuple(first)),), document), as_json=as_json)
    if problems:
        raise typer.Exit(2)


def _tried(what: str, check: Callable[[], tuple[str, str]]) -> Finding:
    """Return the finding of a check, whose error is a problem."""
    try:
        return Finding(what, *check())
    except CascadeError as error:
        return Finding(what, "problem", str(error))


def _findings(path: Path) -> Iterator[Finding]:
    if not path.exists():
        yield Finding("configuration", "note", f"there is no {path}; cascade init writes one")
        yield _tried("traces", lambda: _traces(default_traces_url()))
        return
    try:
        config = load(path)
    except ConfigError as error:
        yield from (Finding(str(path), "problem", problem) for problem in error.problems)
        return
    yield Finding(str(path), "ok", "well-formed")
    if isinstance(own := config.policy, OwnConfig):
        yield Finding("policy", "ok", f"{own.kind}, which reads {', '.join(own.reads) or 'no signal'}")
    yield from _models(config)
    yield _tried("traces", lambda: _traces(config.traces_url))
    yield from [_tried("modes", lambda: _traces(config.modes_url))] if config.modes is not None else []
    if config.budget.caps:
        here = "ok", "caps are counted in this process"
        yield _tried("budget", lambda: here if config.ledger_url is None else _traces(config.ledger_url))
    if config.budget.alerts is not None:
        nowhere = "note", "logged, and posted nowhere"
        yield _tried("alerts", lambda: nowhere if config.alerts_url is None else ("ok", "posted"))
    yield from (certified := list(_certificates(config)))
    try:
        Orchestrator.from_config(config).close()
    except CascadeError as error:  # as `ask` reports it; the reasons may be among the findings already
        what = "certificate" if isinstance(error, NotCertifiedError) else "provider"
        problems = {finding.says for finding in certified if finding.state == "problem"}
        if not problems or (what == "provider" and str(error) not in problems):
            yield Finding(what, "problem", str(error))
    else:
        yield Finding("provider", "ok", config.provider.kind)


def _server(paths: Sequence[Path]) -> Iterator[Finding]:
    """Check whether one server may serve these configurations."""
    from cascade.server.lifecycle import together

    try:
        yield Finding("server", "ok", counted(len(together({str(path): load(path) for path in paths})), "cascade"))
    except ConfigError as error:
        yield from (Finding("server", "problem", problem) for problem in error.problems)


def _traces(url: str | None) -> tuple[str, str]:
    """Check whether the trace store can be written, without creating it."""
    if url is None:
        return "note", "off"
    address = parse(url)
    if address.path is not None:
        nearest = next(path for path in (address.path, *address.path.absolute().parents) if path.exists())
        folder = nearest if nearest != address.path else address.path.absolute().parent
        if not folder.is_dir() or not all(os.access(path, os.W_OK) for path in {nearest, folder}):
            return "problem", f"{address.shown}: {nearest} cannot be written"
        if nearest != address.path:
            return "ok", f"{address.shown}, which the first question makes"
    try:
        with Store(address, read_only=True, limit_s=_STORE_S) as store:
            return "ok", f"{address.shown}, {counted(store.count(), 'row')}"
    except NoTracesError:  # an empty database, as on the first day
        return "ok", f"{address.shown}, which the first question fills"


def _certificates(config: CascadeConfig) -> Iterator[Finding]:
    """Check whether the certificates hold with this configuration, today."""
    if not config.promises:
        return
    wanted = config.guarantee or GuaranteeConfig()
    lenient = config.model_copy(update={"guarantee": wanted.model_copy(update={"required": False})})
    try:
        certificates = in_service(lenient, build_strategy(config)).holding
    except CascadeError as error:
        yield Finding("policy", "problem", str(error))
        return
    if not certificates:
        yield Finding("certificate", "problem" if wanted.required else "note", f"none; {CALIBRATE}")
    for certificate, reasons in certificates:
        name = f"certificate{'' if certificate.covers == 'all' else f' of {certificate.covers} {certificate.name}'}"
        yield from (Finding(name, "problem", f"does not hold: {reason}") for reason in reasons)
        if not reasons:
            until = "" if certificate.expires is None else f" Until {certificate.expires}."
            yield Finding(name, "ok", f"{certificate.statement()}{until}")
        if form_unsaid(certificate.made_for.get("requests")):
            yield Finding(f"scope of {name}", "note", UNRECORDED)


def _models(config: CascadeConfig) -> Iterator[Finding]:
    prices = config.prices()
    for name, entry in config.models.items():
        price, kind = prices[entry.id], config.provider_of(entry)
        if price is None:
            yield Finding(f"price of {name}", "note", f"unknown, so costs are unknown: give {entry.id} a price")
        else:
            thousand = dollars(usd_or_none(price.cost_nano_usd(Usage(1_000, 1_000))))
            yield Finding(f"price of {name}", "ok", f"1,000 tokens in and out: {thousand} ({price.source})")
        if entry.model.endswith(MOVES):
            says = f"{entry.model}: the vendor may give this name to another model; a certificate needs a stable one"
            yield Finding(f"name of {name}", "note", says)
        for at, site in entry.sites.items():
            if missing := _missing_key(config, site, kind):
                yield Finding(f"key of {name}{f' at {at}' if at else ''}", "problem", missing)
        if kind == LOCAL:  # the file that the first question would load
            yield _tried(f"file of {name}", partial(lambda model: ("ok", str(weights.find(model))), entry.model))
    ours = [entry for entry in config.models.values() if config.provider_of(entry) == OPENAI_HTTP]
    for model, endpoint in endpoints(config, OPENAI_HTTP, ours).items():
        state = "ok" if endpoint.api_key else "problem" if endpoint.base_url == OPENAI_BASE else "note"
        yield Finding(
            f"address of {model}", state, f"{endpoint.base_url}, with{'' if endpoint.api_key else 'out'} a key"
        )


def _missing_key(config: CascadeConfig, entry: ModelConfig, provider: str) -> str | None:
    """Return which key of a model is missing, or that litellm knows no provider of it; None if neither is so."""
    if key_env := entry.api_key_env or config.provider.api_key_env:
        return None if environment(key_env) is not None else f"the environment variable {key_env} is not set"
    if provider != LITELLM or entry.api_base or find_spec("litellm") is None:  # `provider` reports that it is missing
        return None
    from cascade.providers.litellm import missing_keys, provider_of

    if not provider_of(entry.model):
        return f"litellm knows no provider of {entry.model}: name one before it, as in openai/{entry.model}"
    missing = missing_keys(entry.model)
    return f"{entry.model} needs {' or '.join(missing)}, which is not set" if missing else None
