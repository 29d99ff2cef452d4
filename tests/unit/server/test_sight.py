"""What an operator sees: counts of calls, caps and the loop, the access log, traces across servers, alerts."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import yaml
from patience import until

from cascade.errors import BadRequestError, ConfigError, ProviderUnavailableError, StoreError
from cascade.providers.fake import FakeProvider
from cascade.resilience.health import FAILURES
from cascade.server.app import application
from cascade.server.auth import new_key
from cascade.server.metrics import AccessLog, Instruments, Metrics

from .served import asgi, living, orchestrator
from .test_contract import SURE, UNSURE

CHAT, SECRET = "/v1/chat/completions", "the wedding is in May"
KEY = new_key()
KEYS = {"keys": [{"name": "app", "sha256": KEY.sha256, "scopes": ["ask", "metrics"]}]}
BEARER = {"authorization": f"Bearer {KEY.key}"}
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def chat_body(model: str = "cascade", text: str = SECRET, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


async def test_calls_retries_tokens_errors_and_caps_are_counted_by_model_and_key():
    down, script = ProviderUnavailableError("gone", billed="no"), list[Any]()
    fake = FakeProvider(lambda request: script.pop(0) if request.model == "small" else SURE)
    budget = {"caps": [{"per": "key", "usd": 1.0}, {"window": "day", "usd": 2.0}]}
    async with orchestrator(fake, budget=budget, server=KEYS) as served, asgi(served, **BEARER) as client:
        served.runtime.guards["small"].sleep = lambda _: asyncio.sleep(0)
        for replies in ([UNSURE], [down, SURE], [BadRequestError("no", status=400)]):
            script += replies
            assert (await client.post(CHAT, json=chat_body())).status_code == 200
        counts = samples((await client.get("/metrics")).text)
        script += [down] * 3 * FAILURES
        for _ in range(FAILURES):
            await client.post(CHAT, json=chat_body("small"))
        assert samples((await client.get("/metrics")).text)['cascade_breaker_open{model="small"}'] == 1
    assert counts['cascade_call_seconds_count{model="small"}'] == 3
    assert counts['cascade_call_seconds_count{model="large"}'] == 2
    assert counts['cascade_call_errors_total{model="small",error="BadRequestError"}'] == 1
    assert (counts['cascade_retries_total{model="small"}'], counts['cascade_retries_total{model="large"}']) == (1, 0)
    assert counts['cascade_tokens_total{model="small",kind="input"}'] == 200
    assert counts['cascade_tokens_total{model="large",kind="output"}'] == 20
    assert counts['cascade_unknown_tokens_total{model="small"}'] == counts['cascade_breaker_open{model="small"}'] == 0
    spent = counts['cascade_budget_spent_usd{account="key:app"}']
    assert spent == counts['cascade_budget_spent_usd{account="all day"}'] > 0
    assert spent == counts['cascade_key_cost_usd_total{key="app"}'] == counts["cascade_cost_usd_total"]
    assert counts['cascade_budget_held_usd{account="key:app"}'] == 0
    assert [counts[f'cascade_budget_cap_usd{{account="{name}"}}'] for name in ("key:app", "all day")] == [1, 2]


async def test_balances_that_fail_too_late_are_left_out_and_no_error_is_logged(monkeypatch, caplog):
    monkeypatch.setattr("cascade.server.metrics._STORE_S", 0)
    counts, runtime = Metrics(), Mock(**{"balances.side_effect": StoreError("late")})
    for _ in range(2):
        assert await counts._balances(runtime) == {}
        await asyncio.wait([counts._reading])
    assert caplog.records == []


async def test_no_client_chooses_a_label():
    evil = "x" * 40
    async with (
        orchestrator({"small": [SURE]}, budget={"caps": [{"per": "user", "usd": 1.0}]}, server=KEYS) as served,
        asgi(served) as client,
    ):
        for headers in (BEARER, {"authorization": f"Bearer {evil}"}):
            await client.post(CHAT, json=chat_body(user=evil), headers={**headers, "x-cascade-segment": evil})
            await client.post(CHAT, json=chat_body(evil), headers=headers)
            await client.request("BREW", f"/v1/{evil}", headers={**headers, "user-agent": evil, "traceparent": evil})
        text = (await client.get("/metrics", headers=BEARER)).text
    assert evil not in text
    values = {value for line in text.splitlines() if line[0] != "#" for _, value in LABEL.findall(line)}
    assert {"small", "app", "200", "404"} <= values


async def test_the_lag_of_the_loop_is_what_the_clock_says_beyond_the_sleep():
    metrics, now_s, naps = Metrics(), 0.0, [0.0, 0.3, 2.0]

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        if not naps:
            raise InterruptedError
        now_s += seconds + naps.pop(0)

    with pytest.raises(InterruptedError):
        await metrics.watch_loop(sleep, lambda: now_s)
    async with orchestrator() as served:
        counts = samples(await metrics.text(served.runtime))
    assert counts['cascade_loop_lag_seconds_bucket{le="0.01"}'] == 1
    assert counts['cascade_loop_lag_seconds_bucket{le="0.5"}'] == 2
    assert (counts["cascade_loop_lag_seconds_count"], counts["cascade_loop_lag_seconds_sum"]) == (3, 2.3)


async def test_each_request_is_a_line_without_key_prompt_or_answer(tmp_path):
    path = tmp_path / "access.log"
    instruments = Instruments(AccessLog(str(path)))
    async with orchestrator({"small": [SURE]}, server=KEYS) as served:
        transport = httpx.ASGITransport(application(served, instruments=instruments), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=BEARER) as client:
            answer = await client.post(CHAT, json=chat_body())
            await client.post(CHAT, json=chat_body(stream=True))
            await client.post(CHAT, json=chat_body("nobody"))
            await client.post(CHAT, json=chat_body(), headers={"authorization": f"Bearer x{KEY.key}"})
            await client.get(f"/v1/models?key={KEY.key}")
            await client.get(f"/v1/{KEY.key}/{'a' * 999}")
            await client.get("/readyz")
    instruments.access.close()
    written = path.read_text("utf-8")
    assert not [text for text in (KEY.key, SECRET, "Danube") if text in written]
    first, streamed, lost, stranger, models, odd = map(json.loads, written.splitlines())
    assert first["trace_id"] == answer.headers["x-cascade-trace-id"]
    assert (first["key"], first["method"], first["path"], first["status"]) == ("app", "POST", CHAT, 200)
    outcome = [first[name] for name in ("model", "served_by", "cost_usd", "reason")]
    assert outcome == ["cascade", "small", 1.2e-4, None]
    assert (streamed["status"], streamed["cost_usd"]) == (200, 1.2e-4)
    assert (lost["status"], lost["reason"], lost["cost_usd"], lost["model"]) == (404, "model_not_found", None, None)
    assert (stranger["status"], stranger["key"], stranger["reason"]) == (401, None, "invalid_api_key")
    assert (models["path"], models["status"], models["reason"]) == ("/v1/models", 200, None)
    assert (odd["status"], len(odd["path"]) <= 200) == (404, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is full")
def test_lines_that_a_disk_does_not_take_are_counted_and_hold_nobody_up(tmp_path):
    log = AccessLog("/dev/full")
    for _ in range(3):
        log.write({"path": "/"})
    log.close()
    assert log.lost == 3
    with pytest.raises(ConfigError):
        AccessLog(str(tmp_path))


def test_a_log_whose_folder_was_moved_away_is_written_again_once_it_is_back(tmp_path):
    path = tmp_path / "logs" / "access.log"
    path.parent.mkdir()
    log = AccessLog(str(path))
    path.parent.rename(tmp_path / "old")
    log.write({"path": "/"})
    until(lambda: log.lost == 1)
    path.parent.mkdir()
    log.write({"path": "/"})
    log.close()
    assert (log.lost, len(path.read_text("utf-8").splitlines())) == (1, 1)


# --- dashboard and alerts ---

DEPLOY = Path(__file__).parents[3] / "deploy"
FUNCTIONS = {"sum", "max", "rate", "increase", "histogram_quantile", "by", "or", "ignoring"}


def expressions() -> list[str]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
    board = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in group["rules"]] + shown


async def test_each_metric_and_label_of_the_dashboard_and_the_alerts_is_served(tmp_path):
    store = {"store": f"sqlite:///{tmp_path / 'traces.db'}"}
    settings = {"traces": store, "modes": {}, "budget": {"caps": [{"per": "key", "usd": 1.0}]}, "server": KEYS}
    async with living(orchestrator({"small": [SURE]}, **settings)) as client:
        await client.post(CHAT, json=chat_body(), headers=BEARER)
        text = (await client.get("/metrics", headers=BEARER)).text
    named = set(re.findall(r"^# TYPE (\w+) (?:counter|gauge)$", text, re.MULTILINE)) | {
        f"{name}_{part}"
        for name in re.findall(r"^# TYPE (\w+) histogram$", text, re.MULTILINE)
        for part in ("bucket", "sum", "count")
    }
    labels = {label for label, _ in LABEL.findall(text)} | {"why", "error", "instance", "deployment", "cascade"}
    for expression in expressions():
        plain = re.sub(r'"[^"]*"|\[\d+[smhd]\]', "", expression)
        words = set(re.findall(r"[a-zA-Z_]\w*", plain)) - FUNCTIONS
        assert words - labels <= named, expression
        assert all(plain.count(left) == plain.count(right) for left, right in ("()", "{}")), expression
