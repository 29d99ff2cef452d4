"""`/ui`: what a log holds is shown and never acts, who may see it, and what its figures are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from cascade.config.schema import ModesConfig
from cascade.conformal.monitor import Monitor
from cascade.conformal.scope import PLAIN, seen
from cascade.logs.schema import CUT
from cascade.modes.state import Counts, Draw, InForce, Look, NextLook
from cascade.modes.store import ModeStore
from cascade.policies.directory import withdraw
from cascade.providers.fake import FakeProvider, reply
from cascade.review.reviews import reviews_at
from cascade.server.auth import new_key
from cascade.server.pages import HEADERS
from cascade.server.pages.status import figures, status
from unit.certified import SURE, certificate, directory

from .served import living, orchestrator

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'\x1b[31m\u202e"
BASE, GUIDE = "small<b onclick=x>", "large"
MODELS = {
    "base": {"model": BASE, "price": {"input": 1.0, "output": 2.0}},
    "guide": {"model": GUIDE, "price": {"input": 10.0, "output": 20.0}},
}
SCRIPT = {BASE: [reply(EVIL, logprobs=[-0.01])], GUIDE: [reply(f"other {EVIL}", logprobs=[-0.01] * 2)]}
PRICE_USD = {"input": 1.0, "output": 2.0}
ALL = {"probability": 1.0}


@asynccontextmanager
async def filled(folder: Path, requests: int = 2, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve requests whose texts and models are an attack, each of them audited, and yield a client."""
    given = {"models": MODELS, "audits": ALL, "traces": {"store": f"sqlite:///{folder}/t.db"}, **settings}
    served = orchestrator(FakeProvider(SCRIPT), **given)
    async with living(served) as client:
        for number in range(requests):
            await served.achat([{"role": "user", "content": f"{EVIL} {number}"}])
        served.runtime.flush_traces()
        yield client


def begun(folder: Path) -> bool:
    """Return whether a review has begun in the store."""
    return reviews_at(folder / "t.db") is not None


class Tags(HTMLParser):
    """Notes what a browser would load, run or style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.odd: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("src"))
        if tag in {"img", "style", "iframe", "object", "b"}:
            self.odd.append(tag)
        self.odd += [name for name in given if name.startswith("on") or name == "style"]
        self.odd += [
            value for value in given.values() if (value or "").startswith(("http:", "https:", "//", "javascript:"))
        ]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("path", ["/ui", "/ui/review", "/ui/review?as=ann", "/ui/review?as=<script>"])
async def test_nothing_that_a_log_holds_acts(tmp_path, path):
    async with filled(tmp_path) as client:
        response = await client.get(path)
    tags = Tags(response.text)
    assert response.status_code == 200
    assert tags.odd == []
    assert [src.partition("?")[0] for src in tags.scripts if src] == ["/ui/static/ui.js"]
    assert "\x1b" not in response.text
    assert "\u202e" not in response.text
    if path == "/ui/review?as=ann":
        assert EVIL.partition("\x1b")[0] in tags.text  # it is there, as text
        assert "\\u001b" in tags.text


async def test_every_page_and_file_has_the_strict_headers(tmp_path):
    async with filled(tmp_path) as client:
        for path in ("/ui", "/ui/review", "/ui/static/ui.js", "/ui/static/ui.css", "/ui/static/ui.svg"):
            response = await client.get(path)
            policy = response.headers["content-security-policy"]
            assert response.status_code == 200
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert {name: response.headers[name] for name in HEADERS if name != "cache-control"} == {
                name: value for name, value in HEADERS.items() if name != "cache-control"
            }


@pytest.mark.parametrize(
    "path", ["../site.py", "..%2f..%2fapp.py", "%252e%252e/app.py", "/etc/passwd", "..\\site.py", "ui.css%00", ""]
)
async def test_only_files_of_the_package_are_served(tmp_path, path):
    async with filled(tmp_path, 0) as client:
        response = await client.get(httpx.URL(f"http://localhost/ui/static/{path}"))
    assert response.status_code == 404
    assert b"import" not in response.content


async def test_with_keys_a_page_shows_nothing_until_it_has_one(tmp_path):
    viewer = new_key()
    key = {"authorization": f"Bearer {viewer.key}"}
    asks = new_key()
    keys = [{"name": "ann", "sha256": viewer.sha256, "scopes": ["view"]}, {"name": "app", "sha256": asks.sha256}]
    async with filled(tmp_path, server={"keys": keys}) as client:
        app = {"authorization": f"Bearer {asks.key}"}
        others = [await client.get(path, headers=app) for path in ("/ui", "/ui/review?as=app")]
        bare, wrong = await client.get("/ui"), await client.get("/ui", headers={"authorization": "Bearer no"})
        right = await client.get("/ui", headers=key)
        review = await client.get("/ui/review?as=ann")
        press = await client.post("/ui/review/press", json={"reviewer": "ann", "pair": "x", "keys": "1"})
        around = await client.get("/ui/static/../../metrics")
        metrics = await client.get("/metrics")
        static = await client.get("/ui/static/ui.js")
    assert (bare.status_code, "data-locked" in bare.text, "requests" in bare.text) == (200, True, False)
    assert (review.status_code, "data-locked" in review.text, "Output 1" in review.text) == (200, True, False)
    assert (wrong.status_code, press.status_code, metrics.status_code) == (401, 401, 401)
    assert around.status_code in {401, 404}
    assert [response.status_code for response in others] == [403] * 2  # an application's key sees nobody's prompts
    assert (right.status_code, "data-locked" in right.text, static.status_code) == (200, False, 200)
    assert "set-cookie" not in {*bare.headers, *right.headers}


async def test_no_other_site_can_judge(tmp_path):
    body = {"reviewer": "ann", "pair": "x", "keys": "1"}
    async with filled(tmp_path) as client:
        form = await client.post("/ui/review/press", data=body)
        plain = await client.post("/ui/review/press", content=b"{}", headers={"content-type": "text/plain"})
        other = await client.post("/ui/review/press", json=body, headers={"sec-fetch-site": "cross-site"})
        rebound = await client.post("/ui/review/press", json=body, headers={"host": "evil.example"})
    assert [response.status_code for response in (form, plain, other, rebound)] == [415, 415, 403, 403]
    assert not begun(tmp_path)


async def test_no_other_site_changes_a_mode(tmp_path):
    path, body = "/v1/cascades", b'{"mode": "fallback"}'
    async with filled(tmp_path, 0, audits=None, modes={}) as client:
        form = await client.post(path, content=body, headers={"content-type": "text/plain"})
        rebound = await client.post(
            path, content=body, headers={"content-type": "application/json", "host": "evil.example"}
        )
        preflight = await client.options(path, headers={"origin": "http://evil.example"})
        assert "access-control-allow-origin" not in preflight.headers
        state = (await client.get("/v1/cascades")).json()["data"][0]
    assert (form.status_code, rebound.status_code) == (415, 403)
    assert (state["mode"], state["changes"]) == ("observe", [])


@pytest.mark.parametrize("more", [{}, {"traces": "off"}])
async def test_without_traces_or_requests_there_is_nothing_to_judge(tmp_path, more):
    async with filled(tmp_path, 0, **more) as client:
        statuses = [(await client.get(path)).status_code for path in ("/ui", "/ui/review?as=ann")]
    assert statuses == [200, 409]


async def test_a_stream_that_its_client_cuts_off_has_an_unknown_cost(tmp_path):
    """0.6: the page showed what the calls before had cost, as if the call that was cut off were free."""
    models = {name: {"model": name, "price": PRICE_USD} for name in ("small", "large")}
    doubtful = {"small": [reply("Answer: Inn", logprobs=[-3.0] * 2, input_tokens=10, output_tokens=2)]}
    traces = {"store": f"sqlite:///{tmp_path}/t.db"}
    strategy = {"kind": "ladder", "models": ["small", "large"]}
    served = orchestrator(
        FakeProvider(doubtful | {"large": ["Answer: Danube"]}), models=models, strategy=strategy, traces=traces
    )
    async with living(served) as client:
        events = served.astream([{"role": "user", "content": "Which river?"}])
        async for event in events:
            if getattr(event, "role", None) == "large":
                break
        await events.aclose()
        served.runtime.flush_traces()
        page = status(served.runtime, "large", datetime.now(UTC))
        assert (await client.get("/ui")).status_code == 200
    assert (page["total"], page["unknown"], page["spent"]) == (1, 1, None)


async def test_a_cascade_with_modes_shows_its_evidence_and_its_looks(tmp_path, monkeypatch):
    store = ModeStore.shared(f"sqlite:///{tmp_path}/t.db")
    store.begin("cascade")
    with monkeypatch.context() as patched:
        patched.setattr("cascade.modes.store.next_look", lambda *_: NextLook(1, 0, 0, Counts()))
        look = store.open_look("cascade", 0.0, ModesConfig())
    assert isinstance(look, Look)
    store.close_look(look, {"why": EVIL, "losses": 3})
    start = Monitor.start(risk=0.1)
    in_force = InForce("c1", 1, 0.1, 0.05, 100, "text")
    store.change("cascade", lambda state: state.promoted(in_force, 0.1, "2026-11-20T10:00:00+00:00"))
    for place, differs in enumerate((False, True, False, None, None)):
        row = Draw(f"t{place}", "cascade", f"c{place}", "1", "audit", float(place), certificate="c1")
        store.draw(row)
        store.settle(row, differs=differs)
    async with filled(tmp_path, modes={"confidence": 0.9}) as client:
        page = Tags((await client.get("/ui")).text)
    evidence = start.update(False).update(True).update(False).e_value
    assert page.odd == []
    assert EVIL.partition("\x1b")[0] in page.text  # it is there, as text
    assert "\\u001b" in page.text
    assert "1 of 3 audits differed" in page.text
    assert "2 more" in page.text  # without a result
    assert f"Evidence against it: {evidence:.2g}; an alarm needs 20." in page.text
    assert "0.05 of 0.1" in page.text
    store.close()


@pytest.mark.parametrize(
    ("requests", "settings", "mode", "line"),
    [
        (0, {}, "no promise", "curl http://"),
        (1, {"guarantee": None}, "no promise", "cascade fit "),
        (1, {"guarantee": None, "modes": {}}, "observe", "cascade promote"),
    ],
)
async def test_the_status_has_a_line_to_paste(tmp_path, requests, settings, mode, line):
    async with filled(tmp_path, requests, **settings) as client:
        page = Tags((await client.get("/ui")).text).text
    assert mode in page
    assert line in page


@pytest.mark.parametrize(
    ("expires", "changes", "alarm", "mode"),
    [
        ("2999-01-01", {}, None, "enforce"),
        ("2999-01-01", {"audits": ALL}, None, "enforce"),
        ("2999-01-01", {}, "another judge", "fallback"),
        ("2999-01-01", {"audits": {"fallback": "everything"}}, "another judge", "fallback"),
        ("2020-01-01", {}, None, "void"),
        ("2020-01-01", {"guarantee": {"uncovered": "policy"}}, None, "no promise"),
    ],
)
async def test_without_modes_the_status_says_who_answers(tmp_path, expires, changes, alarm, mode):
    signed = certificate(kind="error", confidence=0.9, created="2019-12-01", expires=expires)
    policy = directory(tmp_path / "policy", signed, policy=SURE)
    async with filled(tmp_path, policy=policy, **{"audits": None, **changes}) as client:
        if alarm:
            withdraw(policy, signed.data_sha256, alarm)
        page = (await client.get("/ui")).text
    heading = page[page.index("<h1>") : page.index("</h1>")]
    by_guide = mode in {"fallback", "void"} and "fallback" not in changes.get("audits", {})
    assert (f">{mode}</p>" in page, GUIDE in heading) == (True, by_guide)
    assert ('badge good"' in page, 'badge bad"' in page) == (mode == "enforce", mode != "enforce")
    assert ("probability: 0.05" in page) == (mode == "enforce" and not changes)  # nothing watches it


async def test_the_status_says_what_keeps_requests_from_the_certificate(tmp_path):
    of_questions = {"requests": seen([PLAIN] * 99)}
    proven = certificate(kind="error", confidence=0.9, made_for=of_questions)
    policy = directory(tmp_path / "policy", proven, policy=SURE)
    async with filled(tmp_path, policy=policy, audits=None) as client:
        page = (await client.get("/ui")).text
        metrics = (await client.get("/metrics")).text
    assert "a chat request (2)" in page
    assert 'cascade_uncovered_total{why="a chat request"} 2' in metrics


def row(episode: str, model: str, cost: int | None, **columns: Any) -> dict[str, Any]:
    fields = {"episode_id": episode, "walk": None, "split": None, "candidate": 0, "kept": True, "model": model}
    return {**fields, "source": model, "cost_nano_usd": cost, **columns}


def audited(number: int, guide_cost: int) -> list[dict[str, Any]]:
    name = f"audited {number}"
    return [row(name, "small", 100, split="audit"), row(name, "large", guide_cost, split="audit", kept=False)]


AUDITS = [call for number in range(20) for call in audited(number, 1_000 + 100 * (number % 2))]
CHEAP, FIRST = [row(f"kept {number}", "small", 100) for number in range(10)], row("a", "small", 1, kept=False)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], {"total": 0, "spent": 0, "guide_cost": None}),
        (CHEAP + AUDITS, {"total": 30, "audited": 20, "by_cheaper": 30, "spent": 24_000, "guide_cost": 30 * 1_050}),
        (CHEAP + AUDITS[2:], {"total": 29, "guide_cost": None}),  # too few audits
        ([{**call, "cost_nano_usd": None} for call in CHEAP], {"unknown": 10, "spent": None, "guide_cost": None}),
        (
            [call | {"cost_nano_usd": call["cost_nano_usd"] if call["model"] == "large" else None} for call in AUDITS],
            {"unknown": 20, "spent": None, "guide_cost": None},
        ),
        (AUDITS[::2] + AUDITS[1::2], {"total": 20, "spent": 23_000, "guide_cost": 20 * 1_050}),  # rows in any order
        ([FIRST, row("a", "large", 1)], {"by_cheaper": 0, "by_fallback": 0}),
        ([FIRST, row("a", "middle", 1)], {"by_cheaper": 1, "by_fallback": 0}),
        ([FIRST, row("a", "spare", 1, source="large")], {"by_cheaper": 0, "by_fallback": 1}),
        ([FIRST, row("a", "small", 1, source="large")], {"by_cheaper": 0, "by_fallback": 1}),
        ([row("a", "large", 1, source="small")], {"by_cheaper": 0, "by_fallback": 0}),
        ([FIRST, row("a", "judge", 1)], {"total": 1, "by_cheaper": 1}),  # which kept its answer
        ([row("a", "small", 1, split="audit"), row("a", "large", 1, split="audit")], {"by_cheaper": 0}),  # observed
        ([FIRST], {"by_cheaper": 1}),  # the guide failed
        ([FIRST, row("a", "large", None, walk=CUT, candidate=None)], {"by_cheaper": 0}),
        ([row("a", "large", 1, walk="large only")], {"total": 1, "by_cheaper": 0}),  # in observe, or bypassed
        ([row("a", "small", 1, walk="small only")], {"total": 0}),  # the client named it
    ],
)
def test_the_page_says_who_answered_and_what_the_guide_alone_would_have_cost(rows, expected):
    actual = figures(rows, "large")
    assert {name: actual[name] for name in expected} == expected


def test_a_request_that_may_lack_rows_is_left_out():
    assert figures(CHEAP, "large", cut=True)["total"] == 9
