"""The modes of the cascade in a running server: who serves each request, and what happens after its response.

`cascade.modes` makes the decisions. A keyed hash of names draws requests; a drawn request is recorded before its first
call; after the response the remaining calls are made. If one of them fails, no client is affected: the row stays, and
its missing outcome counts as a loss if the row certifies. While the store does not answer, the guide serves.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from cascade.conformal.certificate import digest
from cascade.conformal.monitor import is_drawn
from cascade.engine import RunPlan
from cascade.errors import CascadeError, ConfigError, ProviderUnavailableError, StoreError, UsageError, logger
from cascade.modes import draws
from cascade.modes.state import CascadeState, Draw, InForce, Mode
from cascade.modes.store import ModeStore, now_iso
from cascade.orchestrator import Orchestrator
from cascade.records.link import StoreLink
from cascade.runtime import AskOptions, Runtime
from cascade.safety import redact
from cascade.server.catalog import Catalog, ClientRequest, Route
from cascade.server.errors import GatewayError
from cascade.server.metrics import family
from cascade.serving.conditions import made_for
from cascade.types import Answer, Call, Completion, Question, Request

_AT_ONCE = 64
"""The most requests whose remaining calls run at once; others wait their turn."""
_MOST_WAITING, _MOST_CHARS = 1_000, 50_000_000
"""The most drawn requests under way, and the most characters of these; the outcome of a further one is missing."""
_FLUSH_S = 10.0
"""Seconds of waiting for the trace store after which a warning is logged."""
_EVERY_S = 15.0
"""Seconds between two rounds in which rows expire and audits of ended conversations are counted."""
_MODES = get_args(Mode)
_LONGEST_WHY = 500
_PAUSE_S, _LONGEST_S = 1.0, 60.0
"""The shortest and the longest pause between two tries to write an outcome to a failing store; it doubles each time."""


@dataclass
class Turn:
    """One request and how it is served.

    Attributes:
        mode: the mode, for the header of the response.
        key: the key whose budget pays its calls.
        row: its record, if it is drawn.
        audits: whether the policy is in force: it decides, unless `passed`, and a drawn turn is an audit.
        uncovered: why the guide answers without a certificate, if one was issued.
    """

    request: ClientRequest
    mode: str
    trace_id: str
    key: str | None
    row: Draw | None = None
    audits: bool = False
    uncovered: str | None = "the store of the modes does not answer"
    answer: Answer | None = None

    @property
    def passed(self) -> bool:
        """Whether the guide serves instead of the policy: then nothing can differ, and no further call is made."""
        return self.audits and not self.request.route.cascaded


class Modes:
    """The modes of one cascade.

    Attributes:
        store: keeps the state.
        state: the state as it was last read.
        counted: requests by mode and drawn rows by outcome, since the process began.
        completing: the tasks that complete drawn rows, by trace.

    Raises:
        ConfigError: the cascade cannot have modes.
    """

    def __init__(self, orchestrator: Orchestrator, catalog: Catalog) -> None:
        runtime = orchestrator.runtime
        settings, audits, url = runtime.config.modes, runtime.config.audits, runtime.config.modes_url
        assert settings is not None  # noqa: S101 - the caller looked
        if runtime.strategy.is_joint:
            raise ConfigError(
                ["modes: they need a ladder whose last model is the guide; use strategy: {kind: ladder, models: […]}"]
            )
        if runtime.levels:
            raise ConfigError(["modes: they make one promise, and the policy has levels; leave out modes, or policy"])
        self.settings, self._audited = settings, audits.probability if audits else 0.0
        self.catalog, self.cascade, self._guide = catalog, catalog.name, catalog.guide
        self._orchestrator = orchestrator
        self.link = runtime.links["modes"] = StoreLink("modes", runtime.config.timeouts.per_store_s, url or "")
        self.store = ModeStore.shared(url or "", self.link.limit_s)
        self.state, self._secret = self.store.begin(self.cascade)
        self._observes = digest(made_for(runtime.config))
        self.counted: Counter[str] = Counter()
        self._loaded: int | None = None
        self._void: str | None = None
        self._load_task: asyncio.Task[None] | None = None
        self.completing: dict[str, asyncio.Task[None]] = {}
        self._drawn = dict[str, int]()  # by trace, the length of the request of each row under way
        self._room, self._flushing = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()
        self._stopping = False

    def begin(self) -> None:
        """Observe this configuration from now on: nothing refuses it any more."""
        self.state = self.store.change(self.cascade, lambda state: state.observing(self._observes, now_iso()))

    # --- before the response ---

    @asynccontextmanager
    async def turn(
        self, request: ClientRequest, trace_id: str, key: str | None, headers: Mapping[str, str], within_s: float
    ) -> AsyncIterator[Turn | None]:
        """Decide within `within_s` how a request is served; after the block, begin its remaining calls.

        Yields None if no mode applies to the request.
        """
        route, group = request.route, request.chat.group
        if not route.cascaded or route.level is not None:
            if group is not None and route.model != self._guide:
                async with self._in_time(within_s):
                    await self.link.call(self.store.claim, draws.conversation_of(group, trace_id))
            yield None
            return
        # If the mode is unknown, the guide serves, so that no promise can break.
        turn = Turn(request._replace(route=Route(self.cascade, model=self._guide)), "unknown", trace_id, key)
        async with self._in_time(within_s):
            turn = await self._decided(request, turn, headers)
        self.counted[turn.mode] += 1
        try:
            yield turn
        finally:
            if turn.row is not None:
                self.completing[trace_id] = asyncio.create_task(self._completed(turn, turn.row, sys.exception()))

    @asynccontextmanager
    async def _in_time(self, within_s: float) -> AsyncIterator[None]:
        """Leave the block, without an error, if the store fails or is late."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(max(0.0, within_s)):
                yield

    async def _decided(self, request: ClientRequest, guide: Turn, headers: Mapping[str, str]) -> Turn:
        """Return the turn as it will be served; `guide` is the turn if the guide answers."""
        state, settings = await self.refreshed(), self.settings
        group, number = request.chat.group, draws.turn_of(headers.get("x-cascade-turn"), request.chat, guide.trace_id)
        later = draws.goes_on(request.chat.messages, settings.examples)
        conversation = draws.conversation_of(group, guide.trace_id)
        turn = replace(guide, mode=self.mode, audits=self.mode == "enforce", uncovered=self.void or state.alarm)
        if turn.audits:
            if later if group is None else not await self.link.call(self.store.claim, conversation):
                turn.uncovered = "guide after a cheap turn"  # nothing can differ
                self.counted[turn.uncovered] += 1
            else:
                turn = replace(turn, request=request)
            drawn = is_drawn(self._secret, self._audited, conversation, number)
        else:
            drawn = await self._is_observed(conversation, later=later, named=group is not None)
        if drawn:
            role = "audit" if turn.audits else draws.role_of(self._secret, conversation, settings.certify)
            certificate = state.in_force.certificate if turn.audits and state.in_force is not None else None
            row = Draw(
                turn.trace_id, self.cascade, conversation, number, role, self.store.now_s(), state.era, certificate
            )
            is_new = await self.link.call(self.store.draw, row, late=partial(self._came_late, row))
            if is_new and len(self._drawn) < _MOST_WAITING and sum(self._drawn.values()) < _MOST_CHARS:
                turn.row = row
                self._drawn[row.trace_id] = len(request.chat.canonical)
            elif is_new:  # a client may repeat a request, whose first try counts
                await self._settle(row, "too many drawn requests wait for their other calls")
        return turn

    def _came_late(self, row: Draw, is_new: bool) -> None:
        """Settle, as missing, a row that was recorded after its request had gone on undrawn. Called in a thread."""
        if is_new:
            self.counted["drawn, missing"] += 1
            self.store.settle(row, missing=True)

    async def _is_observed(self, conversation: str, *, later: bool, named: bool) -> bool:
        """Return whether a turn is drawn while the guide serves, as are all turns of its conversation from the first.

        A later turn without a name belongs to no known conversation; a policy would not serve it. No certificate could
        cover a conversation in which a cheaper model has answered.
        """
        elsewhere = self.state.observes != self._observes  # a server that began later observes another configuration
        if elsewhere or not is_drawn(self._secret, self.settings.share, conversation) or (later and not named):
            return False
        claimed = named and await self.link.call(self.store.is_claimed, conversation)
        return not claimed and (not later or await self.link.call(self.store.observes, self.cascade, conversation))

    async def answered(self, turn: Turn, answer: Answer, within_s: float) -> None:
        """Record, before an answer is sent, whether the guide wrote it, and whether a model seems to have changed."""
        turn.answer = answer
        served, group = answer.served, turn.request.chat.group
        async with self._in_time(within_s):
            if turn.request.route.cascaded and group and (served is None or served[0].model == self._guide):
                await self.link.call(self.store.release, draws.conversation_of(group, turn.trace_id))
            if turn.mode != "unknown":
                await self._noticed(answer.calls)

    async def _noticed(self, calls: Iterable[Call]) -> None:
        """Record what replies report about their models. Only new values are written to the store."""
        for call in calls:
            if (reply := call.completion) is not None:
                signs = call.request.model, reply.model, reply.fingerprint, reply.deployment
                if self.state.replied(*signs, "") is not self.state:
                    await self._changed(CascadeState.replied, *signs)

    # --- after the response ---

    async def _completed(self, turn: Turn, row: Draw, ended_by: BaseException | None) -> None:
        """Make the remaining calls of a drawn request and record the outcome; `ended_by` is why it has no answer."""
        try:
            try:
                async with self._room:
                    await self._complete(turn, row, ended_by)
            except asyncio.CancelledError:  # no process completes the row then, and whether it differs is unknown
                await self._settle(row, "the server stopped")
        except CascadeError as error:
            logger.warning("modes: the outcome of the drawn request %s could not be stored: %s", row.trace_id, error)
        finally:
            self.completing.pop(row.trace_id, None)
            self._drawn.pop(row.trace_id, None)

    async def _complete(self, turn: Turn, row: Draw, ended_by: BaseException | None) -> None:
        if turn.answer is None or turn.passed:
            why = None if turn.passed else f"{type(ended_by).__name__}: it was not answered, or the client left"
            # Nothing differs where a client left. A failed call shows nothing: audits of kept answers lack it, too.
            same = turn.audits and (turn.passed or isinstance(ended_by, asyncio.CancelledError | GeneratorExit))
            await self._settle(row, why, differs=False if same else None)
            return
        whole, why, lost = None, None, self._lost_traces
        try:
            whole = await whole_of(self._orchestrator.runtime, turn, turn.answer)
            failed = [call for call in whole.calls if call.error]
            why = f"the call of {failed[0].request.model} failed with {failed[0].error}" if failed else None
        except CascadeError as error:
            why = f"{type(error).__name__}: {error}"
        if why is None and not await self._written(lost):
            why = "its trace was lost"
        late = turn.answer.stopped == "deadline"  # its deadline was over while the policy went on
        differs = None if whole is None or not turn.audits else not late and self._differs(whole)
        await self._settle(row, why, differs=differs)
        if whole is not None:
            await self._noticed(whole.calls)

    @property
    def _lost_traces(self) -> int:
        """How many answers could not be recorded since the process began."""
        traces = self._orchestrator.runtime.traces
        return 0 if traces is None else traces.counts.lost

    async def _written(self, lost: int) -> bool:
        """Wait until the traces are written, however long it takes; return whether no further traces were lost.

        A row whose trace is late is pending, not missing. One thread waits for all rows, so that a blocked store leaves
        the other threads to requests.
        """
        flush = self._orchestrator.runtime.flush_traces
        async with self._flushing:
            while not await asyncio.to_thread(flush, _FLUSH_S) and self._lost_traces == lost:
                logger.warning("modes: the traces' store is silent for %g s; drawn requests stay pending", _FLUSH_S)
        return self._lost_traces == lost

    async def _settle(self, row: Draw, why: str | None, *, differs: bool | None = None) -> None:
        """Record an outcome as soon as the store answers: a late one counts like any other.

        `why` says why it is missing, if it is; `differs` says of an audit whether the two answers differ. Raises
        StoreError if the store does not answer while the server stops.
        """
        self.counted["drawn, missing" if why else "drawn, complete"] += 1
        if why is not None:
            if not all(guard.quotes for guard in self._orchestrator.runtime.guards.values()):
                why = why.partition(": ")[0]  # the text of an error follows its class
            logger.warning("modes: the drawn request %s has no outcome: %s", row.trace_id, redact(why))
        settle, pause_s = partial(self.store.settle, row, missing=why is not None, differs=differs), _PAUSE_S
        while True:
            try:
                self._take(await self.link.call(settle))
                break
            except StoreError:
                if self._stopping:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)

    def _differs(self, whole: Answer) -> bool | None:
        """Return whether the served answer differs from the guide's; None if the audit does not show it."""
        service = self._orchestrator.runtime.service
        loss = None if service is None else service.default.compared(whole, service.default.certificates[0])
        return None if loss is None or isinstance(loss, str) else loss > 0

    async def completed(self, trace_id: str, timeout_s: float) -> bool:
        """Wait until a drawn request's trace is complete, if this process completes it; return whether it is."""
        task = self.completing.get(trace_id)
        if task is not None:
            await asyncio.wait([task], timeout=timeout_s)
        return not await self.link.call(self.store.is_pending, trace_id)

    def take_over(self, before: Modes) -> None:
        """Continue the counts of the modes of an earlier configuration."""
        self.counted, self._drawn = before.counted, before._drawn
        self.link.failures = before.link.failures

    async def drain(self, timeout_s: float) -> None:
        """Wait until all drawn rows are complete; rows that are late become missing.

        If the store does not answer, they stay pending until another process marks them as missing.
        """
        if self.completing:
            _, late = await asyncio.wait(self.completing.values(), timeout=timeout_s)
            self._stopping = True
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self.link.close()
        self.store.close()

    # --- the state ---

    @property
    def mode(self) -> str:
        """The mode in this process."""
        return self.state.mode if self.void is None else "void"

    @property
    def void(self) -> str | None:
        """Why the certificate in force does not hold in this process, with other prices or models; else None."""
        return self._void if self.state.mode == "enforce" else None

    async def refreshed(self) -> CascadeState:
        """Return the current state, with the policy in force loaded. Raises StoreError if the store or that is late."""
        self._take(await self.link.together(self._read, self.cascade))
        while self.state.mode == "enforce" and (now := self.state.in_force) and self._loaded != now.look:
            if self._load_task is None or self._load_task.done():
                self._load_task = asyncio.create_task(self._load(now))
            try:
                await asyncio.wait_for(asyncio.shield(self._load_task), self.link.limit_s)  # it goes on for later ones
            except TimeoutError:
                raise StoreError("The policy in force is not loaded yet.", retryable=True) from None
        return self.state

    def _read(self, callers: Sequence[object]) -> list[CascadeState]:
        """Return the current state, once for each caller. Raises StoreError if the database no longer has it."""
        try:
            return [self.store.state(self.cascade, self.state)] * len(callers)
        except UsageError as error:  # the database was made anew
            raise StoreError(str(error)) from None

    def _take(self, state: CascadeState) -> None:
        if state.mode != self.state.mode:
            log = logger.error if state.mode == "fallback" else logger.info
            who = "the policy" if state.mode == "enforce" else "the guide"
            log("cascade %s: %s serves from now on. %s", self.cascade, who, state.changes[-1].why)
        if state.version >= self.state.version:
            self.state = state

    async def _load(self, certificate: InForce) -> None:
        """Put the policy of a certificate in service; if the certificate does not hold here, the guide serves here.

        The state that processes share does not change.
        """
        files = await self.link.call(self.store.files, self.cascade, certificate.look)
        try:
            with tempfile.TemporaryDirectory(prefix="cascade-policy-") as folder:
                for name, data in files.items():
                    (Path(folder) / Path(name).name).write_bytes(data)
                await asyncio.to_thread(self._orchestrator.runtime.reload_policy, folder)
            service = self._orchestrator.runtime.service
            void = [why for _, reasons in (() if service is None else service.holding) for why in reasons]
        except (CascadeError, OSError) as error:  # for example, if no folder is writable
            void = [str(error)]
        self._loaded, self._void = certificate.look, void[0] if void else None
        if void:
            logger.error("cascade %s: the guide serves in this process: %s", self.cascade, redact(void[0]))

    async def _changed(self, decide: Callable[..., CascadeState], *values: Any) -> None:
        """Replace the state with what `decide` makes of it, the values and the time. Raises UsageError if it does."""
        at = now_iso()
        self._take(await self.link.call(self.store.change, self.cascade, lambda state: decide(state, *values, at)))

    async def forever(self) -> None:
        """Expire rows and count audits every few seconds until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.count(self.store.now_s())
            except CascadeError as error:
                logger.warning("modes: the audits could not be counted: %s", redact(str(error)))

    async def count(self, now_s: float) -> None:
        """Expire the rows of killed processes, and count the audits of conversations that have ended."""
        self._take(await self.link.call(self.store.count, self.cascade, now_s, [*self._drawn]))

    async def document(self) -> dict[str, Any]:
        """Return what `/v1/cascades` shows of the cascade."""
        state, counts = await self.refreshed(), await self.link.call(self.store.counts, self.cascade)
        return {**json.loads(state.dumps()), "rows": counts._asdict(), "void_here": self.void}

    async def change(self, body: Mapping[str, Any], by: str) -> None:
        """Set the mode by hand, as the body of a request says. Raises GatewayError (400)."""
        mode, why = body.get("mode"), body.get("why", "by hand")
        if mode not in _MODES:
            raise GatewayError(400, f"mode must be one of {', '.join(_MODES)}.", param="mode")
        if not isinstance(why, str) or len(why) > _LONGEST_WHY:
            raise GatewayError(400, f"why must be a text of at most {_LONGEST_WHY} characters.", param="why")
        await self._changed(CascadeState.set_mode, mode, by, why)

    def metrics(self) -> str:
        """Return mode and counts in Prometheus' text form."""
        mode = self.mode if self.link.problem is None else "unknown"
        modes = {name: int(name == mode) for name in (*_MODES, "void", "unknown")}
        text = family("mode", "1 for the mode that the cascade is in.", modes, "mode")
        text += family("turns_total", "Requests by mode, drawn rows by outcome.", self.counted, "what")
        if (monitor := self.state.monitor) is not None:
            text += family("evidence", "The e-process of the certificate.", f"{monitor.e_value:g}")
        return text


async def whole_of(runtime: Runtime, turn: Turn, served: Answer) -> Answer:
    """Make the calls that an answer left out, and record all calls. No call is made twice.

    If the policy in service decided, its answer, which is not recorded yet, stays; else every step is run and kept.

    Returns:
        The answer with all steps, including failed calls.

    Raises:
        ProviderError, BudgetExceededError, UsageError: as `Orchestrator.achat` does.
    """
    plan = None if turn.audits else RunPlan(runtime.configured)
    options = AskOptions(plan=plan, trace_id=turn.trace_id, audit=True, key=turn.key)
    pending = runtime.start(Question.of_chat(turn.request.chat), options)
    calls = {(call.request.model, call.request.messages): call for call in served.calls}  # a judge is asked twice

    async def replied(request: Request) -> Completion:
        call = calls.pop((request.model, request.messages), None)
        if call is None:
            return await pending.complete(request)
        if call.completion is None:
            raise ProviderUnavailableError(call.error or "the call failed", model=request.model)
        return call.completion

    return await pending.answer(replied)
