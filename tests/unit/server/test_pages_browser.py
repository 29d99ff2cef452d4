"""The pages in headless Chromium: by keyboard alone, at phone and desktop width, light and dark, held against axe-core."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cascade.modes.state import Draw, InForce
from cascade.modes.store import ModeStore
from cascade.providers.fake import FakeProvider
from cascade.review.reviews import read_reviews
from cascade.server.auth import new_key

from .served import listening, orchestrator
from .test_review_page import says

sync_api = pytest.importorskip("playwright.sync_api", reason="the extra dev-pages is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the extra dev-pages is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
]
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
KEY = new_key()
FOCUSED = """(() => {
  const place = [...document.querySelectorAll('a, button, summary')].indexOf(document.activeElement);
  return place >= 0 && getComputedStyle(document.activeElement).outlineStyle === 'none' ? -2 : place;
})()"""
"""Which control has the focus: −1 for anything else, −2 where nobody could see it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


def filled(folder: Path) -> None:
    """Put requests on record that were audited, and a cascade that was promoted and audited."""
    store = f"sqlite:///{folder}/t.db"
    audit = {"promise": "agreement", "risk": 0.1, "audit": {"probability": 1.0}}
    with orchestrator(FakeProvider(says), guarantee=audit, traces={"store": store}) as served:
        for number in range(3):
            served.chat([{"role": "user", "content": f"question {number} <script>alert(1)</script>"}])
    modes = ModeStore.open(f"sqlite:///{folder}/t.db")
    modes.begin("cascade")
    held = InForce("c1", 1, 0.1, 0.05, 100, "text")
    modes.change("cascade", lambda one: one.promoted(held, 0.1, "ann", "2026-11-20T10:00:00+00:00"))
    for number in range(5):
        row = Draw(f"t{number}", "cascade", f"c{number}", "1", "audit", float(number), certificate="c1")
        modes.draw(row)
        modes.settle(row, differs=number == 3)
    look = modes.open_look("cascade", "ann", 0.0, 0.1, lambda *_: None)
    modes.close_look(look, {"why": "no saving", "losses": 3})
    modes.close()


@pytest.fixture(scope="module", params=["open", "keys"])
def address(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, bool]]:
    folder, locked = tmp_path_factory.mktemp("pages"), request.param == "keys"
    with ThreadPoolExecutor(1) as beside:  # playwright's event loop runs in this thread
        beside.submit(filled, folder).result()
    settings: dict[str, Any] = {"traces": {"store": f"sqlite:///{folder}/t.db"}, "modes": {}}
    settings["server"] = {"keys": [{"name": "ann", "sha256": KEY.sha256, "scopes": ["view"]}]} if locked else {}
    with orchestrator(FakeProvider(says), **settings) as served, listening(served) as url:
        yield url, folder, locked


class Visit:
    """One tab; it notes what goes wrong, and whom it asks."""

    def __init__(self, browser: Any, url: str, **how: Any) -> None:
        self.url, self.wrong = url, list[str]()
        self.page = browser.new_context(**how).new_page()
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in {"error", "warning"} else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
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

    def violations(self) -> list[str]:
        """Return what axe-core finds, of all its rules."""
        found = axe.Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]

    def overflows(self) -> bool:
        """Whether the page is wider than the screen."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_no_page_has_a_fault_that_axe_core_finds(browser: Any, address: Any, size: Any, scheme: str) -> None:
    url, _, locked = address
    visit = Visit(browser, url, viewport=size, color_scheme=scheme)
    if locked:
        visit.page.goto(f"{url}/ui")
        assert visit.violations() == []
    for path in ("/ui", "/ui/review", "/ui/review?as=ann"):
        visit.open(path, locked=locked)
        visit.page.wait_for_selector("h1")
        visit.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert visit.violations() == [], path
        assert not visit.overflows(), path
    assert visit.wrong == []


def test_a_review_by_the_keyboard_alone(browser: Any, address: Any) -> None:
    url, folder, locked = address
    visit = Visit(browser, url, viewport=DESKTOP)
    visit.open("/ui/review", locked=locked)
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
    judged = read_reviews(folder / "t.db").by("bob")
    assert [one.verdict for one in judged.values()][1:] == ["equal", "both_bad"]
    assert visit.wrong == []


def test_every_control_of_the_status_is_reached_by_tab_and_seen(browser: Any, address: Any) -> None:
    url, _, locked = address
    visit = Visit(browser, url, viewport=DESKTOP)
    visit.open("/ui", locked=locked)
    visit.page.wait_for_selector("#next")
    wanted = visit.page.evaluate(
        "[...document.querySelectorAll('a, button, summary')].filter((one) => one.checkVisibility()).length"
    )
    reached = set()
    for _ in range(wanted + 20):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate(FOCUSED))
    assert -2 not in reached
    assert len(reached - {-1}) == wanted
    assert visit.wrong == []


def test_a_wrong_key_is_reported_and_forgotten(browser: Any, address: Any) -> None:
    url, _, locked = address
    if not locked:
        pytest.skip("this server has no keys")
    visit = Visit(browser, url, viewport=PHONE)
    visit.page.goto(f"{url}/ui")
    visit.page.locator("#key").fill("sk-cascade-wrong")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_selector("text=missing or wrong")
    assert visit.page.evaluate("sessionStorage.length") == 0
    assert visit.page.locator("h1").inner_text() == "Sign in"
