"""`cascade ask`: one question from the shell. `cascade serve`: OpenAI's and Anthropic's APIs for applications."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cascade.checks import MAX_QUESTION_CHARS
from cascade.cli import options as opt
from cascade.cli.main import console, log_from, notes, print_json
from cascade.money import dollars
from cascade.safety import read_bounded
from cascade.text import counted
from cascade.types import Answer, Question

if TYPE_CHECKING:
    from cascade.config import CascadeConfig

_NO_ANSWER = 1
_MOST_BYTES = 4 * MAX_QUESTION_CHARS


def ask(
    question: Annotated[str, typer.Argument(help='The question; "-" reads it from standard input.')],
    config: opt.Config = opt.CONFIG,
    context: Annotated[Path | None, typer.Option(help="A file with the text to answer from.")] = None,
    group: Annotated[str | None, typer.Option(help="The question's group: its document, its user.")] = None,
    segment: Annotated[
        str | None, typer.Option(help="The question's segment (a tenant, a task); its certificate is used.")
    ] = None,
    level: Annotated[str | None, typer.Option(help="The level to serve at, if the policy has several.")] = None,
    as_json: opt.AsJson = False,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each step.")] = False,
) -> None:
    """Answer one question.

    Example: cascade ask "Which river runs through Vienna?" --explain
    """
    from cascade.orchestrator import Orchestrator  # loaded when a question is asked, not for the help

    text = sys.stdin.read(MAX_QUESTION_CHARS + 1).strip() if question == "-" else question
    request = Question(text, _read(context), group, segment)
    with Orchestrator.from_config(config) as orchestrator:
        answer = orchestrator.ask(request, level=level)
    print_json(answer.to_dict()) if as_json else _show(answer, explain=explain)
    if answer.text is None:
        raise typer.Exit(_NO_ANSWER)


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        data = read_bounded(path, _MOST_BYTES, or_open_pipe=True)
        if data is not None:
            return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be read: {why}", param_hint="--context") from None
    raise typer.BadParameter(f"{path} has more than {_MOST_BYTES:,} bytes", param_hint="--context")


def _show(answer: Answer, *, explain: bool) -> None:
    out, certificate = console(), answer.certificate
    if answer.text is None:
        notes().print("no answer: no reply could be kept")
    else:
        out.print(Text(answer.text))  # unwrapped, even on a narrow terminal
    others = [text for text in answer.answers if text != answer.text]
    lines = [f"also kept: {'; '.join(others)}"] if others else []
    if explain:
        lines += answer.explain().splitlines()
        lines += [] if certificate is None else [f"certificate {certificate.id}: {certificate.statement()}"]
    for warning in answer.warnings:
        if warning.startswith("no certificate") and not explain:
            notes().print(warning, style="dim")
    detail = ", ".join(f"{model} {dollars(cost)}" for model, cost in answer.cost_by_model.items())
    bound = "" if answer.cost is not None or answer.cost_bound is None else f", at most {dollars(answer.cost_bound)}"
    steps = counted(len(answer.steps), "step") + (", run to the end for an audit" if answer.audited else "")
    lines.append(f"cost {dollars(answer.cost)}{bound} ({detail}), {steps}, {answer.latency_s:.1f} s")
    out.print("\n".join(lines), style="dim")


# --- serve ---


def serve(
    config: opt.Configs = [opt.CONFIG],  # noqa: B006 - typer copies it
    host: Annotated[str | None, typer.Option(help="The address to listen on; overrides server.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="The port; overrides server.port.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many processes; overrides server.workers.")] = None,
    access_log: Annotated[str | None, typer.Option(help="A file for a line of JSON per request; - for stdout.")] = None,
    new_key: Annotated[str | None, typer.Option(metavar="NAME", help="Make a key, print it once, and exit.")] = None,
) -> None:
    """Serve one cascade, or several, to clients of the OpenAI and Anthropic APIs.

    Example: cascade serve -c support.yaml -c sales.yaml
    """
    from cascade.server import lifecycle

    if new_key is not None:
        _print_key(new_key)
        return
    read = partial(_settings, config, {"host": host, "port": port, "workers": workers, "access_log": access_log})
    configs = read()
    server = next(iter(configs.values())).server
    shown = f"[{server.host}]" if ":" in server.host else server.host

    def listening(at: int) -> None:
        names = [settings.server.name for settings in configs.values()]
        notes().print(f"serving {' and '.join(names)} at http://{shown}:{at}/v1, pages at /ui (Ctrl-C ends)")
        for name, settings in zip(names, configs.values(), strict=True):
            notes().print(f"{name}: {_recorded(settings)}" if len(names) > 1 else _recorded(settings))

    if server.workers > 1:
        from cascade.server.workers import Supervisor

        Supervisor(configs, read, partial(log_from, logging.getLogger("cascade").level, timed=True)).serve(listening)
        return
    for name, status in lifecycle.serve(configs, listening, read).items():
        if status.answered:
            notes().print(f"{name}: {status.describe()}" if len(configs) > 1 else status.describe())


def _settings(paths: Sequence[Path], server: Mapping[str, Any]) -> dict[str, CascadeConfig]:
    """Return the configurations by their files. Raises MissingExtraError without the extra `server`."""
    from cascade.config import load
    from cascade.server.lifecycle import refuse_missing

    refuse_missing()
    configs = {str(path): load(path) for path in paths}
    update = {name: value for name, value in server.items() if value is not None}
    changed = {path: settings.server.model_copy(update=update) for path, settings in configs.items()}
    return {path: settings.model_copy(update={"server": changed[path]}) for path, settings in configs.items()}


def _recorded(settings: CascadeConfig) -> str:
    """Return where requests are recorded, and which parts of them."""
    from cascade.records.address import parse

    traces, url = settings.traces, settings.traces_url
    if traces is None or url is None:
        return "records nothing of requests and answers (traces: off)"
    texts = {"full": "questions and answers as text", "hash": "hashes of texts", "none": "no texts"}[traces.content]
    return f"records in {parse(url).shown}: {texts}, costs, signals"


def _print_key(name: str) -> None:
    """Print a new key, and the line of a configuration that admits it."""
    from cascade.server.auth import new_key

    fresh = new_key()
    notes().print("the key; it is shown once and stored nowhere:")
    console().print(fresh.key)
    notes().print("for the configuration:")
    notes().print(f"server: {{keys: [{{name: {name}, sha256: {fresh.sha256}}}]}}")
