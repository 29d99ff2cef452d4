"""The pages in headless Chromium: a review by the keyboard alone, a wrong key; no page asks another host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cascade.providers.fake import FakeProvider
from cascade.review.reviews import read_reviews
from cascade.server.auth import new_key

from .served import listening, orchestrator
from .test_review_page import says

sync_api = pytest.importorskip("playwright.sync_api", reason="the extra dev-pages is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")]
KEY = new_key()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def filled(folder: Path) -> None:
    """Put requests on record that were audited, and a cascade that was promoted and audited."""
    store = f"sqlite:///{folder}/t.db"
    with orchestrator(FakeProvider(says), audits={"probability": 1.0}, traces={"store": store}) as served:
        for number in range(3):
            served.chat([{"role": "user", "content": f"question {number} <script>alert(1)</script>"}])


@pytest.fixture(scope="module", params=["open", "keys"])
def address(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, bool]]:
    folder, locked = tmp_path_factory.mktemp("pages"), request.param == "keys"
    with ThreadPoolExecutor(1) as beside:  # playwright's event loop runs in this thread
        beside.submit(filled, folder).result()
    settings: dict[str, Any] = {"traces": {"store": f"sqlite:///{folder}/t.db"}, "modes": {}}
    settings["server"] = (
        {"keys": [{"name": "ann", "sha256": KEY.sha256, "scopes": ["view", "review"]}]} if locked else {}
    )
    with orchestrator(FakeProvider(says), **settings) as served, listening(served) as url:
        yield url, folder, locked


class Visit:
    """One tab; it notes what goes wrong, and whom it asks."""

    def __init__(self, browser: Any, url: str, **how: Any) -> None:
        self.url, self.wrong = url, list[str]()
        self.page = browser.new_context(**how).new_page()
        self.page.on(
            "console", lambda entry: self.wrong.append(entry.text) if entry.type in {"error", "warning"} else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._note_foreign)

    def _note_foreign(self, request: Any) -> None:
        if not request.url.startswith(f"{self.url}/"):
            self.wrong.append(f"asks {request.url}")

    def open(self, path: str, *, locked: bool) -> None:
        """Open a page; sign in by the keyboard where that is asked."""
        self.page.goto(self.url + path)
        if locked and not self.page.evaluate("sessionStorage.length"):
            self.page.locator("#key").focus()
            self.page.keyboard.type(KEY.key)
            self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#login", state="detached")  # a key of this tab opens the next page by itself


def test_a_review_by_the_keyboard_alone(browser, address):
    url, folder, locked = address
    visit = Visit(browser, url)
    visit.open("/ui/review", locked=locked)
    if not locked:  # a key has a name
        visit.page.locator("#as").focus()
        visit.page.keyboard.press("ControlOrMeta+A")
        visit.page.keyboard.type("bob")
        visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("text=Pair 1 of 3")
    for number, key in enumerate("1=", 2):
        visit.page.keyboard.press(key)
        visit.page.wait_for_selector(f"text=Pair {number} of 3")
    visit.page.reload()
    visit.page.wait_for_selector("text=Pair 3 of 3")
    visit.page.keyboard.press("0")
    visit.page.wait_for_selector("text=All judged")
    judged = read_reviews(folder / "t.db").by("ann" if locked else "bob")
    assert [judgement.verdict for judgement in judged.values()][1:] == ["equal", "both_bad"]
    assert visit.wrong == []


def test_a_wrong_key_is_reported_and_forgotten(browser, address):
    url, _, locked = address
    if not locked:
        pytest.skip("this server has no keys")
    visit = Visit(browser, url)
    visit.page.goto(f"{url}/ui")
    visit.page.locator("#key").fill("sk-cascade-wrong")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("text=missing or wrong")
    assert visit.page.evaluate("sessionStorage.length") == 0
    assert visit.page.locator("h1").inner_text() == "Sign in"


@pytest.mark.parametrize("path", ["/ui", "/ui/review"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_pages_keep_the_rules_of_accessibility(browser, address, path, colours):
    axe = pytest.importorskip("axe_core_python.sync_playwright", reason="the extra dev-pages is not installed").Axe()
    url, _, locked = address
    visit = Visit(browser, url, color_scheme=colours)
    visit.page.goto(url + path)
    assert [rule["id"] for rule in axe.run(visit.page)["violations"]] == []  # with keys, the form that asks for one
    visit.open(path, locked=locked)
    assert [rule["id"] for rule in axe.run(visit.page)["violations"]] == []
