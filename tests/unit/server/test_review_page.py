"""`/ui/review`: the same reviews as in a terminal, blind, and none is lost."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S
from stores import postgres_url

from cascade.api.logs import LogOptions
from cascade.api.reviews import ReviewOptions
from cascade.providers.fake import FakeProvider, reply
from cascade.review.reviews import read_reviews, reviews_at
from cascade.review.session import Session
from cascade.server.auth import new_key
from cascade.server.pages.review import ReviewPage

from .observed import settled
from .served import asgi, living, orchestrator

NAMES = {"small": "base", "large": "guide"}
PAIRS = 3


def settings(folder: Path, keys: Any = (), **review: Any) -> dict[str, Any]:
    traces = {"store": f"sqlite:///{folder}/t.db"}
    return {"audits": {"probability": 1.0}, "traces": traces, "server": {"review": review, "keys": keys}}


def says(request: Any) -> Any:
    return reply(f"{NAMES[request.model]} says {request.question.text}", logprobs=[-0.01] * 9)


async def filled(folder: Path) -> Any:
    """Fill a store with requests on which the models differ."""
    async with orchestrator(FakeProvider(says), **settings(folder)) as served:
        for number in range(PAIRS):
            await served.achat([{"role": "user", "content": f"question {number}"}])


def opened(folder: Path, **review: Any) -> tuple[Any, httpx.AsyncClient]:
    served = orchestrator(FakeProvider(says), **settings(folder, **review))
    return served, asgi(served)


def place(html: str, name: str) -> str:
    match = re.search(f'data-{name}="([^"]*)"', html)
    assert match
    return match[1]


def outputs(html: str) -> list[str]:
    return re.findall(r'aria-label="Output \d">([^<]*)<', html)


async def pressed(client: httpx.AsyncClient, html: str, key: str, **other: Any) -> Any:
    body = {"reviewer": "ann", "pair": place(html, "pair"), "keys": place(html, "pressed") + key, **other}
    return await client.post("/ui/review/press", json=body)


async def test_each_judgement_is_on_the_disk_before_its_response_and_a_new_process_goes_on(tmp_path):
    await filled(tmp_path)
    file, seen = tmp_path / "t.db", list[list[str]]()
    for number in range(PAIRS):
        served, client = opened(tmp_path)  # each pair by another process
        async with served, client:
            page = (await client.get("/ui/review?as=ann")).text
            assert f"Pair {number + 1} of {PAIRS}" in page
            seen.append(outputs(page))
            after = await pressed(client, page, "1")
            assert len(read_reviews(file).judgements) == number + 1
    assert "All judged" in after.text
    assert len({str(sorted(texts)) for texts in seen}) == PAIRS
    for judgement, texts in zip(read_reviews(file).judgements, seen, strict=True):
        assert judgement.verdict == judgement.first  # the key 1
        assert texts[0].startswith("base" if judgement.first == "output" else "guide")


async def test_nothing_on_the_page_tells_whose_output_is_whose(tmp_path):
    await filled(tmp_path)
    served, client = opened(tmp_path)
    async with served, client:
        page = (await client.get("/ui/review?as=ann")).text
        after = (await pressed(client, page, "2")).text
    file = read_reviews(tmp_path / "t.db")
    digests = [digest for judgement in file.judgements for digest in (judgement.output, judgement.reference)]
    assert not [name for name in ("small", "large", file.terms.key, *digests) if name in page + after]


async def test_reviewers_that_wait_for_a_store_leave_the_threads_to_others(tmp_path, monkeypatch):
    waits, ends, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    monkeypatch.setattr(ReviewPage, "view", lambda *_: loop.call_soon_threadsafe(waits.set) and ends.wait(PATIENCE_S))
    served, client = opened(tmp_path)
    async with served, client:
        with ThreadPoolExecutor(2) as pool:
            loop.set_default_executor(pool)
            looking = [asyncio.create_task(client.get("/ui/review?as=ann")) for _ in range(3)]
            await waits.wait()
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.to_thread(int) == 0
            assert not any(task.done() for task in looking)
            ends.set()
            await asyncio.wait(looking)


async def test_it_is_the_terminal_s_room(tmp_path):
    """What the page shows next is what `cascade review` shows next, from the same file."""
    await filled(tmp_path)
    served, client = opened(tmp_path)
    async with served, client:
        page = await pressed(client, (await client.get("/ui/review?as=ann")).text, "=")
    file = tmp_path / "t.db"
    options = ReviewOptions(LogOptions(f"sqlite:///{tmp_path}/t.db"), file)
    log, reviews = options.read(lambda _: None), read_reviews(file)
    session = Session(log.pairs, reviews.terms, "ann", reviews.by("ann"))
    assert outputs(page.text) == [output.text for output in session.current.outputs]
    assert (reviews.judgements[0].verdict, reviews.judgements[0].reviewer) == ("equal", "ann")


async def test_back_skip_and_keys_without_a_meaning(tmp_path):
    await filled(tmp_path)
    served, client = opened(tmp_path)
    async with served, client:
        first = (await client.get("/ui/review?as=ann")).text
        odd = (await pressed(client, first, "x")).text
        assert "x has no meaning here" in odd
        assert (place(odd, "pair"), place(odd, "pressed")) == (place(first, "pair"), "")
        second = (await pressed(client, odd, "s")).text
        back = (await pressed(client, second, "b")).text
        assert (place(back, "pair"), place(back, "pressed")) == (place(first, "pair"), "b")
        await pressed(client, back, "0")
    judged = read_reviews(tmp_path / "t.db").judgements
    assert [judgement.verdict for judgement in judged] == ["both_bad"]  # it took the place of the skip


async def test_a_pair_that_is_not_next_any_more_is_not_judged(tmp_path):
    await filled(tmp_path)
    served, client = opened(tmp_path)
    async with served, client:
        page = (await client.get("/ui/review?as=ann")).text
        await pressed(client, page, "1")
        again = await pressed(client, page, "1")  # a second tab, or a key pressed twice
        other = await pressed(client, page, "1", reviewer="bob")  # a pair's name is one reviewer's
    assert (again.status_code, other.status_code) == (409, 409)
    assert len(read_reviews(tmp_path / "t.db").judgements) == 1


async def test_regret_asks_whether_each_is_right_too(tmp_path):
    await filled(tmp_path)
    file = tmp_path / "own.db"
    served, client = opened(tmp_path, ask="regret", file=str(file))
    async with served, client:
        page = (await client.get("/ui/review?as=ann")).text
        for key, question in (("1", "Is the first output right?"), ("r", "Is the second output right?")):
            page = (await pressed(client, page, key)).text
            assert question in page
            assert read_reviews(file).judgements == ()
        await pressed(client, page, "w")
    (judgement,) = read_reviews(file).judgements
    assert {judgement.output_right, judgement.reference_right} == {True, False}
    assert judgement.output_right is (judgement.first == "output")


async def test_with_keys_a_reviewer_is_a_key_and_nobody_judges_in_its_name(tmp_path):
    users = {name: new_key() for name in ("ann", "bob", "looks")}
    scopes = {"looks": ["view"]}
    keys = [{"name": name, "sha256": key.sha256, "scopes": scopes.get(name, ["review"])} for name, key in users.items()]
    await filled(tmp_path)
    served, client = opened(tmp_path, keys=keys)
    async with served, client:
        headers = {name: {"x-api-key": key.key} for name, key in users.items()}
        page = (await client.get("/ui/review?as=bob", headers=headers["ann"])).text
        client.headers.update(headers["ann"])
        after = await pressed(client, page, "1", reviewer="bob")
        client.headers.update(headers["looks"])
        refused = [await pressed(client, page, "2", reviewer="ann"), await client.get("/ui/review?as=ann")]
    assert (after.status_code, [response.status_code for response in refused]) == (200, [403, 403])
    assert [judgement.reviewer for judgement in read_reviews(tmp_path / "t.db").judgements] == ["ann"]


@pytest.mark.parametrize("body", [{}, {"pair": 1}, {"keys": ""}, {"keys": "1" * 51}, {"keys": "q"}, {"reviewer": " "}])
async def test_what_is_no_key_is_refused(tmp_path, body):
    served, client = opened(tmp_path)
    async with served, client:
        response = await client.post(
            "/ui/review/press",
            json={"reviewer": "ann", "pair": "x", "keys": "1", **body, **({} if body else {"keys": None})},
        )
    assert response.status_code == 400


async def page_text(client: httpx.AsyncClient, path: str) -> str:
    """Return what a page shows, without the times at which it was asked for."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return re.sub(r"As of [^·]*UTC", "", answer.text)


async def test_every_replica_shows_the_same_pages_and_takes_up_the_other_s_review():
    with postgres_url() as url:
        settings: dict[str, Any] = {"traces": url, "modes": {"share": 1.0}, "audits": {"probability": 1.0}}
        first, other = (orchestrator(FakeProvider(says), **settings) for _ in range(2))
        async with living(first) as here, living(other) as there:
            for number, client in enumerate((here, there, here)):
                body = {"model": "cascade", "messages": [{"role": "user", "content": f"question {number}"}]}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            await settled(here)
            status = await page_text(here, "/ui")
            assert status == await page_text(there, "/ui")
            assert "of 3 requests" in status

            page = (await here.get("/ui/review?as=ann")).text
            assert outputs(page) == outputs((await there.get("/ui/review?as=ann")).text)
            assert (await pressed(here, page, "1")).status_code == 200
            assert (await pressed(there, page, "1")).status_code == 409  # the other replica has judged this pair
            after = await page_text(there, "/ui/review?as=ann")
            assert "Pair 2 of 3" in after
            assert after == await page_text(here, "/ui/review?as=ann")
            reviews = reviews_at(url)
            assert len(reviews.judgements) == 1

            assert (await there.post("/v1/cascades", json={"mode": "fallback"})).status_code == 200
            assert await page_text(here, "/ui") == await page_text(there, "/ui")
            assert '<p class="figure">fallback</p>' in await page_text(here, "/ui")
