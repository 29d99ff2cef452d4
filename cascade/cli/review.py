"""`cascade review`: people judge the outputs in which a cascade differs from its reference."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from cascade.api.guarantee_options import GuaranteeOptions, wanted_guarantee
from cascade.api.logs import LogAsked, read_log
from cascade.api.output import spelled
from cascade.api.policies import policy_directory
from cascade.api.reviewing import compared
from cascade.calibration.samples import joined, once, one_a_group, tied
from cascade.cli.options import Alpha, AsJson, Delta, Episodes, Matched, Models, Where
from cascade.cli.output import console, say
from cascade.cli.review_report import say_plan, say_report
from cascade.cli.review_terminal import ENDED, Keys, barred, page
from cascade.conformal.labels import is_drawn
from cascade.episodes.files import is_url
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.review.labels import tables_with
from cascade.review.pairs import Compared, Output, Pair, compare
from cascade.review.path import Along, along_path
from cascade.review.plan import plans
from cascade.review.reviews import SKIPPED, ReviewFile, Terms, merged, read_reviews
from cascade.review.session import KEYS, MOVES, Choose, Judged, Session, Stage, one_by_one, shuffled
from cascade.review.shown import output_lines, request_lines
from cascade.text import counted

SUFFIX = ".reviews.jsonl"
_ASKED: dict[Stage, str] = {
    "better": "Which output is better?",
    "first right": "Is the first output right?",
    "second right": "Is the second output right?",
    "both right": "Are both right, or both wrong?",
}


def review_log(
    episodes: Episodes,
    ask: Annotated[
        str, typer.Option("--ask", help="preference: which output is better; regret: also whether each is right.")
    ] = "preference",
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="The file of reviews. By default beside the log. With --report several."),
    ] = None,
    reviewer: Annotated[str | None, typer.Option("--reviewer", help="Who judges. By default the user's name.")] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", help="A policy directory: show only what its certificate hangs on, until it is settled."
        ),
    ] = None,
    alpha: Alpha = None,
    delta: Delta = None,
    label_rate: Annotated[
        float | None,
        typer.Option("--label-rate", help="The share of questions that is drawn for review. By default 1, all."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Which questions are drawn. By default at random.")
    ] = None,
    skipped: Annotated[bool, typer.Option("--skipped", help="Show again what was skipped.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Say what was judged, and how far reviewers agree.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say how many judgements a certificate needs.")] = False,
    where: Where = None,
    matcher: Matched = None,
    models: Models = None,
    as_json: AsJson = False,
) -> None:
    """Judge the outputs that differ from the reference's: blind, in random order, each distinct one once.

    Each judgement is on the disk before the next pair is shown. Stop at any time, and go on with the same command.

    Example: cascade review episodes.parquet --ask regret
    """
    if report:
        files = output or [_beside(episodes)]
        say_report(merged([read_reviews(path) for path in files]), as_json=as_json)
        return
    terms = Terms(ask, matcher or "")  # type: ignore[arg-type]  # it says what is wrong with it
    wanted = _wanted(ask, alpha, delta) if plan or policy is not None else None
    if plan and wanted is not None:
        found = _compared(episodes, where, models, matcher)
        say_plan(
            plans(_certify(found), len(found.pairs()), _along(found, policy, wanted, terms), wanted),
            as_json=as_json,
        )
        return
    if as_json or (output is not None and len(output) > 1):
        raise UsageError(
            "A review is written to one file and prints no JSON; --json and several files go with --report."
        )
    path = output[0] if output else _beside(episodes)
    found = _compared(episodes, where, models, matcher or _held(path).matcher)
    terms = _terms(path, ask, found.comparator, label_rate, seed)
    with ReviewFile(path, terms) as file:
        along = None if wanted is None else _along(found, policy, wanted, file.reviews.terms)
        _review(file, found.pairs(), along, reviewer or _user(), skipped=skipped)


def _beside(episodes: str) -> Path:
    """Return the file of reviews beside a log."""
    if is_url(episodes) or not Path(episodes).is_file():
        raise UsageError(f"{episodes} is no file that reviews could stand beside: name one with -o FILE.")
    return Path(f"{episodes}{SUFFIX}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return "reviewer"


def _wanted(ask: str, alpha: float | None, delta: float | None) -> Guarantee:
    """Return what is to be certified in the end."""
    return wanted_guarantee(GuaranteeOptions(ask, alpha, delta), None, say)


class _Held(NamedTuple):
    """What a file of reviews was begun with, as far as the command line may leave it out."""

    matcher: str | None = None
    rate: float = 1.0


def _held(path: Path) -> _Held:
    if not path.exists() or not path.stat().st_size:
        return _Held()
    terms = read_reviews(path).terms
    return _Held(terms.matcher, terms.rate)


def _terms(path: Path, ask: str, comparator: str, rate: float | None, seed: int | None) -> Terms:
    """Return what a file is begun with; of one that is there, what was not said stays as it is."""
    key = "" if seed is None else f"seed {seed}"
    return Terms(ask, comparator, _held(path).rate if rate is None else rate, key)  # type: ignore[arg-type]


def _compared(episodes: str, where: Sequence[str] | None, models: str | None, matcher: str | None) -> Compared:
    """Return a log's outputs; say of how many requests nobody can tell."""
    log = read_log(compared(LogAsked(episodes, where, matcher, models=models)), say)
    found = compare(log.rows, matcher)
    if found.without_reference:
        said = f"{counted(found.without_reference, 'request')} of the log have no output of the reference: not shown"
        say(said)
    return found


def _along(compared: Compared, policy: Path | None, wanted: Guarantee, terms: Terms) -> Along | None:
    if policy is None:
        return None
    held = policy_directory(policy, certificates=False)
    return along_path(compared, held.policy, held.artifact, wanted, terms)


def _certify(compared: Compared) -> int:
    """Return how many questions of a log can certify: one of each group."""
    table = tied(joined(tables_with(compared, lambda _, __: True)))
    return one_a_group(table.take(once(table))).n


def _review(file: ReviewFile, pairs: Sequence[Pair], along: Along | None, reviewer: str, *, skipped: bool) -> None:
    """Show each drawn pair that the reviewer has not judged, until none is left or the reviewer ends it."""
    terms, judged = file.reviews.terms, file.reviews.by(reviewer)
    if skipped:
        judged = {pair: one for pair, one in judged.items() if one.verdict != SKIPPED}
    drawn = [pair for pair in pairs if is_drawn(terms.key, pair.question, terms.rate)]
    order = shuffled(drawn, terms.key, reviewer)
    by_id = {pair.id: pair for pair in order}
    choose = one_by_one(order) if along is None else _settling(along, order, terms.ask)
    earlier = [by_id[pair] for pair in judged if pair in by_id]
    session = Session(terms.ask, reviewer, terms.key, choose, judged, earlier)
    screen = _Screen(console(), Keys(), len(order) if along is None else None)
    if session.current is not None:
        told = f"{_to_do(pairs, drawn, terms)} You are {reviewer}; {file.path} keeps what you say."
        say(told)
    _loop(session, file, screen)
    _say_done(session, order, along, screen, file.path)


def _settling(along: Along, order: Sequence[Pair], ask: str) -> Choose:
    """Return what chooses among the pairs that the next point of the path hangs on, in a reviewer's order."""
    place = {pair.id: number for number, pair in enumerate(order)}

    def choose(judged: Judged) -> Pair | None:
        losses = {pair: lost for pair, one in judged.items() if (lost := one.loses(ask)) is not None}
        wanted = along.wanted(losses, frozenset(judged.keys() - losses.keys()))
        return min(wanted, key=lambda pair: place[pair.id], default=None)

    return choose


def _say_done(session: Session, order: Sequence[Pair], along: Along | None, screen: _Screen, path: Path) -> None:
    """Say how many were judged, and what is left."""
    done = [session.judged[pair.id] for pair in order if pair.id in session.judged]
    aside = sum(one.verdict == SKIPPED for one in done)
    said = f"{counted(len(done) - aside, 'pair')} of {len(order)} judged"
    if aside:
        said += f", {aside} skipped: a pair without a judgement counts as a loss (--skipped shows them again)"
    if along is not None and session.current is None:
        said += "; no further judgement changes what can be certified"
    screen.out.print(Text(f"{said}. {spelled(str(path))}"), soft_wrap=True)


def _to_do(pairs: Sequence[Pair], drawn: Sequence[Pair], terms: Terms) -> str:
    share = "" if terms.rate == 1 else f"; {len(drawn)} of them were drawn, at a rate of {terms.rate:g}"
    differ = "differs" if len(pairs) == 1 else "differ"
    return f"{counted(len(pairs), 'output')} {differ} from the reference's{share}."


class _Screen(NamedTuple):
    """Where pairs are shown, who presses keys, and of how many pairs, where that is known."""

    out: Console
    keys: Keys
    total: int | None

    def show(self, session: Session, number: int) -> str:
        """Show the current pair; return the key that ended it early."""
        assert session.current is not None  # noqa: S101 - a pair is there
        first, second = session.current.outputs
        width = self.out.width
        of = "" if self.total is None else f" of {self.total}"
        rows = [Text(f"pair {number}{of}", style="bold")]
        parts = {"request": request_lines(session.current.pair), "first": _said(first), "second": _said(second)}
        for name, lines in parts.items():
            rows += [Text(f"{name}:", style="bold"), *map(Text, barred([spelled(line) for line in lines], width))]
        return page(self.out, self.keys, rows)


def _said(output: Output) -> Iterator[str]:
    """Yield an output's lines, or that it is empty."""
    lines = list(output_lines(output))
    yield from lines if any(lines) else ["(nothing)"]


def _loop(session: Session, file: ReviewFile, screen: _Screen) -> None:
    """Show and ask until it ends. A judgement is on the disk before anything else is shown."""
    shown = None
    while session.current is not None:
        if session.current != shown:
            shown = session.current
            number = 1 + sum(one != shown.pair.id for one in session.judged)
            if screen.show(session, number):
                return
            screen.keys.forget()
        choices = " · ".join(f"{key} {said}" for key, said in {**KEYS[session.stage], **MOVES}.items())
        screen.out.print(Text(f"{_ASKED[session.stage]}  {choices}", style="bold"), soft_wrap=True)
        key = screen.keys.read()
        pressed = session.press("q" if key == ENDED else key)
        if pressed.written is not None:
            file.add(pressed.written)
        if pressed.ended:
            return
        if not pressed.known:
            screen.out.print(f"{json.dumps(key)} means nothing here.", markup=False)
