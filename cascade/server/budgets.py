"""`/v1/budgets`: shows and resets what is spent under caps that requests share; alerts when a cap is nearly spent."""

from __future__ import annotations

import asyncio
import html
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cascade.budget.caps import OF_CLIENTS, Account, label, period, scope
from cascade.errors import CascadeError, logger
from cascade.money import exact_dollars, usd
from cascade.providers.openai_http import post
from cascade.runtime import Runtime
from cascade.server.body import read_object
from cascade.server.dialects import encoded
from cascade.server.errors import GatewayError
from cascade.server.metrics import Instruments, family
from cascade.serving.spending import Spending

_EVERY_S = _POST_S = 5.0
_PAUSES_S = (0.0, 5.0, 60.0)  # before each try to post an alert
_MOST = 1_000
"""The most accounts that are read at once, since a client may name any number of users."""


class Budgets:
    """The accounts of a server's caps. They are listed in a thread, not over the link that requests use.

    Raises ConfigError if the address of the alerts is wrong.
    """

    def __init__(self, runtime: Runtime, tools: Instruments) -> None:
        self._runtime, self._tools, self._posts = runtime, tools, set[asyncio.Task[None]]()
        self._alerts, self._url = runtime.config.budget.alerts, runtime.config.alerts_url
        self._today, self._seen_s = "", 0.0

    @property
    def _spending(self) -> Spending:
        spending = self._runtime.spending
        assert spending is not None  # noqa: S101 - there are caps
        return spending

    @property
    def routes(self) -> list[Route]:
        """The paths that show accounts and reset them; `auth.SCOPES` says for whom."""
        return [Route("/v1/budgets", self._list), Route("/v1/budgets", self._reset, methods=["POST"])]

    async def _list(self, _: Request) -> Response:
        spending = self._spending
        listed = await asyncio.to_thread(lambda: {**spending.used(_MOST), **spending.balances()})
        share = {name: stands.spent / max(cap, 1) for name, (cap, stands) in listed.items()}
        data = [self._entry(name, *listed[name]) for name in sorted(listed, key=share.__getitem__, reverse=True)]
        return Response(encoded({"object": "list", "data": data}), media_type="application/json")

    def _entry(self, name: str, cap: int, stands: Account) -> dict[str, Any]:
        amounts = {"cap_usd": cap, "spent_usd": stands.spent, "held_usd": stands.held}
        ends, dollars = self._spending.caps.ends(name), {kind: f"{usd(amount):f}" for kind, amount in amounts.items()}
        return {"account": name, **dollars, "ends": ends and ends.isoformat(), "resets": stands.resets}

    async def _reset(self, request: Request) -> Response:
        exchange, spending = request.scope["exchange"], self._spending
        account = (await read_object(request.receive, request.headers, exchange.visit, dict)).get("reset")
        if not isinstance(account, str) or spending.caps.size(account, spending.now_s()) is None:
            raise GatewayError(400, "reset must name an account, as GET /v1/budgets lists them.", param="reset")
        await asyncio.to_thread(spending.ledger.reset, account, exchange.key or "")
        logger.warning("budget: the key %r has reset the spending of %s to 0", exchange.key, account)
        return await self._list(request)

    async def forever(self) -> None:
        """Check the accounts every few seconds until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            with suppress(CascadeError):  # requests log and count failures of the store
                await self.look()

    async def look(self) -> None:
        """Book expired holds, forget past periods, and alert on each account that has reached a share of its cap."""
        spending, alerts = self._spending, self._alerts
        await asyncio.to_thread(spending.ledger.recover, datetime.now(UTC).timestamp())
        now_s = spending.now_s()
        if self._today != (today := spending.caps.periods(now_s)["day"]):
            # A clock that is ahead for less than a day forgets nothing: the last day that began here counts, too.
            await asyncio.to_thread(spending.prune, min(now_s, self._seen_s))
            self._today, self._seen_s = today, now_s
        if alerts is None:
            return
        for name, (cap, stands) in (await asyncio.to_thread(spending.used, _MOST, *alerts.at)).items():
            share = max([at for at in alerts.at if stands.spent >= round(at * cap)], default=0.0)
            amount = round(share * cap)
            if amount > stands.alerted and await asyncio.to_thread(spending.ledger.alert, name, amount):
                self._alert(share, name, cap, stands)

    def _alert(self, share: float, name: str, cap: int, stands: Account) -> None:
        shown = scope(name) + label(period(name)) if scope(name) in OF_CLIENTS else label(name)
        self._tools.alerts[shown, f"{share:g}"] += 1
        text = f"{name} has spent {exact_dollars(stands.spent)} of {exact_dollars(cap)}, {share:.0%} or more"
        logger.warning("budget: %s", text)
        if self._url is not None:
            document = {"text": html.escape(text, quote=False), "share": share, **self._entry(name, cap, stands)}
            task = asyncio.create_task(self._post(self._url, encoded(document)))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)

    async def _post(self, url: str, data: bytes) -> None:
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            if (failure := await post(url, data, _POST_S)) is None:
                return
            self._tools.webhook_failures["budget"] += 1
            logger.error("budget: the webhook did not accept an alert: %s", failure)

    def metrics(self) -> str:
        """Return the amounts booked, and the counts of alerts, in Prometheus' text form."""
        booked, tools = {key or "": cost for key, cost in self._spending.booked.items()}, self._tools
        return "".join([
            family("budget_booked_usd_total", "Everything booked, by key, with failed calls.", booked, "key"),
            family("budget_alerts_total", "Accounts at a share of their cap.", tools.alerts, "account", "share"),
            family("webhook_failures_total", "Failed tries to post an alert.", tools.webhook_failures.total()),
        ])  # fmt: skip
