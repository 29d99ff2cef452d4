"""`cascade doctor`: checks a set-up before any question is paid for."""

from __future__ import annotations

import os
import platform
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from cascade.api.output import dollars, plain
from cascade.cli import options as opt
from cascade.cli.main import console, print_json
from cascade.cli.models import shown_size
from cascade.config import CascadeConfig, default_traces_url, environment, ledger_url, load, traces_url
from cascade.config.policies import DirectoryConfig
from cascade.config.schema import GuaranteeConfig, ModelConfig, ServerConfig
from cascade.conformal.certificate import Certificate
from cascade.errors import EXTRAS, CascadeError, ConfigError, NotCertifiedError, NoTracesError, install_command
from cascade.factory import build_strategy, endpoints
from cascade.money import PriceTable, usd
from cascade.orchestrator import Orchestrator
from cascade.providers import weights
from cascade.providers.registry import OPENAI_BASE
from cascade.records.address import parse
from cascade.records.database import WAL_SINCE
from cascade.records.traces import Store
from cascade.server.access import listening_problems
from cascade.server.running import refuse_missing
from cascade.serving.certified import CALIBRATE, in_service
from cascade.serving.spending import Spending

_BAD_LITELLM = {"1.82.7": "carried malware", "1.82.8": "carried malware", "1.107.0": "was withdrawn"}
_PACKAGES = {
    "litellm": "provider litellm",
    "xllamacpp": "local models",
    "duckdb": "logs in Parquet, CSV or of other tools, and so the demo log,",
    "psycopg": "traces in PostgreSQL",
}


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Finding(NamedTuple):
    """One line: what was checked, the result ("ok", "note" or "problem"), and what it means."""

    what: str
    state: str
    says: str


def doctor(
    config: opt.Config = Path("cascade.yaml"),
    serve: Annotated[bool, typer.Option("--serve", help="Also check what cascade serve needs.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Check packages, weights and the configuration. This calls no model and costs nothing.

    Example: cascade doctor --config cascade.yaml
    """
    findings = [*_packages(), _tried("SQLite", _sqlite), *_configuration(config, serve=serve)]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        table = Table("what", "state", "says", show_lines=False)
        colour = {"ok": "green", "note": "yellow", "problem": "red"}
        for finding in findings:
            table.add_row(plain(finding.what), f"[{colour[finding.state]}]{finding.state}[/]", plain(finding.says))
        console().print(table)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(2)


def _packages() -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} on {sys.platform}")
    records = [(package.name, package.read_text("RECORD") or "") for package in distributions()]
    owners = sorted({name for name, record in records if "\ncascade/__init__.py," in f"\n{record}"})
    if len(owners) > 1:  # one has overwritten another
        says = f"{' and '.join(owners)} share their files. Keep one: pip uninstall {' '.join(owners)}, then install it"
        yield Finding("cascade", "problem", says)
    for name, purpose in _PACKAGES.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Finding(name, "note", f"needed for {purpose} only; not installed: {install_command(EXTRAS[name])}")
            continue
        fault = _BAD_LITELLM.get(installed) if name == "litellm" else None
        advice = f" {fault}: remove it, and change every key that it could read" if fault else ""
        yield Finding(name, "problem" if fault else "ok", f"{installed}{advice}")
    for entry in weights.registry().values():
        fetch = f"not here; cascade models pull {entry.name} ({shown_size(entry.bytes)})"
        yield Finding(f"weights {entry.name}", *(("ok", str(entry.path)) if entry.here else ("note", fetch)))


def _sqlite() -> tuple[str, str]:
    if sqlite3.sqlite_version_info >= WAL_SINCE:
        return "ok", sqlite3.sqlite_version
    slow = "is older than 3.51.3, so stores use the slower rollback journal; for many processes use PostgreSQL"
    return "note", f"{sqlite3.sqlite_version} {slow}"


def _tried(what: str, check: Callable[[], tuple[str, str]]) -> Finding:
    """Return what a check finds, its result and what it means; its error is a problem."""
    try:
        return Finding(what, *check())
    except CascadeError as error:
        return Finding(what, "problem", str(error))


def _traces(config: CascadeConfig | None) -> tuple[str, str]:
    """Check the trace store without creating it."""
    url = default_traces_url() if config is None else traces_url(config.traces)
    if url is None:
        return "note", "off"
    address = parse(url)
    if address.path is not None and not address.path.exists():
        return "ok", f"{address.shown}, which the first question makes"
    try:
        with Store.open(address, read_only=True) as store:
            return "ok", f"{address.shown}, {store.count()} rows"
    except NoTracesError:  # an empty database, as on the first day
        return "ok", f"{address.shown}, which the first question fills"


def _configuration(path: Path, *, serve: bool) -> Iterator[Finding]:
    if not path.exists():
        yield Finding("configuration", "problem" if serve else "note", f"there is no {path}; cascade init writes one")
        yield _tried("traces", lambda: _traces(None))
        return
    try:
        config = load(path)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(str(path), "problem", problem)
        return
    yield Finding(str(path), "ok", "well-formed")
    yield from _models(config)
    yield _tried("traces", lambda: _traces(config))
    if serve:
        yield from _serving(config)
    certified = list(_certificates(config))
    yield from certified
    try:
        Orchestrator.from_config(config).close()
    except CascadeError as error:  # what `ask` says; the reasons may be among the findings already
        what = "certificate" if isinstance(error, NotCertifiedError) else "provider"
        told = [finding for finding in certified if finding.state == "problem"]
        if not told or (what == "provider" and str(error) not in {finding.says for finding in told}):
            yield Finding(what, "problem", str(error))
    else:
        yield Finding("provider", "ok", config.provider.kind)


def _certificates(config: CascadeConfig) -> Iterator[Finding]:
    """Check whether the certificates hold with this configuration, today."""
    if config.guarantee is None and not isinstance(config.policy, DirectoryConfig):
        return
    asked = (config.guarantee or GuaranteeConfig()).model_copy(update={"required": False})
    serious = "problem" if config.guarantee is not None and config.guarantee.required else "note"
    try:
        certificates = in_service(config.model_copy(update={"guarantee": asked}), build_strategy(config)).holding
    except CascadeError as error:
        yield Finding("policy", "problem", str(error))
        return
    if not certificates:
        yield Finding("certificate", serious, f"none; {CALIBRATE}")
    for certificate, reasons in certificates:
        whom = "" if certificate.covers == "all" else f" of {certificate.covers} {certificate.name}"
        name = f"certificate{whom}"
        yield from (Finding(name, "problem", f"does not hold: {said}") for said in reasons)
        if not reasons:
            yield from _holding(name, certificate)


def _holding(name: str, certificate: Certificate) -> Iterator[Finding]:
    from cascade.conformal.fingerprint import unknown
    from cascade.conformal.scope import form_unsaid

    until = "" if certificate.expires is None else f" Until {certificate.expires}."
    yield Finding(name, "ok", f"{certificate.statement()}{until}")
    requests = certificate.made_for.get("requests")
    gaps = {
        "the kinds of its requests; others get no certificate": requests is None,
        "whether its models saw cascade's prompt or chat requests, so it covers both": form_unsaid(requests),
        f"{', '.join(unknown(certificate.made_for))}; fit with --config": bool(unknown(certificate.made_for)),
    }
    yield from (Finding(name, "note", f"made from a log that does not record {gap}") for gap in gaps if gaps[gap])


def _local_file(model: str) -> tuple[str, str]:
    """Look for a local model's file in the way that the first question does."""
    return "ok", str(weights.find(model))


def _key(config: CascadeConfig, entry: ModelConfig) -> tuple[str, str] | None:
    """Check a model's key; None if there is nothing to say."""
    key_env = entry.api_key_env or config.provider.api_key_env
    if key_env:
        return (
            None if environment(key_env) is not None else ("problem", f"the environment variable {key_env} is not set")
        )
    if (entry.provider or config.provider.kind) != "litellm" or entry.api_base:
        return None
    from cascade.providers.litellm import missing_keys

    try:
        missing = missing_keys(entry.model)
    except CascadeError:
        return None  # not installed: said already
    return ("problem", f"{entry.model} needs {' or '.join(missing)}, which is not set") if missing else None


def _models(config: CascadeConfig) -> Iterator[Finding]:
    prices, table = config.prices(), PriceTable.bundled()
    for place, entry in config.models.items():
        price = prices[entry.model]
        if price is None:
            yield Finding(f"price of {place}", "note", f"{entry.model}: unknown, so costs will be unknown; give it one")
        else:
            thousand = usd(price.bound_nano_usd(1_000, 1_000))
            yield Finding(f"price of {place}", "ok", f"1,000 tokens in and out: {dollars(thousand)} ({price.source})")
        if entry.price is not None and (known := table.price(entry.model)) and known != entry.price.price():
            yield Finding(f"price of {place}", "note", "differs from the bundled table; yours is used")
        if key := _key(config, entry):
            yield Finding(f"key of {place}", *key)
        if (entry.provider or config.provider.kind) == "local":
            yield _tried(f"file of {place}", partial(_local_file, entry.model))
    names = [entry.model for entry in config.models.values()]
    if len(names) > len(set(names)):
        yield Finding("models", "note", "one model judges itself: models prefer their own answers")
    if config.provider.kind == "openai_http":
        yield from _addresses(config)


def _addresses(config: CascadeConfig) -> Iterator[Finding]:
    """Report where openai_http sends its calls, and that it uses no proxy."""
    for name, endpoint in endpoints(config, "openai_http", config.models.values()).items():
        keyed = "with a key" if endpoint.api_key else "without a key"
        state = "ok" if endpoint.api_key else "problem" if endpoint.base_url == OPENAI_BASE else "note"
        yield Finding(f"address of {name}", state, f"{endpoint.base_url}, {keyed}")
    if proxies := [name for name in _PROXIES if environment(name) or environment(name.lower())]:
        yield Finding("proxy", "note", f"{', '.join(proxies)}: not used; openai_http calls the address itself")


# --- what `cascade serve` needs ---


def _serving(config: CascadeConfig) -> Iterator[Finding]:
    """Check the extra, the port, the keys, and the stores. A budget's store is created if it does not exist."""
    yield _tried("server packages", _server_packages)
    refused = [Finding("server address", "problem", said) for said in listening_problems(config.server)]
    yield from refused or [_port(config.server)]
    yield from _keys(config.server)
    yield _tried("server traces", lambda: _writable(traces_url(config.traces)))
    yield _tried("server budget", lambda: _budget(config))


def _server_packages() -> tuple[str, str]:
    refuse_missing()
    return "ok", "installed"


def _port(server: ServerConfig) -> Finding:
    """Bind the address as the server would, and release it."""
    where = f"{server.host}:{server.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        return Finding("server address", "problem", f"{where}: {error.strerror}; choose another with server.port")
    return Finding("server address", "ok", f"{where} is free")


def _keys(server: ServerConfig) -> Iterator[Finding]:
    today = datetime.now(UTC).date()
    for key in server.keys:
        if key.expires is not None and key.expires < today:
            yield Finding(f"server key {key.name}", "note", f"expired on {key.expires}; requests with it are refused")
        else:
            until = "" if key.expires is None else f", until {key.expires}"
            yield Finding(f"server key {key.name}", "ok", f"held as its SHA-256{until}")
    if not server.keys:
        yield Finding("server keys", "note", "none: anyone who can reach the address can send requests")


def _writable(url: str | None) -> tuple[str, str]:
    """Check whether traces can be written, without creating their file."""
    if url is None:
        return "note", "off, so POST /v1/feedback is refused"
    address = parse(url)
    if address.path is None:
        with Store.open(address):
            return "ok", f"{address.shown} can be written"
    there = next(one for one in (address.path, *address.path.absolute().parents) if one.exists())
    folder = there if there != address.path else address.path.absolute().parent
    if not folder.is_dir() or not all(os.access(one, os.W_OK) for one in {there, folder}):
        return "problem", f"{address.shown}: {there} cannot be written"
    return "ok", f"{address.shown} can be written"


def _budget(config: CascadeConfig) -> tuple[str, str]:
    if not config.budget.is_shared:
        return "note", "no cap on the spending of many requests together"
    spending = Spending.of(config)
    spending.ledger.account("total")
    spending.ledger.close()
    url = ledger_url(config.budget)
    if url is None:
        return "note", "counted in each process by itself, and forgotten when it ends"
    return "ok", f"{parse(url).shown} can be reached"
