"""`cascade review`: people judge the outputs in which a cascade differs from its reference."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cascade.api.logs import open_rows
from cascade.api.output import plain, spelled
from cascade.cli.options import AsJson, Episodes, Matched, Where
from cascade.cli.output import console, notes, print_json, say
from cascade.cli.review_terminal import ENDED, Keys, barred, page
from cascade.conformal.labels import is_drawn
from cascade.episodes.files import is_url
from cascade.errors import UsageError
from cascade.review.pairs import AUTO, Output, Pair, episodes_of, pairs_of, without_reference
from cascade.review.report import agreements, tallies
from cascade.review.reviews import SKIPPED, ReviewFile, Reviews, Terms, merged, read_reviews
from cascade.review.session import KEYS, MOVES, Session, Stage, one_by_one, shuffled
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
    label_rate: Annotated[
        float | None,
        typer.Option("--label-rate", help="The share of questions that is drawn for review. By default 1, all."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Which questions are drawn. By default at random.")
    ] = None,
    skipped: Annotated[bool, typer.Option("--skipped", help="Show again what was skipped.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Say what was judged, and how far reviewers agree.")] = False,
    where: Where = None,
    matcher: Matched = None,
    as_json: AsJson = False,
) -> None:
    """Judge the outputs that differ from the reference's: blind, in random order, each distinct one once.

    Each judgement is on the disk before the next pair is shown. Stop at any time, and go on with the same command.

    Example: cascade review episodes.parquet --ask regret
    """
    files = output or [_beside(episodes)]
    if report:
        _say_report(merged([read_reviews(path) for path in files]), as_json=as_json)
        return
    if as_json or len(files) > 1:
        raise UsageError(
            "A review is written to one file and prints no JSON; --json and several files go with --report."
        )
    pairs = _read_pairs(episodes, where, matcher)
    terms = _terms(files[0], ask, matcher, label_rate, seed)
    with ReviewFile(files[0], terms) as file:
        _review(file, pairs, reviewer or _user(), skipped=skipped)


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


def _terms(path: Path, ask: str, matcher: str | None, rate: float | None, seed: int | None) -> Terms:
    """Return what a file is begun with; of one that is there, what was not said stays as it is."""
    held = read_reviews(path).terms if path.exists() and path.stat().st_size else None
    if held is not None:
        matcher, rate = matcher or held.matcher, held.rate if rate is None else rate
    key = "" if seed is None else f"seed {seed}"
    return Terms(ask, matcher or AUTO, 1.0 if rate is None else rate, key)  # type: ignore[arg-type]


def _read_pairs(episodes: str, where: Sequence[str] | None, matcher: str | None) -> list[Pair]:
    """Return a log's pairs; say of how many requests nobody can tell."""
    found = episodes_of(open_rows(episodes, where, say), matcher or AUTO)
    lacking = without_reference(found)
    if lacking:
        said = f"{counted(len(lacking), 'request')} of the log have no output of the reference, and are not shown"
        notes().print(said, style="yellow", soft_wrap=True)
    return pairs_of(found)


def _review(file: ReviewFile, pairs: Sequence[Pair], reviewer: str, *, skipped: bool) -> None:
    """Show each drawn pair that the reviewer has not judged, until none is left or the reviewer ends it."""
    terms, judged = file.reviews.terms, file.reviews.by(reviewer)
    if skipped:
        judged = {pair: one for pair, one in judged.items() if one.verdict != SKIPPED}
    drawn = [pair for pair in pairs if is_drawn(terms.key, pair.question, terms.rate)]
    wanted = shuffled(drawn, terms.key, reviewer)
    by_id = {pair.id: pair for pair in wanted}
    earlier = [by_id[pair] for pair in judged if pair in by_id]
    session = Session(terms.ask, reviewer, terms.key, one_by_one(wanted), judged, earlier)
    screen = _Screen(console(), Keys(), len(wanted))
    if session.current is not None:
        notes().print(
            plain(f"{_to_do(pairs, drawn, terms)} You are {reviewer}; {file.path} keeps what you say."), soft_wrap=True
        )
    _loop(session, file, screen)
    done = [session.judged[pair.id] for pair in wanted if pair.id in session.judged]
    set_aside = sum(one.verdict == SKIPPED for one in done)
    said = f"{counted(len(done) - set_aside, 'pair')} of {len(wanted)} judged"
    if set_aside:
        said += f", {set_aside} skipped: a pair without a judgement counts as a loss (--skipped shows them again)"
    screen.out.print(Text(f"{said}. {spelled(str(file.path))}"), soft_wrap=True)


def _to_do(pairs: Sequence[Pair], drawn: Sequence[Pair], terms: Terms) -> str:
    share = "" if terms.rate == 1 else f"; {len(drawn)} of them were drawn, at a rate of {terms.rate:g}"
    return f"{counted(len(pairs), 'output')} differ from the reference's{share}."


class _Screen(NamedTuple):
    """Where pairs are shown, who presses keys, and of how many pairs."""

    out: Console
    keys: Keys
    total: int

    def show(self, session: Session, number: int) -> str:
        """Show the current pair; return the key that ended it early."""
        assert session.current is not None  # noqa: S101 - a pair is there
        first, second = session.current.outputs
        width = self.out.width
        rows = [Text(f"pair {number} of {self.total}", style="bold")]
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


def _say_report(reviews: Reviews, *, as_json: bool) -> None:
    """Print what reviewers said and how far they agree."""
    each, both = tallies(reviews), agreements(reviews)
    if as_json:
        print_json(
            {
                "ask": reviews.terms.ask,
                "rate": reviews.terms.rate,
                "reviewers": [one._asdict() for one in each],
                "agreement": [one._asdict() for one in both],
            }
        )
        return
    out = console()
    if not each:
        out.print("Nothing was judged yet.")
        return
    heads = [
        "reviewer",
        "judged",
        "skipped",
        "cascade better",
        "reference better",
        "equal",
        "both bad",
        "lost",
        "first / second better",
    ]
    rows = [
        [
            one.reviewer, one.judged, one.skipped, one.verdicts["output"], one.verdicts["reference"],
            one.verdicts["equal"], one.verdicts["both_bad"], one.lost, f"{one.first_better} / {one.second_better}",
        ]
        for one in each
    ]  # fmt: skip
    out.print(_table(heads, rows))
    if both:
        heads = ["reviewers", "pairs of both", "same verdict", "Cohen's κ", "same on loss", "Cohen's κ"]
        out.print(
            _table(
                heads,
                [
                    [
                        " and ".join(one.reviewers),
                        one.pairs,
                        one.equal,
                        _two(one.kappa),
                        one.equal_losses,
                        _two(one.kappa_losses),
                    ]
                    for one in both
                ],
            )
        )


def _two(kappa: float | None) -> str:
    return "undefined" if kappa is None else f"{kappa:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for row in rows:
        table.add_row(*(Text(spelled(str(cell))) for cell in row))
    return table
