"""SIGKILL at random moments of a collection over HTTP: no recorded call is lost, and none is paid again.

The server answers every call differently, so that a call made twice would show in the log too. A call is known by its
digest, read off its body. What counts as lost to a kill is what reached the server and is not in the journal:
at most one call a thread.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from shutil import copyfile
from tempfile import mkdtemp
from typing import Any

import pytest
from patience import PATIENCE_S, until

from cascade.collection import CollectSettings, collect, journal_of
from cascade.collection.collector import BASELINES
from cascade.config import load
from cascade.episodes.journal import Journal
from cascade.logs.files import read_rows
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import request_digest
from cascade.types import Message, Question, Request

from .bodies import chat, choice, encode, entry, verdict_logprobs
from .server import RAW, FaultServer

THREADS = 4
LONGEST_ANSWER_S = 0.012
ROOT = Path(__file__).parents[2]


# --- the server ---


@contextmanager
def differing(chance: random.Random) -> Iterator[FaultServer]:
    """Run a server that answers every call differently, each after a random while."""
    numbers = itertools.count(1)

    def answer(handler: Any, body: dict[str, Any]) -> None:
        number = next(numbers)
        time.sleep(chance.uniform(0, LONGEST_ANSWER_S))
        handler._send(200, encode(answered(body, number)))

    with pytest.MonkeyPatch.context() as patch, FaultServer() as server:
        patch.setitem(RAW, "differs", answer)
        server.modes |= {"small": "differs", "large": "differs"}
        yield server


def settled(server: FaultServer) -> list[str]:
    """Return the digests of all calls that came: one of our own is taken up after those, and then none is left open."""
    asking = HTTPConnection(*server._http.server_address)
    asking.request("GET", "/")
    asking.getresponse().read()
    asking.close()
    until(lambda: not any(thread.is_alive() for thread in vars(server._http).get("_threads", ())))
    return [digest_of(body) for body in server.requests]


def digest_of(body: dict[str, Any]) -> str:
    """Return the digest that a call has in the journal."""
    messages = tuple(Message(**message) for message in body["messages"])
    return request_digest(
        Request(
            body["model"],
            messages,
            "",
            "",
            0,
            Question(""),
            body["max_tokens"],
            body["temperature"],
            body.get("top_logprobs"),
            body.get("seed"),
        )
    )


def answered(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Return what the models say: something else each time."""
    task = body["messages"][0]["content"]
    if "You check the answers" in task:
        p_yes = 0.1 + 0.8 * (number * 7 % 10) / 10
        text, logprobs = ("Yes" if p_yes >= 0.5 else f"No, w{number}"), verdict_logprobs(p_yes)
    else:
        text = f"Reasoning: r{number}.\nAnswer: w{number}"
        text = ("CONTINUE", "EXIT")[number % 2] if "should stop" in task else text
        text = "132"[number % 3] if "how a question-answering system goes on" in task else text
        logprobs = [entry(text, -0.1)]
    return chat(choice(text, logprobs=logprobs if body.get("logprobs") else None), model=body["model"])


# --- who collects ---


def settings(address: str) -> dict[str, Any]:
    models = {
        "base": {"model": "small", "max_tokens": 32, "price": {"input": 0.1, "output": 0.4}},
        "guide": {"model": "large", "max_tokens": 32, "price": {"input": 1, "output": 4}},
    }
    return {"models": models, "provider": {"kind": "openai_http", "api_base": address}, "strategy": {"rounds": 2}}


def questions(count: int) -> list[AskedQuestion]:
    return [AskedQuestion(f"q{n}", Question(f"Which word is number {n}?"), (f"w{n}",)) for n in range(count)]


def work(folder: str, address: str, count: int) -> None:
    """Collect, in a process of its own."""
    collecting = CollectSettings(resume=True, concurrency=THREADS, baselines=["all"])
    collect(load(settings(address)), questions(count), Path(folder) / "log.jsonl", collecting)


class Forked:
    """A process forked from one that has the package loaded: it starts in milliseconds."""

    def __init__(self, folder: Path, address: str, count: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "cascade.providers.openai_http"])
        with pytest.MonkeyPatch.context() as patch:
            # The server that forks is told no path before it loads what it is to have loaded.
            patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
            self._process = context.Process(target=work, args=(str(folder), address, count), daemon=True)
            self._process.start()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


# --- killing ---


@dataclass
class Figures:
    """What the kills came to."""

    kills: int = 0
    kills_in_the_calls: int = 0
    requests: int = 0
    distinct: int = 0
    in_flight: int = 0
    paid_again: int = 0
    rows_lost: int = 0


@dataclass
class Campaign:
    """One set of questions, collected and killed and resumed until it is done."""

    folder: Path
    server: FaultServer
    count: int
    chance: random.Random
    figures: Figures
    texts: dict[str, str] = field(default_factory=dict)
    in_flight: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    def run(self, kills: int) -> int:
        """Kill at random until it is done by itself, at most so many times; return how many times it was."""
        for killed in range(kills):
            if not self._killed():
                self._judge_the_log()
                return killed
        process = Forked(self.folder, self.server.address, self.count)
        self._ends_well(process, len(self.server.requests))
        self._judge_the_log()
        return kills

    def _killed(self) -> bool:
        """Start a process and kill it at a random moment; return whether it was still alive."""
        before, recorded = len(self.server.requests), set(self.texts)
        process = Forked(self.folder, self.server.address, self.count)
        moment = self.chance.random()
        if moment < 0.2:
            alive = process.wait(self.chance.uniform(0, 0.4)) is None
        elif moment < 0.35:
            alive = self._alive_when(process, self._writes_the_log, 4 * LONGEST_ANSWER_S)
        else:
            call = before + self.chance.randint(1, 24)
            alive = self._alive_when(process, lambda: self.server.count() >= call, LONGEST_ANSWER_S)
        seen = self._on_disk()
        if alive:
            process.kill()
        code = process.wait(PATIENCE_S)
        arrived = settled(self.server)[before:]
        if code == 0:
            self._note(recorded, arrived, None)
            return False
        assert code == -9, f"it ended with {code}"
        on_disk = self._on_disk()
        assert seen.items() <= on_disk.items() or self.log.exists(), "a call that was there is not any more"
        self._note(recorded, arrived, on_disk)
        return True

    def _alive_when(self, process: Forked, happens: Callable[[], bool], more_s: float) -> bool:
        """Wait for something to happen and up to so much longer; return whether the process is still alive."""
        ends = time.monotonic() + PATIENCE_S
        while not happens():
            time.sleep(0.001)
            if process.wait(0.0) is not None:
                return False
            assert time.monotonic() < ends, "it neither goes on nor ends"
        return process.wait(self.chance.uniform(0, more_s)) is None

    def _writes_the_log(self) -> bool:
        return any(path.name == "log.jsonl" or path.suffix == ".part" for path in self.folder.iterdir())

    def _ends_well(self, process: Forked, before: int) -> None:
        recorded = set(self.texts)
        assert process.wait(PATIENCE_S) == 0
        self._note(recorded, settled(self.server)[before:], None)

    def _on_disk(self) -> dict[str, str]:
        """Return the calls in a copy of the journal, with what they said: a living process has the file for itself."""
        copy = Path(mkdtemp(dir=self.folder.parent)) / "copy"
        for suffix in ("-wal", ""):  # in this order: what has moved on meanwhile is then there twice
            with suppress(FileNotFoundError):
                copyfile(f"{journal_of(self.log)}{suffix}", f"{copy}{suffix}")
        with Journal(copy) as journal:
            rows = [journal.row(digest) or {} for digest in journal]
        return {row["signals"]["replay"]["request"]: row["text"] for row in rows}

    def _note(self, recorded: set[str], arrived: list[str], on_disk: dict[str, str] | None) -> None:
        """Take in one run: what it asked, and what it left on record. `on_disk` is None where it ended well."""
        figures = self.figures
        figures.requests += len(arrived)
        figures.paid_again += sum(digest in recorded for digest in arrived)
        figures.paid_again += sum(count - 1 for count in Counter(arrived).values())
        finished = self.log.exists()
        if on_disk is None or finished:
            on_disk = {**(on_disk or {}), **texts_in(self.log)}
        else:
            figures.kills_in_the_calls += bool(arrived)
        figures.rows_lost += sum(on_disk.get(digest) != text for digest, text in self.texts.items())
        lost = [digest for digest in arrived if digest not in on_disk]
        assert len(lost) <= THREADS, f"{len(lost)} calls were lost to one kill"
        figures.in_flight += len(lost)
        self.in_flight += len(lost)
        self.texts.update(on_disk)

    def _judge_the_log(self) -> None:
        """Compare the log with everything that was ever on record and everything that was ever asked."""
        figures, logged = self.figures, texts_in(self.log)
        assert not journal_of(self.log).exists()
        figures.rows_lost += sum(logged.get(digest) != text for digest, text in self.texts.items())
        arrived = settled(self.server)
        assert logged.keys() == self.texts.keys() == set(arrived)
        assert len(arrived) == len(logged) + self.in_flight
        ids = list(dict.fromkeys(row["episode_id"] for row in read_rows(self.log)))
        assert ids == [f"q{n}" for n in range(self.count)]
        walks = {row["walk"] for row in read_rows(self.log)}
        assert walks == {None, *BASELINES}
        figures.distinct += len(logged)


def texts_in(log: Path) -> dict[str, str]:
    return {row["signals"]["replay"]["request"]: row["text"] for row in read_rows(log)}


@pytest.mark.parametrize(
    ("kills", "count"), [(6, 8), pytest.param(200, 12, marks=[pytest.mark.long, pytest.mark.timeout(3_600)])]
)
def test_killed_at_random_no_recorded_call_is_lost_or_paid_again(tmp_path, kills, count):
    """Sets of questions are collected and killed, until there were so many kills."""
    chance, figures = random.Random(1), Figures()
    while figures.kills < kills:
        with differing(random.Random(chance.randrange(10**6))) as server:
            campaign = Campaign(Path(mkdtemp(dir=tmp_path)), server, count, chance, figures)
            figures.kills += campaign.run(kills - figures.kills)
    assert (figures.kills, figures.paid_again, figures.rows_lost) == (kills, 0, 0)
    assert figures.requests == figures.distinct + figures.in_flight
    assert figures.in_flight <= THREADS * kills
    assert figures.kills_in_the_calls >= kills // 4, "the kills came before or after the calls"
