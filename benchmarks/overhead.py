"""What `cascade` itself costs: imports, an ask's own overhead, many asks at once, memory. `make bench` runs it.

Every figure is a ratio or a percentile measured in this one run on this machine; it prints both, and the limits that
the project holds itself to. With --json it prints one JSON document.

    python benchmarks/overhead.py            about a minute
    python benchmarks/overhead.py --long     100,000 asks for the memory figure (a few minutes)

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from chat_overhead import chat, http

from cascade import MissingExtraError, Orchestrator
from cascade.config import load
from cascade.conformal.certificate import Certificate
from cascade.conformal.promise import Promise
from cascade.policies.directory import PolicyDirectory
from cascade.policies.policy import Uala
from cascade.providers.fake import FakeProvider, reply
from cascade.serving.conditions import made_for
from cascade.table import Node

ROUNDS = 4
SHOWN = [{many: {"of": 50, "signals": {}} for many in ("1", "2")}] * ROUNDS
"""What a certificate says of its log: each step had one answer or two, and no signal in all of them."""
BASE_SAYS = reply("Reasoning: The Danube flows through Vienna.\nAnswer: The Danube")
GUIDE_SAYS = reply("Yes", p_yes=0.55)  # too unsure for the threshold: all four rounds are run


SCRIPT = {"openai/gpt-4o-mini": [BASE_SAYS], "openai/gpt-4o": [GUIDE_SAYS]}
QUESTION = "Which river runs through Vienna?"


def orchestrator() -> Orchestrator:
    """Return a four-round cascade on the fake provider, with known prices, so that costs are computed."""
    models = {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"}
    config = {"models": models, "strategy": {"rounds": ROUNDS}, "provider": "fake", "traces": "off"}
    return Orchestrator.from_config(config, providers={"fake": FakeProvider(SCRIPT, keep=0)})


def import_s(statement: str, runs: int) -> float:
    """Return the median wall-clock of an import in fresh processes, the interpreter's own start subtracted."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    times = []
    for _ in range(runs):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        times.append(float(run.stdout.split()[-1]))
    return statistics.median(times)


def timed_us(call: Callable[[], object], count: int) -> list[float]:
    """Return the sorted wall-clock times of calls in microseconds."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return sorted(times)


def asked_us(cascade: Orchestrator, count: int) -> list[float]:
    """Return the sorted wall-clock times of asks in microseconds, on one event loop: the work without a hand-over."""

    async def times() -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            await cascade.aask(QUESTION)
            seconds.append(time.perf_counter() - started)
        return sorted(1e6 * second for second in seconds)

    return asyncio.run(times())


def overhead() -> dict[str, float]:
    """Time a four-round ask, blocking and on an event loop, and beside it one mocked call of litellm."""
    with orchestrator() as cascade:
        timed_us(lambda: cascade.ask(QUESTION), 300)
        asks = timed_us(lambda: cascade.ask(QUESTION), 5_000)
        awaited = asked_us(cascade, 1_000)
    figures = {"ask_median_us": asks[len(asks) // 2], "ask_p99_us": asks[int(len(asks) * 0.99)]}
    figures["aask_median_us"] = awaited[len(awaited) // 2]
    try:
        from cascade.providers.litellm import load_litellm

        litellm = load_litellm()
    except MissingExtraError:
        return figures
    message = [{"role": "user", "content": QUESTION}]

    def mocked() -> object:
        return litellm.completion(model="openai/gpt-4o-mini", messages=message, mock_response="The Danube")

    timed_us(mocked, 20)
    calls = timed_us(mocked, 200)
    figures["litellm_mock_median_us"] = calls[len(calls) // 2]
    figures["litellm_ratio"] = figures["litellm_mock_median_us"] / figures["ask_median_us"]
    return figures


def certified(rounds: int = 8, asks: int = 400) -> dict[str, float]:
    """Time an ask under a certificate, with audits drawn, against the same policy without one, in turns."""
    cascade: dict[str, Any] = {"strategy": {"rounds": ROUNDS}, "provider": "fake", "traces": "off"}
    cascade["models"] = {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"}
    plan = tuple([Node(f"round {at + 1} {source}", at) for at in range(ROUNDS) for source in ("base", "guide")])
    bare, promise = PolicyDirectory(plan, Uala()), Promise("coverage", 0.1)
    certificate = Certificate(
        promise, n=99, losses=9.0, kappa=0.3, level=None, created="2026-11-21", data_sha256="0" * 64,
        policy_sha256=bare.policy_sha256, made_for={**made_for(load(cascade)), "shown": SHOWN},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as plain:
        replace(bare, promise=promise).certified(certificate).write(folder)
        bare.write(plain)
        terms = {"guarantee": {"promise": "coverage", "risk": 0.1}, "audits": {"probability": 1e-9}}
        provider = FakeProvider(SCRIPT, keep=0)
        with (
            Orchestrator.from_config({**cascade, "policy": plain}, providers={"fake": provider}) as without,
            Orchestrator.from_config({**cascade, "policy": folder, **terms}, providers={"fake": provider}) as under,
        ):
            if under.ask(QUESTION).certificate is None:
                raise SystemExit("the certificate does not hold")
            times: dict[str, list[float]] = {"plain": [], "certified": []}
            for _ in range(rounds):
                times["plain"] += asked_us(without, asks)
                times["certified"] += asked_us(under, asks)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"certified_extra_us": medians["certified"] - medians["plain"]}


async def concurrent(count: int) -> dict[str, float]:
    """Run `count` asks at once in one process."""
    async with orchestrator() as cascade:
        started = time.perf_counter()
        answers = await asyncio.gather(*(cascade.aask(f"question {i}") for i in range(count)))
        elapsed = time.perf_counter() - started
    errors = sum(answer.text is None for answer in answers)
    return {"concurrent_asks": count, "concurrent_errors": errors, "concurrent_s": elapsed}


def memory(count: int) -> dict[str, float]:
    """Return how much the resident set grows between a tenth of the asks and all of them, in percent."""
    with orchestrator() as cascade:
        for _ in range(count // 10):
            cascade.ask("Which river runs through Vienna?")
        gc.collect()
        before = resident_bytes()
        for number in range(count - count // 10):
            cascade.ask(f"Which river runs through Vienna, number {number}?")
        gc.collect()
    return {"memory_asks": count, "memory_growth_percent": 100 * (resident_bytes() / before - 1)}


def resident_bytes() -> float:
    """Return the resident set of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file of ours
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


LIMITS: dict[str, tuple[str, float]] = {
    "import_cascade_s": ("at most", 0.3),
    "import_ratio": ("at least", 10),
    "ask_median_us": ("at most", 200),
    "ask_p99_us": ("at most", 1_000),
    "litellm_ratio": ("at least", 10),
    "certified_extra_us": ("at most", 20),
    "chat_median_us": ("at most", 400),
    "http_ratio": ("at most", 1.5),
    "http_async_ratio": ("at most", 1.5),
    "concurrent_errors": ("at most", 0),
    "memory_growth_percent": ("at most", 5),
}


def main() -> None:
    """Measure and print."""
    long = "--long" in sys.argv
    figures: dict[str, float] = {"import_cascade_s": import_s("import cascade; cascade.Orchestrator", 7)}
    figures |= overhead()
    if "litellm_ratio" in figures:
        figures["import_litellm_s"] = import_s("import litellm", 3)
        figures["import_ratio"] = figures["import_litellm_s"] / figures["import_cascade_s"]
    figures |= certified()
    figures |= chat() | http()
    figures |= asyncio.run(concurrent(1_000))
    figures |= memory(100_000 if long else 10_000)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    if "--json" in sys.argv:
        print(json.dumps({"date": datetime.now(UTC).date().isoformat(), "machine": machine, **figures}))
        return
    print(f"{datetime.now(UTC).date()}, {machine}")
    for name, value in figures.items():
        way, limit = LIMITS.get(name, ("", None))
        passed = "" if limit is None else "ok" if (value <= limit if way == "at most" else value >= limit) else "OVER"
        print(f"  {name:26} {value:12.4g}   {f'{way} {limit:g}' if limit is not None else '':14} {passed}")


if __name__ == "__main__":
    main()
