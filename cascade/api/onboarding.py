"""`onboard`: estimate from a few of a log's requests what a new model would save if asked before the reference."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from cascade.api.collecting import collect
from cascade.api.fitting import FitResult, fit
from cascade.api.logs import Log, LogOptions, read_log
from cascade.checks import did_you_mean
from cascade.collection import CollectSettings
from cascade.config import CascadeConfig, load
from cascade.config.schema import ModelConfig
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.fitting.fit import FitSettings
from cascade.logs.files import write_rows
from cascade.plans import presets as strategies
from cascade.reports.report import Report, Result, Tell, promise_options, warn
from cascade.types import GUIDE_ONLY

_Row: TypeAlias = dict[str, Any]
_REFERENCE = "the log's reference"
"""The reference's entry under `models` while the probes are collected."""


@dataclass(frozen=True, repr=False, kw_only=True)
class OnboardingResult(Result):
    """The results of a new model on its probes.

    Attributes:
        model, reference: the new model, and the one that answers today.
        output: the log of the probes, with both models' answers, which `cascade fit` reads.
        fitted: the policy that `fit` finds on the probes, with what it saves and an interval for that.
    """

    model: str
    reference: str
    output: Path
    fitted: FitResult


def onboard(
    model: str,
    log: Log,
    output: str | Path,
    *,
    probes: int = 100,
    config: str | Path | CascadeConfig = "cascade.yaml",
    promise: Promise = Promise("regret", 0.05, 0.9),  # noqa: B008 - frozen
    concurrency: int = 8,
    seed: int = 0,
    tell: Tell = warn,
) -> OnboardingResult:
    """Ask a new model some of a log's requests, and estimate what it would save if asked before the log's reference.

    The reference's answers are taken from the log and not paid for again. The saving and its interval are those that
    `cascade fit` finds on the probes. A fit with more probes counts as another attempt on these.

    Args:
        model: the new model: its key or its name under models in the configuration.
        log: a log, or its name; a matcher among its options judges the new answers too.
        output: the log of the probes: .jsonl or .parquet. Requests recorded there are not asked again.
        probes: how many of the log's requests are asked.
        config: the configuration.
        promise: the promise that the policy has to keep.
        concurrency: how many requests run at once.
        seed: seed of the random draws. More probes with the same seed ask the same requests and some more.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: the model is not configured, or is the reference, or the log lacks the reference's answers.
        NotCertifiedError: the probes prove nothing, and no reference keeps the promise by definition.
        ProviderError: the new model failed.
    """
    settings = load(config)
    key, file = _entry_of(settings, model), Path(output)
    options = LogOptions.of(log)
    reading, matcher = read_log(options, promise.kind, tell), options.matcher
    last = _reference(reading.rows(), "labels" in promise.rules.needs)
    order = sorted(last)
    random.Random(seed).shuffle(order)
    name, reference = settings.models[key].id, str(last[order[0]]["model"])
    if name == reference:
        raise UsageError(f"{name} is the log's reference already: onboard a model that is to answer before it.")
    models = {**settings.models, _REFERENCE: ModelConfig(model=reference)}
    written = {"kind": "ladder", "models": [key, _REFERENCE], "prompts": settings.strategy.prompts}
    before = settings.model_copy(update={"models": models, "strategy": strategies.WRITTEN.read(written)})
    with TemporaryDirectory(prefix="cascade-probes-") as folder:
        source = Path(folder) / "probes.jsonl"
        write_rows(source, [last[request] for request in order[:probes]])
        asking = CollectSettings(resume=True, concurrency=concurrency, matcher=matcher, only=[key])
        done = collect(source, file, asking, config=before, tell=tell)
    if done.error is not None:
        raise done.error
    probed = LogOptions(file, matcher=matcher)
    fitted = fit(probed, promise, FitSettings(seed=seed), tell=tell)
    report = _report(fitted, name, reference, probed, promise)
    return OnboardingResult(reports=(report,), model=name, reference=reference, output=file, fitted=fitted)


def _report(fitted: FitResult, name: str, reference: str, log: LogOptions, promise: Promise) -> Report:
    report, head = fitted.reports[0], f"{name} before {reference}, on {fitted.done.requests} probes:"
    following = f"Next: cascade fit {log.command} {' '.join(promise_options(promise))} -o policy"
    lines = head, *report.lines[:-1], following  # the last line of a fit says how to write it
    document = {"model": name, "reference": reference, "output": str(log.log), "fit": fitted.to_dict()}
    return replace(report, lines=lines, document=document)


def _entry_of(settings: CascadeConfig, model: str) -> str:
    for key, entry in settings.models.items():
        if model in {key, entry.id}:
            return key
    names = [*settings.models, *(entry.id for entry in settings.models.values())]
    raise UsageError(f"No model is called {model!r} under models{did_you_mean(model, names)}; give it an entry there.")


def _reference(rows: Iterable[Mapping[str, Any]], labels: bool) -> dict[str, _Row]:
    """Return the reference's answer to each request: from the walk of the guide alone, or a ladder's last step."""
    steps, alone, data = dict[str, _Row](), dict[str, _Row](), set[str]()
    for row in rows:
        name = row["episode_id"]
        data.add(row["dataset"] or "log")
        if row["candidate"] is None or (labels and not row["gold"]):
            continue
        if row["walk"] == GUIDE_ONLY:
            alone[name] = {**row, "walk": None}
        elif row["walk"] is None and row["step"] >= steps.get(name, row)["step"]:
            steps[name] = dict(row)
    if len(data) > 1:
        raise UsageError(f"The log holds {len(data)} data sets; choose one: --where dataset=NAME.")
    if not (alone or steps):
        raise UsageError("The log has no request with the reference's answer and, if the promise needs it, a gold one.")
    return alone or steps
