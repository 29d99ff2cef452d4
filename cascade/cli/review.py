"""`cascade review`: people judge the outputs in which a cascade differs from its reference."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.cells import chop_cells
from rich.console import Console
from rich.text import Text

from cascade.api.judging import Judging, beside
from cascade.cli import options as opt
from cascade.cli.main import console, print_report, say
from cascade.errors import UsageError
from cascade.reports.report import Report, Table
from cascade.review.labels import agreements, tallies
from cascade.review.pairs import Output, Pair, output_lines, request_lines
from cascade.review.reviews import SKIPPED, Reviews, ReviewStore, read_reviews
from cascade.review.session import MOVES, Session
from cascade.text import counted, spelled

ENDED = "\x04"
"""What `Keys.read` returns at the end of the input."""
_ESCAPE = b"\x1b"
_BAR = "│ "


def review(
    episodes: opt.LogName,
    ask: Annotated[
        str, typer.Option(help="preference: which output is better; regret: also whether each is right.")
    ] = "preference",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file of reviews. By default beside the log.")
    ] = None,
    reviewer: Annotated[str | None, typer.Option(help="The reviewer's name. By default the user's name.")] = None,
    label_rate: Annotated[
        float | None, typer.Option(help="The share of questions drawn for review. By default 1: all.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draw. By default random.")] = None,
    skipped: Annotated[bool, typer.Option("--skipped", help="Show the skipped outputs again.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Print the judgements, and how far reviewers agree.")
    ] = False,
    where: opt.Columns = None,
    matcher: Annotated[str | None, typer.Option(help="The comparator of two outputs.")] = None,
    models: opt.Models = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --report: print one JSON document.")] = False,
) -> None:
    """Judge outputs that differ from the reference's: blind, in random order, each distinct output once.

    Each judgement is on the disk before the next pair is shown. Stop at any time; the same command continues.

    Example: cascade review episodes.parquet --ask regret
    """
    judging = Judging(episodes, output, ask, label_rate, seed, where, matcher, models)
    if report:
        print_report(_report(read_reviews(output or beside(episodes))), as_json=as_json)
        return
    if as_json:
        raise UsageError("A review prints no JSON; --json goes with --report.")
    outputs = judging.read(say)
    with ReviewStore(judging.path, judging.terms(outputs.comparator)) as store:
        _review(store, outputs.pairs, reviewer or _user(), skipped=skipped)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return "reviewer"


def _review(store: ReviewStore, pairs: Sequence[Pair], reviewer: str, *, skipped: bool) -> None:
    """Show each drawn pair that the reviewer has not judged, until none is left or the reviewer quits."""
    judged, terms = store.reviews.by(reviewer), store.reviews.terms
    if skipped:
        judged = {pair: judgement for pair, judgement in judged.items() if judgement.verdict != SKIPPED}
    session = Session(pairs, terms, reviewer, judged)
    screen, total = _Screen(console(), Keys(), len(session.drawn)), len(session.drawn)
    if session.current is not None:
        share = "" if terms.rate == 1 else f"; {total} of them were drawn, at a rate of {terms.rate:g}"
        differ = "differs" if len(pairs) == 1 else "differ"
        say(
            f"{counted(len(pairs), 'output')} {differ} from the reference's{share}. You are {reviewer}; {store.path} "
            "keeps your judgements."
        )
    _loop(session, store, screen)
    done = [session.judged[pair.id] for pair in session.drawn if pair.id in session.judged]
    aside = sum(judgement.verdict == SKIPPED for judgement in done)
    summary = f"{counted(len(done) - aside, 'pair')} of {total} judged"
    if aside:
        summary += f", {aside} skipped: a pair without a judgement counts as a loss (--skipped shows them again)"
    screen.out.print(Text(f"{summary}. {spelled(str(store.path))}"), soft_wrap=True)


class _Screen(NamedTuple):
    """Where pairs are shown, where keys are read, and the number of pairs."""

    out: Console
    keys: Keys
    total: int

    def show(self, session: Session, number: int) -> None:
        """Show the current pair, whole."""
        assert session.current is not None  # noqa: S101 - a pair is there
        first, second = session.current.outputs
        width = self.out.width
        rows = [Text(f"pair {number} of {self.total}", style="bold")]
        parts = {"request": request_lines(session.current.pair), "first": _said(first), "second": _said(second)}
        for name, lines in parts.items():
            rows += [Text(f"{name}:", style="bold"), *map(Text, barred([spelled(line) for line in lines], width))]
        for row in rows:
            self.out.print(row, no_wrap=True, overflow="ignore", crop=False)


def _said(output: Output) -> Iterator[str]:
    """Yield an output's lines, or a note that it is empty."""
    lines = list(output_lines(output))
    yield from lines if any(lines) else ["(nothing)"]


def _loop(session: Session, store: ReviewStore, screen: _Screen) -> None:
    """Show pairs and ask until the review ends. Each judgement is on the disk before anything else is shown."""
    displayed = None
    while session.current is not None:
        if session.current != displayed:
            displayed = session.current
            screen.show(session, session.number)
            screen.keys.forget()
        choices = " · ".join(f"{key} {meaning}" for key, meaning in {**session.stage.keys, **MOVES}.items())
        screen.out.print(Text(f"{session.stage.question}  {choices}", style="bold"), soft_wrap=True)
        key = screen.keys.read()
        pressed = session.press("q" if key == ENDED else key)
        if pressed.written is not None:
            store.add(pressed.written)
        if pressed.ended:
            return
        if not pressed.known:
            screen.out.print(f"{json.dumps(key)} has no meaning here.", markup=False)


# --- keys from the reviewer ---


class Keys:
    """Reads keys: single ones from a terminal, the first letter of each line from anything else."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()

    def read(self) -> str:
        """Return the next key; `ENDED` at the end of the input."""
        if not self.is_terminal:
            line = sys.stdin.readline()
            return line.strip()[:1] if line else ENDED
        with _single_keys(sys.stdin.fileno()) as descriptor:
            typed = os.read(descriptor, 64)
        # An arrow or function key arrives as several bytes, some of them digits; it is ignored.
        return "" if typed.startswith(_ESCAPE) else typed[:1].decode("ascii", "replace") or ENDED

    def forget(self) -> None:
        """Drop keys typed ahead: a key judges only the pair that was on the screen when it was pressed."""
        if self.is_terminal:
            with contextlib.suppress(ImportError):
                import termios

                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def _single_keys(descriptor: int) -> Iterator[int]:
    """Read each key at once, without echo; on systems that cannot do that, read a line at a time."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield descriptor
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def barred(lines: Sequence[str], width: int) -> list[str]:
    """Return lines broken at the width of the screen, each behind a bar, so that none looks like a line of cascade.

    >>> barred(["abcdef", ""], 6)
    ['│ abcd', '│ ef', '│ ']
    """
    room = max(1, width - len(_BAR))
    return [_BAR + piece for line in lines for piece in (chop_cells(line.expandtabs(4), room) or [""])]


# --- what was judged ---


def _report(reviews: Reviews) -> Report:
    """Return the reviewers' judgements, and how far they agree."""
    people, pairs = tallies(reviews), agreements(reviews)
    verdicts = {"output": "cascade better", "reference": "reference better", "equal": "equal", "both_bad": "both bad"}
    tables: dict[str, list[tuple[Any, ...]]] = {
        "Reviewers": [
            ("reviewer", "judged", "skipped", *verdicts.values(), "lost", "first better", "second better"),
            *((*tally[:3], *(tally.verdicts[name] for name in verdicts), *tally[4:]) for tally in people),
        ],
        "Agreement": [
            ("reviewers", "pairs of both", "same verdict", "Cohen's κ"),
            *((" and ".join(pair.reviewers), *map(_figure, pair[1:])) for pair in pairs),
        ],
    }
    document: dict[str, Any] = {"ask": reviews.terms.ask, "rate": reviews.terms.rate}
    document |= {"reviewers": [tally._asdict() for tally in people], "agreement": [pair._asdict() for pair in pairs]}
    columns = {title: [tuple(map(str, row)) for row in rows] for title, rows in tables.items() if len(rows) > 1}
    filled = tuple([Table(title, head, tuple(rows)) for title, (head, *rows) in columns.items()])
    return Report((f"{counted(len(people), 'reviewer')}.",), filled, document)


def _figure(value: object) -> str:
    return "undefined" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
