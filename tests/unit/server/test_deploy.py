"""The files in deploy/: the configuration loads, the compose file runs it with what it needs, and so little is enough."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml
from patience import until

from cascade.config import load
from cascade.server.auth import listening_problems
from cascade.server.catalog import Catalog

from .served import WAIT_S, started, write
from .test_sight import CHAT, chat_body, samples

DEPLOY = Path(__file__).parents[3] / "deploy"
LOCKED = """
for at in $(cut -d' ' -f5 /proc/self/mountinfo); do test "$at" = /proc || mount -o remount,bind,ro "$at"; done
mount -t tmpfs -o size=16m tmpfs "$0"
exec unshare --user --map-user=10001 --map-group=10001 "$@"
"""
"""Runs a command as a user without rights where all is read-only but /proc and a disk of 16 MB."""
CALL_NANO_USD = 100 * 1_000 + 10 * 2_000


def test_the_configuration_can_be_served_with_what_the_compose_file_gives(monkeypatch):
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    given = services["cascade"]["environment"]
    monkeypatch.setenv("CASCADE_STORE", given["CASCADE_STORE"].replace("${POSTGRES_PASSWORD:?}", "secret"))
    config = load(DEPLOY / "cascade.yaml")
    assert list(listening_problems(config.server)) == []
    assert Catalog.of(config, ()).guide == "openai/gpt-6.1-sol"
    assert config.ledger_url == config.traces_url == "postgresql://cascade:secret@database/cascade"


def test_the_image_runs_what_the_compose_file_mounts():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    mounted = services["cascade"]["volumes"][0].split(":")[1]
    assert f'"{mounted}"' in image
    assert re.search(r"^USER 10001$", image, re.MULTILINE)  # `runAsNonRoot` believes a number alone
    assert services["cascade"]["read_only"] is True
    assert services["cascade"]["tmpfs"] == ["/tmp:size=16m"]  # noqa: S108 - in the container
    assert f"EXPOSE {load(DEPLOY / 'cascade.yaml').server.port}" in image


@pytest.mark.parametrize("room", [True, False])
def test_it_serves_without_rights_on_a_read_only_system_and_on_when_its_16_mb_are_full(room, loopback, tmp_path):
    """Answers wait for room on a full disk; those that are lost in the end are counted, and the exit code is 1."""
    folder, path = tmp_path / "disk", tmp_path / "cascade.yaml"
    folder.mkdir()
    locked = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", LOCKED, str(folder)]
    probe = [*locked, "sh", "-c", 'touch "$0" || id -u', str(tmp_path / "there")]
    probed = subprocess.run(probe, capture_output=True, text=True, check=False)
    if probed.returncode:
        pytest.skip(f"no namespaces can be made here: {probed.stderr}")
    assert (probed.stdout, (tmp_path / "there").exists()) == ("10001\n", False)
    store = {"store": f"sqlite:///{folder}/records.db"}
    write(
        path,
        provider={"kind": "openai_http", "api_base": loopback.address},
        traces=store,
        budget={**store, "caps": [{"usd": 1e6}], "on_unreachable": "allow_and_record"},
        server={"port": 0, "access_log": f"{folder}/access.log"},
    )
    with started(path, within=locked, env={**os.environ, "TMPDIR": str(folder)}) as (process, url):
        inside = os.open(f"/proc/{process.pid}/root{folder}", os.O_RDONLY)  # stays when the process has ended
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:
            traces = list[str]()

            def ask(chars: int) -> None:
                answer = client.post(CHAT, json=chat_body("small", "x" * chars))
                assert answer.status_code == 200, answer.text
                traces.append(answer.headers["x-cascade-trace-id"])

            def counted(name: str) -> float:
                return samples(client.get("/metrics").text)[f"cascade_{name}"]

            ask(10)
            process.send_signal(signal.SIGHUP)
            until(lambda: counted('reloads_total{outcome="done"}') == 1)
            filler = Path(f"/proc/self/fd/{inside}/filler")
            filler.write_bytes(bytes(13_000_000))
            while not counted('store_failing{store="traces"}'):
                ask(200_000)
            ask(10)
            assert (ready := client.get("/readyz")).status_code == 200
            assert ready.json()["traces"] == "failing"
            if room:
                filler.unlink()
                until(lambda: counted("traces_waiting") + counted("budget_waiting") == 0)
            while not room and not counted("traces_lost_total"):
                ask(5_000_000)
            assert room is (counted("traces_lost_total") == 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == (0 if room else 1)
        if room:  # SQLite itself would follow the link to outside
            (tmp_path / "read.db").write_bytes(Path(f"/proc/self/fd/{inside}/records.db").read_bytes())
            with closing(sqlite3.connect(tmp_path / "read.db")) as records:
                assert {*traces} == {name for (name,) in records.execute("SELECT episode_id FROM episodes")}
                spent = records.execute("SELECT name, spent, held FROM cascade_accounts").fetchall()
            assert spent == [("all", len(traces) * CALL_NANO_USD, 0)]
        os.close(inside)
