"""OpenAI's batches: the file of requests, and one file of results for each model; `custom_id` joins them.

Other servers write the same format. Costs are list prices of the bundled table: a batch itself may cost less.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.errors import UsageError
from cascade.logs.importers.calls import checked_columns, mapped
from cascade.logs.importers.chat import (
    LoggedAnswer,
    answered,
    asked,
    gold_in,
    ladder_rows,
    tokens_in,
    usage_in,
)
from cascade.logs.importers.sources import RESULT_NAMES, Record, records
from cascade.logs.importers.values import mapping, moment, text, whole
from cascade.logs.schema import ECHOED, Dropped
from cascade.money import PriceTable


def rows_from_batch(
    sources: Sequence[Path | str],
    dropped: Dropped | None = None,
    *,
    models: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ladders of the models. The k-th answers of all models to a request are one episode.

    A request's line may have fields beyond OpenAI's format: `gold` (null is unknown, `[]` no call), `group`, `segment`,
    `split`. All requests are held in memory. The files may come in any order. The models are the steps of the ladder,
    by default all, by rising mean cost. `columns` takes further columns from fields of a request's line: `{"segment":
    "tenant"}`.

    Raises:
        UsageError: one kind of file is missing, a model is not in the log, or the order of the models is unknown.
    """
    counted, fields = Dropped() if dropped is None else dropped, checked_columns(columns)
    requests, results, named = dict[str, _Asked](), list[Path](), dataset
    for path in map(Path, sources):
        if is_results(path):
            results.append(path)
            continue
        named = named or path.name.split(".")[0]
        for record in records(path, counted):
            requests |= _request(record, fields, counted)
    if not requests or not results:
        lacking = (
            "results (lines with custom_id and response)" if requests else "requests (lines with custom_id and body)"
        )
        raise UsageError(
            f"A batch is read from its requests and its results together: give the file of {lacking}, too."
        )
    prices = PriceTable.bundled()

    def read(dropped: Dropped) -> Iterator[LoggedAnswer]:
        for record in itertools.chain.from_iterable(records(path, dropped) for path in results):
            answer = _answer(record, requests, prices, dropped)
            if answer is not None:
                yield answer

    for row in ladder_rows(read, models, counted):
        yield row | {"dataset": named}


def is_results(path: Path) -> bool:
    """Whether a file is one of a batch's results, by its first line."""
    first = next(records(path, Dropped()), None)
    return first is not None and first.fields.keys() >= RESULT_NAMES


class _Asked(NamedTuple):
    """A request of a batch, and the other fields of its line."""

    request: ChatRequest
    head: Mapping[str, Any]


def _request(record: Record, columns: Mapping[str, str], dropped: Dropped) -> dict[str, _Asked]:
    """Return the request of a line by its custom_id; empty, and counted, if it is not a chat request."""
    found, custom_id = record.fields, text(record.fields.get("custom_id"))
    body = mapping(found.get("body"))
    if custom_id is None or "messages" not in body:
        dropped.drop("no custom_id, or no chat completion is asked for", record.place)
        return {}
    try:
        request = ChatRequest.from_openai(body)
    except UsageError as error:
        dropped.drop(str(error), record.place)
        return {}
    gold = gold_in(found.get("gold"), tools=bool(request.tools), kind=text(found.get("category")))
    given = {name: text(found.get(name)) for name in ("segment", "split")}
    head = {"group": text(found.get("group")) or custom_id, "gold": list(gold) or None, **given, **asked(request)}
    return {custom_id: _Asked(request, head | mapped(found, columns, record.place, dropped))}


def _answer(
    record: Record, requests: Mapping[str, _Asked], prices: PriceTable, dropped: Dropped
) -> LoggedAnswer | None:
    """Return the answer of a line of results; None, and counted, if it has none."""
    custom_id, response = text(record.fields.get("custom_id")), mapping(record.fields.get("response"))
    body = mapping(response.get("body"))
    choices, model = body.get("choices"), text(body.get("model"))
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    message = choice.get("message")
    if not isinstance(message, Mapping) or model is None:
        dropped.drop("a failed call, or a result that is no chat completion", record.place)
        return None
    asked_for = requests.get(custom_id or "")
    if custom_id is None or asked_for is None:
        dropped.drop("a result without its request", record.place)
        return None
    usage, price = usage_in(body.get("usage")), prices.price(model)
    cost = None if price is None else price.cost_nano_usd(usage)

    def columns() -> dict[str, Any]:
        if price is None:
            dropped.note(f"the price of {model} is not known, so its cost is null", record.place)
        finish, tokens = text(choice.get("finish_reason")), tokens_in(choice)
        said = answered(asked_for.request, message, usage, finish_reason=finish, tokens=tokens)
        said["signals"]["replay"][ECHOED] = model
        created = moment(seconds * 1_000_000_000) if (seconds := whole(body.get("created"))) else None
        source = "no price" if cost is None else "list price"
        return {**asked_for.head, **said, "cost_source": source, "created_at": created and created.iso}

    return LoggedAnswer(record.place, custom_id, model, cost, columns)
