"""The modes in a server: who serves, what runs after the response, what stays on record, and what an alarm does."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from cascade.api.promoting import plan_promotion, promote
from cascade.config import load
from cascade.episodes.store import Store
from cascade.errors import ConfigError, ProviderUnavailableError, UsageError
from cascade.modes.state import CascadeState
from cascade.modes.store import ModeStore
from cascade.providers.fake import FakeProvider, reply
from cascade.server.access import new_key
from cascade.server.app import application
from cascade.server.catalog import Catalog
from cascade.server.modes import Modes
from unit.cli.documents import check_document

from .served import CONFIG, orchestrator


class Answers(FakeProvider):
    """The base is unsure where a message holds "hard", and differs from the guide there; it may be made worse."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.down: set[str] = set()
        self.worse = False
        self.build = "fp_1"

    async def acomplete(self, request: Any, timeout_s: float) -> Any:
        assert request.chat is not None
        text = str(request.chat.messages[-1]["content"])
        self.asked.append(request.model)
        if request.model in self.down:
            raise ProviderUnavailableError("it is down", model=request.model)
        hard = "hard" in text
        wrong = request.model == "small" and (hard or self.worse)
        payload = await self._said(request, "no" if wrong else "yes", -2.0 if hard else -0.01, timeout_s)
        payload["system_fingerprint"] = self.build
        return payload

    async def _said(self, request: Any, text: str, logprob: float, timeout_s: float) -> Any:
        one = FakeProvider({request.model: [reply(text, logprobs=[logprob, logprob])]})
        return dict(await one.acomplete(request, timeout_s))


def settings(folder: Path, **modes: Any) -> dict[str, Any]:
    told = {"share": 1.0, "alpha": 0.1, "delta": 0.1, "audit": 1.0, **modes}
    return {"traces": {"store": f"sqlite:///{folder}/traces.db"}, "modes": told}


@asynccontextmanager
async def serving(folder: Path, provider: Answers, **others: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve until the block ends, drained as at SIGTERM."""
    store = store_of(folder)
    store.begin("cascade", b"of this test alone")
    store.close()
    served = orchestrator(provider, **{**settings(folder), **others})
    app = application(served)
    queue: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    done: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {}, "state": {}}, queue.get, done.put))  # type: ignore[arg-type]
    await queue.put({"type": "lifespan.startup"})
    assert (await done.get())["type"] == "lifespan.startup.complete"
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await queue.put({"type": "lifespan.shutdown"})
    assert (await done.get())["type"] == "lifespan.shutdown.complete"
    await life


async def ask(client: httpx.AsyncClient, text: str, *history: Any, **headers: str) -> httpx.Response:
    messages = [*history, {"role": "user", "content": text}]
    return await client.post("/v1/chat/completions", json={"model": "cascade", "messages": messages}, headers=headers)


async def settled(client: httpx.AsyncClient) -> None:
    """Return once no drawn row is pending: each look at the state takes a turn of the loop."""
    while (await client.get("/v1/cascades")).json()["data"][0]["rows"]["pending"]:
        continue


def store_of(folder: Path) -> ModeStore:
    return ModeStore.open(f"sqlite:///{folder}/traces-modes.db")


def state_of(folder: Path) -> CascadeState:
    store = store_of(folder)
    try:
        return store.state("cascade")
    finally:
        store.close()


def outcomes(folder: Path) -> list[tuple[str, str, bool | None]]:
    store = store_of(folder)
    try:
        return [(one.source, one.outcome, one.differs) for one in store.draws("cascade")]
    finally:
        store.close()


def text_of(number: int) -> str:
    return f"Is {number} times {number + 7} even? It is {'hard' if number % 4 == 0 else 'easy'}."


async def observed(folder: Path, provider: Answers, count: int = 320) -> None:
    async with serving(folder, provider) as client:
        found = await asyncio.gather(*(ask(client, text_of(number)) for number in range(count)))
    assert {one.headers["x-cascade-served-by"] for one in found} == {"large"}
    assert {one.headers["x-cascade-mode"] for one in found} == {"observe"}


def config_of(folder: Path) -> Any:
    return load({**CONFIG, **settings(folder, audit=0.1)})


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what was observed."""
    folder = tmp_path_factory.mktemp("seen")
    asyncio.run(observed(folder, Answers(), 160))
    return folder


@pytest.fixture
def observing(seen: Path, tmp_path: Path) -> Path:
    """Return a folder of the test's own with what was observed."""
    return Path(shutil.copytree(seen, tmp_path / "own"))


@pytest.fixture(scope="module")
def looked(seen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which a policy was promoted."""
    folder = Path(shutil.copytree(seen, tmp_path_factory.mktemp("looked") / "own"))
    found = promote(config_of(folder))
    assert found.promoted, str(found)
    check_document(["promote"], json.dumps(found.to_dict()))
    assert found.page["losses"] <= found.page["losses_allowed"]
    assert found.page["least_saving_usd"] > 0
    assert "delta: 0.1 over all looks; this one may spend 0.1/(1·2) = 0.05" in str(found)
    return folder


@pytest.fixture
def enforcing(looked: Path, tmp_path: Path) -> Path:
    """Return a folder of the test's own in which a policy was promoted."""
    return Path(shutil.copytree(looked, tmp_path / "own"))


async def test_while_observing_the_guide_serves_and_the_base_is_asked_after(tmp_path: Path) -> None:
    provider = Answers()
    async with serving(tmp_path, provider) as client:
        found = await ask(client, "easy")
    assert (found.status_code, found.headers["x-cascade-served-by"]) == (200, "large")
    assert provider.asked == ["large", "small"]
    assert outcomes(tmp_path) == [("observe", "complete", None)]
    store = store_of(tmp_path)
    assert store.draws("cascade")[0].off_path_nano_usd == store.counts("cascade").off_path_nano_usd > 0
    store.close()


async def test_a_row_stays_where_a_call_fails_and_where_nobody_answers(tmp_path: Path) -> None:
    provider = Answers()
    async with serving(tmp_path, provider) as client:
        provider.down = {"small"}
        first = {"x-cascade-group": "a", "x-cascade-turn": "1"}
        assert (await ask(client, "one", **first)).status_code == 200
        await settled(client)
        provider.down = {"large"}
        assert (await ask(client, "two")).status_code == 503
        provider.down = set()
        assert (await ask(client, "one", **first)).status_code == 200  # asked again: the first row stays as it is
    assert outcomes(tmp_path) == [("observe", "missing", None)] * 2


async def test_only_the_drawn_are_asked_twice_and_a_bypass_never(tmp_path: Path) -> None:
    provider = Answers()
    async with serving(tmp_path, provider, modes={**settings(tmp_path)["modes"], "share": 0.3}) as client:
        for number in range(60):
            await ask(client, text_of(number), **{"x-cascade-group": str(number), "x-cascade-turn": "1"})
        await ask(client, "easy", **{"x-cascade-bypass": "1"})
    drawn = len(outcomes(tmp_path))
    assert 5 < drawn < 35
    assert (provider.asked.count("large"), provider.asked.count("small")) == (61, drawn)


async def test_a_drift_is_found_and_a_restart_forgets_nothing(enforcing: Path) -> None:
    provider, tmp_path = Answers(), enforcing
    async with serving(tmp_path, provider) as client:
        easy, hard = await ask(client, "easy, 1"), await ask(client, "hard, 2")
        assert (easy.headers["x-cascade-served-by"], hard.headers["x-cascade-served-by"]) == ("small", "large")
        assert easy.headers["x-cascade-mode"] == "enforce"
        assert "x-cascade-certificate" in easy.headers
        later = [{"role": "user", "content": "easy, 1"}, easy.json()["choices"][0]["message"]]
        mixed = await ask(client, "easy, and then?", *later)
        assert mixed.headers["x-cascade-served-by"] == "large"  # its history is the base's
        provider.worse = True
        for number in range(60):
            answer = await ask(client, f"easy, {number + 10}")
            await settled(client)
            if state_of(tmp_path).mode == "fallback":
                break
        answer = await ask(client, "easy, at last")
        assert (answer.headers["x-cascade-served-by"], answer.headers["x-cascade-mode"]) == ("large", "fallback")
        shown = (await client.get("/v1/cascades")).json()["data"][0]
        assert 'cascade_mode{mode="fallback"} 1' in (await client.get("/metrics")).text
    with Store.open(f"sqlite:///{tmp_path}/traces.db", read_only=True) as traces:
        assert traces.models_of(mixed.headers["x-cascade-trace-id"]) == ["large"]
    assert shown["mode"] == "fallback"
    assert shown["monitor"]["alarmed_after"] <= 20
    assert "audits found" in shown["alarm"]
    async with serving(tmp_path, provider) as client:
        assert (await ask(client, "easy, again")).headers["x-cascade-mode"] == "fallback"


async def test_a_look_that_finds_nothing_is_counted_and_its_rows_never_certify_again(tmp_path: Path) -> None:
    provider = Answers()
    provider.worse = True  # the base is as sure as before, and always differs
    await observed(tmp_path, provider, 150)
    found = promote(config_of(tmp_path))
    assert not found.promoted
    check_document(["promote"], json.dumps(found.to_dict()))
    assert "no certificate" in found.page["why"]
    assert (state_of(tmp_path).looks, state_of(tmp_path).mode) == (1, "observe")
    with pytest.raises(UsageError, match="not looked at"):
        promote(config_of(tmp_path))
    assert state_of(tmp_path).looks == 1
    found_plan = plan_promotion(config_of(tmp_path))
    assert found_plan.plan.needed is None
    check_document(["promote", "plan"], json.dumps(found_plan.to_dict()))


async def test_a_silent_update_of_a_model_voids_the_certificate(enforcing: Path) -> None:
    provider, tmp_path = Answers(), enforcing
    async with serving(tmp_path, provider) as client:
        assert (await ask(client, "easy, 1")).headers["x-cascade-mode"] == "enforce"
        provider.build = "fp_2"
        await ask(client, "easy, 2")
        assert (await ask(client, "easy, 3")).headers["x-cascade-mode"] == "fallback"
    assert "from the build fp_2" in (state_of(tmp_path).alarm or "")


async def test_the_kill_switch_sends_everything_to_the_guide_at_once(enforcing: Path) -> None:
    provider, tmp_path = Answers(), enforcing
    async with serving(tmp_path, provider) as client:
        told = await client.post("/v1/cascades/cascade/kill", json={"on": True, "why": "to be sure"})
        assert told.json()["killed"] is True
        answer = await ask(client, "easy")
        assert (answer.headers["x-cascade-served-by"], answer.headers["x-cascade-mode"]) == ("large", "killed")
        await client.post("/v1/cascades/cascade/kill", json={"on": False})
        assert (await ask(client, "easy, 2")).headers["x-cascade-served-by"] == "small"
        bad = await client.post("/v1/cascades/cascade/mode", json={"mode": "fast"})
        none = await client.post("/v1/cascades/other/kill", json={"on": True})
        form = await client.post("/v1/cascades/cascade/kill", content=b"on=true")
        assert [one.status_code for one in (bad, none, form)] == [400, 404, 415]


async def test_a_canary_serves_a_share_of_the_keys_and_always_the_same(observing: Path) -> None:
    provider, tmp_path = Answers(), observing
    assert promote(config_of(tmp_path), canary=0.3).promoted
    async with serving(tmp_path, provider) as client:
        groups = [{"x-cascade-group": f"user {number}"} for number in range(30)]
        served = [
            [
                (await ask(client, f"easy {turn} {number}", **group)).headers["x-cascade-served-by"]
                for number, group in enumerate(groups)
            ]
            for turn in "ab"
        ]
    small = [place for place, model in enumerate(served[0]) if model == "small"]
    assert 2 < len(small) < 19
    # The second turn of those is the guide's, since the base wrote their first one; of the others nothing has changed.
    assert set(served[1]) == {"large"}
    async with serving(tmp_path, provider) as client:
        wider = {"mode": "enforce", "canary": 1, "why": "nothing differs"}
        told = (await client.post("/v1/cascades/cascade/mode", json=wider)).json()
        assert (told["canary"], told["changes"][-1]["why"]) == (1, "nothing differs (for 100% of the keys)")
        assert (await ask(client, "easy, at last")).headers["x-cascade-served-by"] == "small"
        wide = await client.post("/v1/cascades/cascade/mode", json={"mode": "enforce", "canary": 1.5})
        assert wide.status_code == 400


def test_a_policy_with_levels_and_modes_are_refused(tmp_path: Path) -> None:
    served = orchestrator(Answers(), **settings(tmp_path))
    levelled = SimpleNamespace(config=served.config, strategy=served.strategy, levels={"low": 0.2, "high": 0.05})
    with pytest.raises(ConfigError, match="the policy has levels"):
        Modes(levelled, Catalog.of(served.config, ()))  # type: ignore[arg-type]


async def test_changes_need_a_key_with_the_scope_admin(tmp_path: Path) -> None:
    plain, admin = new_key(), new_key()
    keys = [{"name": "app", "sha256": plain.sha256}, {"name": "me", "sha256": admin.sha256, "scopes": ["ask", "admin"]}]
    async with serving(tmp_path, Answers(), server={"keys": keys}) as client:

        async def status(key: str) -> int:
            told = await client.post(
                "/v1/cascades/cascade/kill", json={"on": True}, headers={"authorization": f"Bearer {key}"}
            )
            return told.status_code

        assert [await status(plain.key), await status(admin.key), await status("sk-cascade-x")] == [403, 200, 401]
    assert state_of(tmp_path).changes[-1].by == "me"
    assert json.loads(state_of(tmp_path).dumps())["killed"] is True
