"""Several servers on one PostgreSQL: their pages say the same, and a judgement on one is seen on every other."""

from __future__ import annotations

import re
from typing import Any

import httpx
from stores import postgres_url

from cascade.providers.fake import FakeProvider
from cascade.review.reviews import reviews_at

from .observed import settled
from .served import living, orchestrator
from .test_review_page import outputs, pressed, says


async def said(client: httpx.AsyncClient, path: str) -> str:
    """Return what a page shows, without the times at which it was asked for."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return re.sub(r"As of [^·]*UTC", "", answer.text)


async def test_every_replica_shows_the_same_pages_and_takes_up_the_other_s_review() -> None:
    with postgres_url() as url:
        settings: dict[str, Any] = {"traces": url, "modes": {"share": 1.0, "audit": 1.0}}
        first, other = (orchestrator(FakeProvider(says), **settings) for _ in range(2))
        async with living(first) as one, living(other) as two:
            for number, client in enumerate((one, two, one)):
                body = {"model": "cascade", "messages": [{"role": "user", "content": f"question {number}"}]}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            await settled(one)
            status = await said(one, "/ui")
            assert status == await said(two, "/ui")
            assert "of 3 requests" in status

            page = (await one.get("/ui/review?as=ann")).text
            assert outputs(page) == outputs((await two.get("/ui/review?as=ann")).text)
            assert (await pressed(one, page, "1")).status_code == 200
            assert (await pressed(two, page, "1")).status_code == 409  # the other replica has judged this pair
            after = await said(two, "/ui/review?as=ann")
            assert "Pair 2 of 3" in after
            assert after == await said(one, "/ui/review?as=ann")
            kept = reviews_at(url)
            assert kept is not None
            assert len(kept.judgements) == 1

            assert (await two.post("/v1/cascades", json={"mode": "fallback"})).status_code == 200
            assert await said(one, "/ui") == await said(two, "/ui")
            assert "After an alarm" in await said(one, "/ui")
