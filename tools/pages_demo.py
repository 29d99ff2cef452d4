"""Serve the demo's requests, replayed from the log that ships with the package, and look at the pages in Chromium.

    python tools/pages_demo.py docs/pages.png      the picture in docs/serve.md
    python tools/pages_demo.py --serve             the pages themselves, until Ctrl-C

The policy is fitted on that log and serves the same log, so that its audits bear it out; the requests' times are spread
over two weeks, and prices are the demo's. Everything else is what a server does. Needs the extras fit, server and
dev-pages, and a Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cascade import Orchestrator
from cascade.cli.demo import fit_requests
from cascade.config import load
from cascade.conformal.monitor import is_drawn
from cascade.demo import requests as demonstration
from cascade.demo.requests import (
    ALPHA,
    BASE_PRICE,
    DELTA,
    GUIDE_PRICE,
    PAIR,
    asking_only,
    demo_config,
    ladder_config,
    team_of,
)
from cascade.logs.schema import rows
from cascade.modes.draws import look_level
from cascade.modes.state import Draw, InForce, Look
from cascade.modes.store import ModeStore, now_iso
from cascade.providers.replay import Replay
from cascade.records.database import looks
from cascade.records.traces import Store
from cascade.types import Answer

DAYS, AUDITED, SEED = 14, 0.25, b"demo"
WIDTH, HEIGHT = 1060, 900


def configured(folder: Path) -> dict[str, Any]:
    """Return the configuration that is shown."""
    base, guide = PAIR
    return {
        "models": {
            "base": {"model": base, "price": BASE_PRICE, "max_tokens": 128},
            "guide": {"model": guide, "price": GUIDE_PRICE, "max_tokens": 128},
        },
        "provider": "local",
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "policy": str(folder / "policy"),
        "traces": f"sqlite:///{folder}/traces.db",
        "modes": {"risk": ALPHA, "confidence": 1 - DELTA},
        "audits": {"probability": AUDITED},
        "server": {"name": "shop-mail", "port": 0},
    }


async def fill(folder: Path, replay: Replay) -> None:
    """Fit, serve the log, and put each request on record, with its audit where one is drawn."""
    fitted = fit_requests(demo_config(*PAIR))
    fitted.save(folder / "policy")
    settings = ladder_config(load(configured(folder)))
    config = settings.model_copy(update={"policy": load(configured(folder)).policy, "traces": None})
    requests = demonstration.demo_requests("log")
    begin = datetime.now(UTC) - timedelta(days=DAYS)
    modes = ModeStore.shared(load(configured(folder)).modes_url or "")
    (certificate,) = fitted.certificates
    name, at = "shop-mail", now_iso()
    modes.begin(name)
    in_force = InForce(certificate.id, 1, ALPHA, look_level(DELTA, 1), certificate.n, "label")
    look = Look(name, 1, begin.timestamp(), begin.timestamp(), in_force.level, modes.state(name).era)
    with modes.transaction() as connection:
        connection.execute(sa.insert(looks), {**look._asdict(), "page": "{}", "files": "{}"})
    files = {path.name: path.read_bytes() for path in (folder / "policy").iterdir()}
    modes.close_look(look, {}, files, lambda state: state.promoted(in_force, 0.1, at))
    async with Orchestrator.from_config(config, providers={"local": replay}) as cascade:
        guide = Orchestrator.from_config(
            asking_only(config, "guide").model_copy(update={"traces": None}), providers={"local": replay}
        )
        with Store(f"sqlite:///{folder}/traces.db") as store:
            for number, request in enumerate(requests):
                when, trace = begin + timedelta(days=DAYS) * (number / len(requests)), str(uuid4())
                audit = is_drawn(SEED, AUDITED, str(number), "1")
                answer, outright = await cascade.aask(_question(request)), await guide.aask(_question(request))
                store.append(_rows(answer, outright, trace, when, audit=audit))
                if audit:
                    row = Draw(trace, name, str(number), "1", "audit", when.timestamp())
                    row = row._replace(certificate=in_force.certificate)
                    modes.draw(row)
                    modes.settle(row, differs=team_of(answer) != team_of(outright))
        await guide.aclose()
    modes.close()


def _question(request: demonstration.DemoRequest) -> Any:
    from cascade.types import Question

    return Question.of_chat(request.chat)


def _rows(answer: Answer, outright: Answer, trace: str, when: datetime, *, audit: bool) -> list[dict[str, Any]]:
    """Return the rows of a request, with the guide's as the second step where an audit asked it."""
    head: dict[str, Any] = {"episode_id": trace, "created_at": when.isoformat(timespec="milliseconds")}
    head |= {"split": "audit" if audit else None}
    records = list(rows(answer, horizon=2, **head))
    if audit and len(answer.steps) == 1:
        records += [{**row, "step": 2, "kept": False} for row in rows(outright, horizon=2, **head)]
    return records


def shoot(address: str, picture: Path) -> None:
    """Take a picture of the status."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(address)
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Fill a store, serve it, and take the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", nargs="?", type=Path, help="where the picture goes")
    parser.add_argument("--serve", action="store_true", help="serve the pages instead")
    given = parser.parse_args()
    from uvicorn import Server

    from cascade.server.app import application
    from cascade.server.lifecycle import listener

    replay = Replay.open(str(resources.files("cascade").joinpath("data/demo_requests.parquet")))
    with tempfile.TemporaryDirectory(prefix="cascade-pages-") as folder:
        asyncio.run(fill(Path(folder), replay))
        served = Orchestrator.from_config(load(configured(Path(folder))), providers={"local": replay})
        server = Server(listener(application(served)))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.05)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/ui"
        print(address, flush=True)
        if given.serve:
            thread.join()
        elif given.picture is not None:
            shoot(address, given.picture)
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
