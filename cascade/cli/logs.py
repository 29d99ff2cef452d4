"""`cascade collect`, `import`, `traces`: logs of requests, collected, imported from other tools, or recorded live."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

import cascade
from cascade.api.collecting import spending
from cascade.api.logs import parse_pairs
from cascade.cli import options as opt
from cascade.cli.main import Meter, notes, print_report, print_result, say
from cascade.collection import CollectSettings, check
from cascade.collection.collector import BASELINES
from cascade.config import CascadeConfig, default_traces_url, load
from cascade.config.yamlfile import parse_yaml, read_yaml
from cascade.episodes.opening import DEMO_REQUESTS, rows_of
from cascade.errors import UsageError
from cascade.logs.duck import MEMORY
from cascade.logs.files import Dropped, is_there, replaced, write_rows
from cascade.logs.importing import imported
from cascade.logs.presets import SIGNALS, ImportOptions, presets
from cascade.logs.questions import AskedQuestion
from cascade.money import dollars, nano_usd, usd_or_none
from cascade.policies.signals import about_live, not_live
from cascade.records.address import is_url, located
from cascade.records.traces import Store
from cascade.reports.report import Report, Table
from cascade.text import counted


def collect(
    questions: Annotated[
        str,
        typer.Argument(
            help="A JSONL, CSV or JSON file of questions, or: demo-requests. A log, with --only or --judge."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log: .jsonl, .jsonl.gz or .parquet.")],
    config: opt.Config = opt.CONFIG,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an earlier run; nothing is paid twice.")] = False,
    concurrency: opt.Concurrency = 8,
    max_cost: Annotated[float | None, typer.Option(help="Stop before the log costs more than this, in USD.")] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help=f"A baseline to log too: {'; '.join(BASELINES)}; all; none. By default: guide only."),
    ] = None,
    matcher: Annotated[str | None, typer.Option(help="How answers are judged; by default by their form.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The name of the questions in the log.")] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="COLUMN=FIELD: our column (question, answer, choices, context, id, group, …) and the file's field for "
            "it, or a path to it: meta.target.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first N questions.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Ask only this node of the strategy, and take the others from a log. Repeatable."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Add this judge to a log: an entry under models, or module:function.")
    ] = None,
    where: opt.Columns = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run every step of every question and log it, so that any policy can be evaluated exactly on the log.

    Every answer is on the disk before it is used.

    Example: cascade collect questions.jsonl -o episodes.parquet --max-cost 5
    Example: cascade collect episodes.parquet --only second -o wider.parquet --max-cost 1
    Example: cascade collect episodes.parquet --judge judge -o judged.parquet
    """
    name = dataset or (None if only or judge else Path(questions).stem)
    settings = CollectSettings(
        resume=resume,
        concurrency=concurrency,
        max_cost_usd=max_cost,
        baselines=baseline,
        matcher=matcher,
        dataset=name,
        limit=limit,
        only=only,
        judge=judge,
    )
    source, configured = _demo(output, settings) if questions == DEMO_REQUESTS else (questions, config)
    with Meter() as meter:
        result = cascade.collect(
            source,
            output,
            settings,
            config=configured,
            mapped=parse_pairs("--map", "COLUMN=FIELD", mapped),
            where=where,
            show=lambda now: meter.tell("questions", now.done, now.total, spending(now), always=now.done == now.total),
            tell=say,
        )
    print_result(result, as_json=as_json)


def _demo(output: Path, settings: CollectSettings) -> tuple[list[AskedQuestion], CascadeConfig]:
    """Return the demo's own messages and configuration, after a wrong output is refused."""
    from cascade.cli.setup import fetch
    from cascade.demo import requests as shop
    from cascade.providers import weights

    configured = shop.ladder_config(shop.demo_config(*shop.PAIR))
    check(configured, (), output, settings)
    fetch([weights.entry_of(name) for name in shop.PAIR])
    return [message.question for message in shop.demo_requests("log")], configured


# --- import ---


def import_log(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="The log: files or folders of JSON, lines of JSON, CSV, Parquet or .eval, packed or not; a store. "
            "Several files are one log: each a model's, the cheapest first, or the parts of a batch.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .jsonl, .jsonl.gz or .parquet.")],
    kind: Annotated[
        str | None, typer.Option("--from", help=f"{', '.join(presets())}; by default, the log's fields decide.")
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="COLUMN=FIELD or MODEL.COLUMN=FIELD: our column (question, answer, model, gold, cost_usd, …) and the "
            "log's field for it, or a path to it: usage.total.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(help="CHEAP,DEAR: the models of the cascade, where it has more; of traces, the steps."),
    ] = None,
    cost: Annotated[
        list[str] | None, typer.Option(help="MODEL=USD: what a call of this model costs where the log does not say.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="MODEL=NAME: the name that cascade.yaml gives to a model of the log.")
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            help="What was sent beside each question of a table: a chat request's body without the question, in "
            "braces or a file. A certificate then covers such requests."
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The name of the questions in the log.")] = None,
    memory: Annotated[str, typer.Option(help="The most memory for tables; the rest goes to disk.")] = MEMORY,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """Turn another tool's log into a log of episodes, and list what was left out and why.

    Example: cascade import answers.csv -o episodes.parquet
    Example: cascade import answers.csv -o episodes.parquet --request "{temperature: 0, max_tokens: 300}"
    Example: cascade import spend.csv -o episodes.parquet --models gpt-4o-mini,gpt-4o
    Example: cascade import small/samples_arc.jsonl large/samples_arc.jsonl -o episodes.jsonl --cost small=0.0001
    """
    if output.resolve() in {Path(source).resolve() for source in sources}:
        raise UsageError("--output is the file that is read; choose another one.")
    if is_there(output) and not force:
        raise UsageError(f"{output} already exists. Choose another name, or overwrite it with --force.")
    wanted = ImportOptions(
        kind=kind,
        columns=parse_pairs("--map", "COLUMN=FIELD, as answer=reply", mapped),
        models=[name.strip() for name in (models or "").split(",") if name.strip()],
        dataset=dataset,
        costs=_costs(parse_pairs("--cost", "MODEL=USD, as small=0.0001", cost)),
        rename=parse_pairs("--rename", "MODEL=NAME, as small=openai/gpt-4o-mini", rename),
        request=None if request is None else _request(request),
        memory=memory,
    )
    dropped, stores = Dropped(), [str(place) for place in map(located, sources) if is_url(place)]
    if stores and len(stores) < len(sources):
        raise UsageError("A store holds cascade's own rows: import it without other files.")
    rows = chain.from_iterable(map(rows_of, stores)) if stores else None
    with contextlib.ExitStack() as stack:
        parquet = stack.enter_context(replaced(output)) if output.suffix == ".parquet" else None
        log = stack.enter_context(
            imported(
                sources, wanted, dropped, tell=lambda lines: notes().print("\n".join(lines)), output=parquet, rows=rows
            )
        )
        if parquet is None:
            write_rows(output, log.rows())
        counts = log.counts()
    document = {"source": ", ".join(sources), "from": log.kind, "output": str(output), **counts}
    document |= {"not_live": not_live(name.rpartition(SIGNALS)[2] for name in wanted.columns if SIGNALS in name)}
    left_out = {"rows": dict(dropped.rows), "notes": dict(dropped.notes), "first": [*dropped.first, *dropped.noted]}
    print_report(Report(*_imported(document, dropped), {**document, "dropped": left_out}), as_json=as_json)


def _request(given: str) -> Mapping[str, Any]:
    """Return a request's body, written in braces or in a file."""
    if given.lstrip().startswith("{"):
        return parse_yaml(given, "--request")
    if not is_there(Path(given)):
        raise UsageError(f"--request takes a body in braces, as '{{temperature: 0}}', or a file; there is no {given}.")
    return read_yaml(Path(given))


def _costs(amounts: Mapping[str, str]) -> dict[str, int]:
    """Return the cost of a call by its model, in nano-USD.

    >>> _costs({"small": "0.0001"})
    {'small': 100000}
    """
    costs, bad = dict[str, int](), list[str]()
    for model, amount in amounts.items():
        try:
            costs[model] = nano_usd(amount)
        except (ArithmeticError, ValueError):  # not a number, or not finite
            costs[model] = -1
        if not 0 <= costs[model] < 10**18:
            bad.append(f"{model}={amount}")
    if bad:
        raise UsageError(f"--cost takes MODEL=USD, an amount of 0 or more; not {', '.join(bad)}.")
    return costs


def _imported(document: Mapping[str, Any], dropped: Dropped) -> tuple[tuple[str, ...], tuple[Table, ...]]:
    """Return the lines and the table of an import."""
    rows, datasets = f"{counted(document['rows'], 'row')} from {document['source']}", document["datasets"]
    lines = [f"{counted(document['episodes'], 'episode')}, {rows} ({document['from']}) in {document['output']}"]
    unknown = {
        "episodes_not_of_all_models": (
            "episode",
            "not of all models, or of one (--map question_id=FIELD joins rows, model=FIELD parts them)",
        ),
        "unjudged_answers": ("answer", "not marked right or wrong (--matcher judges by accepted ones)"),
        "rows_without_cost": ("row", "whose cost is not known: fit needs it (--cost MODEL=USD gives it)"),
        "rows_without_request": (
            "row",
            "without what was sent beside the question (for a table, --request BODY gives it)",
        ),
    }
    lines += [f"{counted(document[name], noun)} {what}" for name, (noun, what) in unknown.items() if document[name]]
    if document["not_live"]:
        lines.append(f"{about_live(document['not_live'])}: a policy that reads such a signal is for studies")
    lines.append(dropped.describe() or "nothing was left out")
    figures = [(name, f"{counts['episodes']:,}", f"{counts['rows']:,}") for name, counts in datasets.items()]
    table = Table("", ("data set", "episodes", "rows"), tuple(figures))
    return tuple(lines), (table,) if len(figures) > 1 else ()


# --- traces ---

app = typer.Typer(
    help="Show or remove the traces of earlier requests; cascade import STORE exports them.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
StoreName = Annotated[str | None, typer.Option("--store", help="sqlite:///FILE or postgresql://…")]
StoreConfig = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration that names the store, if --store is not given.")
]
_AGE = re.compile(r"(\d{1,5})\s*([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


@app.command()
def purge(
    older_than: Annotated[
        str | None, typer.Option(help="Remove rows at least this old: 12h, 30d, 8w; 0d is everything.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Remove only this user's rows: the request's user, or the server key's name.")
    ] = None,
    content_only: Annotated[
        bool, typer.Option("--content-only", help="Keep the numbers; remove questions, contexts and answers.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    store: StoreName = None,
    config: StoreConfig = opt.CONFIG,
    as_json: opt.AsJson = False,
) -> None:
    """Remove rows that are old or of one user, or only their texts. SQLite overwrites removed rows with zeros.

    Example: cascade traces purge --older-than 30d --content-only
    """
    if older_than is None and user is None:
        raise UsageError(
            "Choose what to remove: --older-than AGE, --user NAME, or both. --older-than 0d is everything."
        )
    age = None if older_than is None else _age(older_than)
    before = datetime.now(UTC) - age if age else None  # everything, also rows without a time
    url, removed = _url(store, config), 0
    if _agreed(url, before, user, content_only=content_only, yes=yes):
        with Store(url, durable=False) as traces:
            removed = traces.purge(before, user=user, content_only=content_only)
    until = None if before is None else before.isoformat(timespec="seconds")
    document = {"removed": removed, "content_only": content_only, "before": until, "user": user}
    line = f"{counted(removed, 'row')} {'emptied' if content_only else 'removed'}"
    print_report(Report((line,), (), document), as_json=as_json)


def _agreed(url: str, before: datetime | None, user: str | None, *, content_only: bool, yes: bool) -> bool:
    """Return whether there are rows to remove. Without `yes`, the user must confirm it at the terminal."""
    with Store(url, read_only=True) as traces:
        count, address = traces.count(before=before, user=user), traces.address.shown
    what = "the texts of" if content_only else "all of"
    since = "" if before is None else f" from before {before:%Y-%m-%d %H:%M} UTC"
    of_user = "" if user is None else f" of {user}"
    question = f"Remove {what} {counted(count, 'row')}{of_user}{since} in {address}?"
    if count and not yes and not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask at; give --yes.")
    if count and not yes and not typer.confirm(question, err=True):
        raise typer.Exit(1)
    return count > 0


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"--older-than {text!r} is not an age. Write a number with h, d or w: 12h, 30d, 8w.")
    return timedelta(hours=int(match[1]) * _HOURS[match[2]])


@app.command()
def stats(
    store: StoreName = None,
    config: StoreConfig = opt.CONFIG,
    as_json: opt.AsJson = False,
) -> None:
    """Show how many traces there are, since when, and the cost of each model.

    Example: cascade traces stats
    """
    with Store(_url(store, config), read_only=True) as traces:
        summary = traces.summary()
    for model in summary["models"]:
        model["cost_usd"] = usd_or_none(model.pop("cost_nano_usd"))
    print_report(_summary(summary), as_json=as_json)


def _summary(figures: Mapping[str, Any]) -> Report:
    """Return the report of a store's figures."""
    size = "" if figures["bytes"] is None else f", {figures['bytes'] / 1e6:.1f} MB"
    lines = [f"{figures['store']}{size}"]
    if not figures["rows"]:
        return Report((*lines, "no traces yet"), (), figures)
    size = f"{counted(figures['rows'], 'row')} of {counted(figures['episodes'], 'episode')}"
    lines.append(f"{size}, {figures['first']} to {figures['last']}")
    rows = [
        (model["model"] or "unknown", str(model["rows"]), dollars(model["cost_usd"]), str(model["cost_unknown"]))
        for model in figures["models"]
    ]
    table = Table("", ("model", "calls", "cost", "calls of unknown cost"), tuple(rows))
    return Report(tuple(lines), (table,), figures)


def _url(store: str | None, config: Path) -> str:
    """Return the store to use: the named one, the configuration's, or the project's own file."""
    if store is not None:
        return store
    url = load(config).traces_url if config != opt.CONFIG or config.exists() else default_traces_url()
    if url is None:
        raise UsageError("The configuration has traces: off, so it names no store. Name one: --store sqlite:///FILE")
    return url
