"""`cascade ask`: one question from the shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cascade.api.output import dollars, plain
from cascade.checks import MAX_QUESTION_CHARS
from cascade.cli.main import console, notes, print_json
from cascade.safety import read_bounded
from cascade.text import counted
from cascade.types import Answer, Question, Step, TextDelta

if TYPE_CHECKING:
    from cascade.orchestrator import Orchestrator

_ABSTAINED = 1
_MOST_BYTES = 4 * MAX_QUESTION_CHARS


def ask(
    question: Annotated[str, typer.Argument(help='The question; "-" reads it from standard input.')],
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration.")] = Path("cascade.yaml"),
    context: Annotated[Path | None, typer.Option("--context", help="A file with the text to answer from.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="The question's group: its document, its user.")] = None,
    segment: Annotated[
        str | None,
        typer.Option("--segment", help="The question's segment (a tenant, a task); its certificate is used."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", help="The name of a level, of a policy that has several."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with everything.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each step.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show the models' answers as they are written.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="With --stream: also show reasoning and verdicts.")] = False,
) -> None:
    """Answer one question.

    Example: cascade ask "Which river runs through Vienna?" --explain
    """
    from cascade.orchestrator import Orchestrator  # loaded when a question is asked, not for the help

    text = sys.stdin.read(MAX_QUESTION_CHARS + 1).strip() if question == "-" else question
    asked = Question(text, _read(context), group, segment)
    with Orchestrator.from_config(config) as orchestrator:
        answer = _streamed(orchestrator, asked, level, raw=raw) if stream else orchestrator.ask(asked, level=level)
    if as_json:
        print_json(answer.to_dict())
    else:
        _show(answer, explain=explain)
    if answer.text is None:
        raise typer.Exit(_ABSTAINED)


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        data = read_bounded(path, _MOST_BYTES, or_open_pipe=True)
        if data is not None:
            return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be read: {said}", param_hint="--context") from None
    raise typer.BadParameter(f"{path} has more than {_MOST_BYTES:,} bytes", param_hint="--context")


def _streamed(orchestrator: Orchestrator, question: Question, level: str | None, *, raw: bool) -> Answer:
    """Show text on stderr as it comes, under the name of its model; return the answer."""
    out, heading = notes(), ""
    for event in orchestrator.stream(question, level=level, raw=raw):
        if isinstance(event, TextDelta):
            if heading != (heading := f"{event.role}, step {event.step}"):
                out.print(f"\n[dim]{plain(heading)}[/]")
            out.print(plain(event.text), end="", soft_wrap=True)
        elif isinstance(event, Step):
            out.print()
            out.print(f"[dim]{plain(event.reason)}[/]")
        else:
            return event
    raise AssertionError("a stream ends with its answer")  # pragma: no cover


def _show(answer: Answer, *, explain: bool) -> None:
    out = console()
    if answer.text is None:
        abstained = answer.stopped == "abstained"
        why = "the best one is not sure enough to be served" if abstained else "no reply could be kept"
        notes().print(f"no answer: {why}")
    else:
        out.print(plain(answer.text), soft_wrap=True)
    others = [text for text in answer.answers if text != answer.text]
    if others:
        out.print(f"[dim]also kept: {plain('; '.join(others))}[/]", soft_wrap=True)
    if explain:
        for line in answer.explain().splitlines():
            out.print(f"[dim]{plain(line)}[/]", soft_wrap=True)
        if answer.certificate is not None:
            said = f"certificate {answer.certificate.id}: {answer.certificate.statement()}"
            out.print(f"[dim]{plain(said)}[/]", soft_wrap=True)
    else:
        for warning in answer.warnings:
            if warning.startswith("no certificate"):
                notes().print(f"[dim]{plain(warning)}[/]", soft_wrap=True)
    detail = ", ".join(f"{plain(model)} {dollars(cost)}" for model, cost in answer.cost_by_model.items())
    bound = "" if answer.cost is not None or answer.cost_bound is None else f", at most {dollars(answer.cost_bound)}"
    steps = counted(len(answer.steps), "step") + (", run to the end for an audit" if answer.audited else "")
    out.print(f"[dim]cost {dollars(answer.cost)}{bound} ({detail}), {steps}, {answer.latency_s:.1f} s[/]")
