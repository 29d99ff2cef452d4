"""Several workers at one address: one that dies, one that reloads after the other, counts of all."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest
from patience import lives, until

from cascade.config import load
from cascade.errors import ConfigError
from cascade.server.lifecycle import together
from cascade.server.metrics import PARENT, WorkerCounts, family

from .served import ASK, CONFIG, WAIT_S
from .test_sight import samples

CHAT, BODY = "/v1/chat/completions", {"model": "small", "messages": ASK}


@pytest.mark.parametrize(
    "settings",
    [{"budget": {"caps": [{"usd": 1.0}]}}, {"guarantee": {"promise": "error"}, "audits": {}}],
)
def test_workers_refuse_what_each_would_count_by_itself(settings):
    together({"": load({**CONFIG, **settings})})
    with pytest.raises(ConfigError):
        together({"": load({**CONFIG, **settings, "server": {"workers": 2}})})


def test_counts_of_a_worker_that_ended_stay_and_its_gauges_go(tmp_path):
    calls, now = family("calls_total", "Calls.", 3), family("in_flight", "Now.", 2)
    alarm = [family("alarm", "Alarm.", on) for on in (0, 1)]
    WorkerCounts(tmp_path, "0").write(calls + now + alarm[0])
    assert samples(WorkerCounts(tmp_path, "1").total(calls + now + alarm[1])) == {
        "cascade_workers": 2, "cascade_calls_total": 6, "cascade_in_flight": 4, "cascade_alarm": 1
    }  # fmt: skip
    WorkerCounts(tmp_path, "0").write(calls + now)  # the next one in its place
    WorkerCounts(tmp_path, PARENT).write(calls)
    WorkerCounts(tmp_path / "full", PARENT).write(calls)  # the next time, perhaps
    counts = samples(WorkerCounts(tmp_path, "1").total(""))
    assert (counts["cascade_calls_total"], counts["cascade_in_flight"], counts["cascade_workers"]) == (12, 2, 2)
    os.utime(tmp_path / "0", (0, 0))
    counts = samples(WorkerCounts(tmp_path, "2").total(""))
    assert (counts["cascade_calls_total"], counts.get("cascade_in_flight"), counts["cascade_workers"]) == (12, None, 2)


def workers(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text("ascii").split()]
    return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes() and lives(pid)]


REFUSING = """
from pathlib import Path
from cascade.providers.registry import create

def make(settings):
    turn, *later = Path("turns").read_text().split() or [""]
    Path("turns").write_text(" ".join(later))
    assert turn != "refused"
    return create("openai_http", settings)
"""
START = "from cascade.cli.main import main; import os, signal; signal.signal(1, signal.SIG_DFL); os.setsid(); main()"
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")


@needs_proc
def test_a_group_that_is_told_to_end_while_it_starts_has_ended_well(tmp_path):
    path = tmp_path / "cascade.yaml"
    path.write_text(json.dumps({**CONFIG, "server": {"port": 0, "workers": 2}}), "utf-8")
    command = [sys.executable, "-c", START, "serve", "-c", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until(lambda: bool(workers(process.pid)))
        os.killpg(process.pid, signal.SIGHUP)  # it ends no worker that has not begun to wait for it
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


@needs_proc
def test_a_killed_worker_is_replaced_all_reload_and_all_end(loopback, tmp_path):
    path, provider = tmp_path / "cascade.yaml", {"kind": "refusing:make", "api_base": loopback.address}
    (tmp_path / "refusing.py").write_text(REFUSING, "utf-8")

    def write(price: float, turns: str = "") -> None:
        (tmp_path / "turns").write_text(turns, "utf-8")
        models = {**CONFIG["models"], "base": {"model": "small", "price": {"input": price, "output": 2.0}}}
        for name, server in (("cascade", {"port": 0}), ("sales", {"name": "sales"})):
            settings = {**CONFIG, "models": models, "provider": provider, "server": server}
            (tmp_path / f"{name}.yaml").write_text(json.dumps(settings), "utf-8")

    write(1.0)
    command = [sys.executable, "-c", START, "serve", "--workers", "2", "-c", "cascade.yaml", "-c", "sales.yaml"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        url = "http://" + process.stderr.readline().partition("http://")[2].partition("/")[0]
        # To make a client takes longer than a request: it keeps no connection, so that any worker may get the next.
        client = httpx.Client(base_url=url, timeout=WAIT_S, limits=httpx.Limits(max_keepalive_connections=0))

        def counts() -> dict[str, float]:
            try:
                return samples(client.get("/metrics").text)
            except httpx.TransportError:  # a connection that waited for a killed worker is reset
                return Counter()

        def costs() -> set[str]:
            answers = [client.post(CHAT, json=BODY) for _ in range(20)]
            answers += [client.post(CHAT, json={**BODY, "model": "sales"}) for _ in range(5)]
            return {answer.headers["x-cascade-cost-usd"] for answer in answers}

        before, pids = costs(), workers(process.pid)
        until(lambda: counts()['cascade_call_seconds_count{cascade="cascade",model="small"}'] == 20)
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: counts()["cascade_worker_restarts_total"] == 1 and len(workers(process.pid)) == 2)
        write(50.0)
        thread = max(int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir())  # not the one that waits
        assert ctypes.CDLL(None).tgkill(process.pid, thread, signal.SIGHUP) == 0
        until(lambda: counts().get('cascade_reloads_total{outcome="done"}') == 2)  # by the new one, too, once it is up
        after = costs()
        assert (len(before), len(after), before & after) == (1, 1, set())
        write(60.0, "done done refused done done end")  # both cascades of a worker; the second worker; it starts again
        os.killpg(process.pid, signal.SIGHUP)  # the workers wait for their parent's word
        until(lambda: (tmp_path / "turns").read_text("utf-8") == "end" and len(costs()) == 1)
        last, refused = costs(), 'cascade_reloads_total{outcome="refused"}'
        assert (len(last), last & after, counts()["cascade_worker_restarts_total"]) == (1, set(), 2)
        count = counts()[refused]
        write(1.0, "refused")  # by the first worker
        process.send_signal(signal.SIGHUP)
        until(lambda: counts()[refused] == count + 1)
        path.write_text("{", "utf-8")
        process.send_signal(signal.SIGHUP)
        until(lambda: counts()[refused] == count + 2)
        for pid in workers(process.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: counts()["cascade_workers"] == 2)  # the new ones serve what the killed ones did
        assert costs() == last
        pids = workers(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert [pid for pid in pids if lives(pid)] == []
        client.close()
    finally:
        process.kill()
        sys.stdout.write(process.communicate()[1])  # shown where the test fails
