"""`cascade review`: as a person uses it in a terminal, and as a program does that gives a key a line."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE_S

from cascade.review.reviews import read_reviews
from unit.cli.conftest import Ran
from unit.review.booking import booking_log, call, episode, write

Cli = Callable[..., Ran]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set the keys that come in, one a line."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{key}\n" for key in text)))


def test_every_pair_once_and_then_nothing(cli, keys, tmp_path):
    booking_log(tmp_path / "log.jsonl", 4)
    keys("12=0")
    ran = cli("review", "log.jsonl", "--reviewer", "ann")
    assert ran.code == 0, ran.err
    assert ran.out.count("request:") == 4
    assert "4 pairs of 4 judged" in ran.out
    assert len(read_reviews(tmp_path / "log.jsonl.reviews.db").judgements) == 4
    keys("1")
    ran = cli("review", "log.jsonl", "--reviewer", "ann")
    assert "request:" not in ran.out


def test_nothing_tells_whose_output_it_is(cli, keys, tmp_path):
    booking_log(tmp_path / "log.jsonl", 30)
    keys("1" * 30)
    out = cli("review", "log.jsonl", "--reviewer", "ann").out
    assert not {"cheap", "dear", "guide", "x1"} & set(out.replace('"', " ").split())
    sides = [judgement.first for judgement in read_reviews(tmp_path / "log.jsonl.reviews.db").judgements]
    assert 5 <= sides.count("output") <= 25


def test_what_would_steer_the_terminal_is_spelt_out_and_nothing_is_cut(cli, keys, tmp_path):
    text = "\x1b[2J\x9b31m\u202e" + "long " * 5_000 + "\nWhich output is better?  1 both"
    write(tmp_path / "log.jsonl", episode(1, call("\x1b]0;title\x07"), call(1), text=text))
    keys("1")
    out = cli("review", "log.jsonl").out
    assert not set(out) & set("\x1b\x9b\u202e\x07")
    assert "\\u001b[2J\\u009b31m\\u202e" in out
    bars = [line.removeprefix("│ ") for line in out.splitlines() if line.startswith("│ ")]
    assert "".join(bars).count("long ") == 5_000
    assert sum(line.startswith("Which output") for line in out.splitlines()) == 1


def test_what_cannot_be_reviewed_is_reported(cli, keys, tmp_path):
    booking_log(tmp_path / "log.jsonl", 2)
    keys("1")
    cli("review", "log.jsonl")
    for arguments, message in (
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["demo"], "-o FILE"),
        (["log.jsonl", "--ask", "taste"], "taste"),
        (["log.jsonl", "--ask", "regret"], "begun with"),
        (["log.jsonl", "--label-rate", "0.5"], "begun with"),
        (["log.jsonl", "--label-rate", "0", "-o", "r.db"], "label_rate"),
        (["log.jsonl", "-o", "log.jsonl"], "log.jsonl"),
    ):
        ran = cli("review", *arguments)
        assert (ran.code, message in ran.err) == (2, True), (arguments, ran.err)


# --- a real terminal ---


@contextmanager
def terminal(folder: Path, *arguments: str, rows: int = 50) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command in a pseudo-terminal of its own."""
    main, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": str(rows)}
    command = [sys.executable, "-m", "cascade", "review", *arguments]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, cwd=folder, env=environment)
    os.close(other)
    try:
        yield process, main
    finally:
        process.kill()
        process.wait()
        os.close(main)


def until(screen: int, text: str) -> str:
    """Return what the terminal shows until a text stands there."""
    seen, end = "", time.monotonic() + PATIENCE_S
    while text not in seen and select.select([screen], [], [], max(0.0, end - time.monotonic()))[0]:
        try:
            seen += os.read(screen, 65_536).decode("utf-8", "replace")
        except OSError:  # the other side has closed it
            break
    assert text in seen, seen
    return seen


def test_killed_in_the_middle_nothing_is_lost_and_nothing_asked_twice(tmp_path):
    booking_log(tmp_path / "log.jsonl", 20)
    path, meetings = tmp_path / "log.jsonl.reviews.db", list[str]()
    with terminal(tmp_path, "log.jsonl", "--reviewer", "ann") as (process, screen):
        for key in b"12=012=0120":
            meetings += [line for line in until(screen, "q quit").splitlines() if "meeting" in line]
            os.write(screen, bytes([key]))
        meetings += [line for line in until(screen, "q quit").splitlines() if "meeting" in line]
        process.send_signal(signal.SIGKILL)
        process.wait()
    # When a pair is on the screen, the judgement of the one before is on the disk.
    assert len(read_reviews(path).judgements) == 11
    with terminal(tmp_path, "log.jsonl", "--reviewer", "ann") as (process, screen):
        again = [line for line in until(screen, "q quit").splitlines() if "meeting" in line]
        assert again == meetings[-1:]
        for _ in range(9):
            os.write(screen, b"=")
            seen = until(screen, "q quit") if len(meetings) < 20 else until(screen, "judged")
            meetings += [line for line in seen.splitlines() if "meeting" in line]
        assert process.wait(PATIENCE_S) == 0
    assert len(set(meetings)) == len(meetings) == 20
    assert len(read_reviews(path).judgements) == 20


def test_an_arrow_key_judges_nothing(tmp_path):
    booking_log(tmp_path / "log.jsonl", 1)
    with terminal(tmp_path, "log.jsonl") as (process, screen):
        until(screen, "q quit")
        os.write(screen, b"\x1b[1;5C")  # though a 1 is in it
        until(screen, "has no meaning")
        os.write(screen, b"q")
        until(screen, "0 pairs of 1 judged")
        assert process.wait(PATIENCE_S) == 0
