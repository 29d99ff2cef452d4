"""`cascade review`: people judge the outputs in which a cascade differs from its reference."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer
from rich.cells import chop_cells
from rich.console import Console

from cascade.api.logs import LogOptions
from cascade.api.reviews import ReviewOptions
from cascade.cli import options as opt
from cascade.cli.main import console, say
from cascade.records.address import located
from cascade.review.pairs import Pair, output_lines, request_lines
from cascade.review.reviews import SKIPPED, ReviewStore
from cascade.review.session import MOVES, Session
from cascade.text import counted, escaped

ENDED = "\x04"
"""What `_key` returns at the end of the input."""
_BAR = "│ "


def review(
    episodes: opt.LogName,
    ask: Annotated[
        str, typer.Option(help="preference: which output is better; regret: also whether each is right.")
    ] = "preference",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="The file of reviews, or a store. By default beside the log.")
    ] = None,
    reviewer: Annotated[str | None, typer.Option(help="The reviewer's name. By default the user's name.")] = None,
    label_rate: Annotated[
        float | None, typer.Option(help="The share of questions drawn for review. By default 1: all.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draw. By default random.")] = None,
    skipped: Annotated[bool, typer.Option("--skipped", help="Show the skipped outputs again.")] = False,
    where: opt.Columns = None,
    matcher: Annotated[str | None, typer.Option(help="The comparator of two outputs.")] = None,
    models: opt.Models = None,
) -> None:
    """Judge outputs that differ from the reference's: blind, in random order, each distinct output once.

    Each judgement is on the disk before the next pair is shown. Stop at any time; the same command continues.

    Example: cascade review episodes.parquet --ask regret
    """
    place = None if output is None else located(output)
    options = ReviewOptions(LogOptions(episodes, where, matcher, models=models), place, ask, label_rate, seed)
    outputs = options.read(say)
    with ReviewStore(options.path, options.terms(outputs.comparator)) as store:
        _review(store, outputs.pairs, reviewer or _user(), skipped=skipped)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return "reviewer"


def _review(store: ReviewStore, pairs: Sequence[Pair], reviewer: str, *, skipped: bool) -> None:
    """Show each drawn pair that the reviewer has not judged, until none is left or the reviewer quits.

    Each judgement is on the disk before anything else is shown.
    """
    judged, rate = store.reviews.by(reviewer), store.reviews.terms.rate
    if skipped:
        judged = {pair: judgement for pair, judgement in judged.items() if judgement.verdict != SKIPPED}
    session, out, displayed = Session(pairs, store.reviews.terms, reviewer, judged), console(), None
    if session.current is not None:
        drawn = "" if rate == 1 else f"; {len(session.drawn)} of them were drawn, at a rate of {rate:g}"
        differ = f"{counted(len(pairs), 'output')} {'differs' if len(pairs) == 1 else 'differ'}"
        say(f"{differ} from the reference's{drawn}. You are {reviewer}; {store.path} keeps your judgements.")
    while session.current is not None:
        if session.current != displayed:
            displayed = session.current
            _show_pair(session, out)
        choices = " · ".join(f"{key} {meaning}" for key, meaning in {**session.stage.keys, **MOVES}.items())
        out.print(f"{session.stage.question}  {choices}", style="bold")
        key = _key()
        pressed = session.press("q" if key == ENDED else key)
        if pressed.written is not None:
            store.add(pressed.written)
        if pressed.ended:
            break
        if not pressed.meant:
            out.print(f"{json.dumps(key)} has no meaning here.")
    _summarize(session, store, out)


def _show_pair(session: Session, out: Console) -> None:
    """Print the pair that is to be judged, and drop keys typed ahead: a key judges only what was on the screen."""
    shown = session.current
    assert shown is not None  # noqa: S101 - the caller looked
    out.print(f"pair {session.number} of {len(session.drawn)}", style="bold")
    first, second = shown.outputs
    _show("request", request_lines(shown.pair), out)
    _show("first", output_lines(first), out)
    _show("second", output_lines(second), out)
    if sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _summarize(session: Session, store: ReviewStore, out: Console) -> None:
    """Print how many pairs are judged, and where the judgements are kept."""
    done = [session.judged[pair.id] for pair in session.drawn if pair.id in session.judged]
    aside = sum(judgement.verdict == SKIPPED for judgement in done)
    skips = (
        f", {aside} skipped: a pair without a judgement counts as a loss (--skipped shows them again)" if aside else ""
    )
    out.print(f"{counted(len(done) - aside, 'pair')} of {len(session.drawn)} judged{skips}. {escaped(str(store.path))}")


def _show(name: str, lines: Iterable[str], out: Console) -> None:
    """Print lines whole under a name."""
    out.print(f"{name}:", style="bold")
    texts = [escaped(line) for line in lines]
    out.print("\n".join(barred(texts if any(texts) else ["(nothing)"], out.width)))


# --- keys from the reviewer ---


def _key() -> str:
    """Return the next key of a terminal, or the first letter of a line from anything else; `ENDED` at the end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip()[:1] if line else ENDED
    with _single_keys(sys.stdin.fileno()) as descriptor:
        typed = os.read(descriptor, 64)
    # An arrow or function key arrives as several bytes, some of them digits; it is ignored.
    return "" if typed.startswith(b"\x1b") else typed[:1].decode("ascii", "replace") or ENDED


@contextlib.contextmanager
def _single_keys(descriptor: int) -> Iterator[int]:
    """Read each key immediately, without echo."""
    import termios
    import tty

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
