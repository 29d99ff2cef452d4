"""The options that several commands share, and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.methods import METHODS, method_named, method_written
from cascade.guarantees.base import KINDS

Episodes = Annotated[
    str,
    typer.Argument(
        help="A log (.jsonl, .parquet, a store's URL), demo, demo-ladder, demo-requests, or simulated:NAME."
    ),
]
Where = Annotated[list[str] | None, typer.Option("--where", help="Only rows with COLUMN=VALUE. Repeatable.")]
Matched = Annotated[str | None, typer.Option("--matcher", help="Judge the answers anew against the gold answers.")]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        help="Right is what equals the output of this model, whatever the labels say: guide, or a ladder's model.",
    ),
]
Models = Annotated[
    str | None,
    typer.Option(
        "--models", help="CHEAP,DEAR: of a log of many models these alone, in this order; the last is the reference."
    ),
]
Reviews = Annotated[
    list[Path] | None,
    typer.Option(
        "--reviews", help="What people said (cascade review) is the truth. Repeatable, for several reviewers."
    ),
]
LabelRate = Annotated[
    float | None,
    typer.Option("--label-rate", help="Of the reviews only those drawn at this rate. By default all that were drawn."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as one JSON document.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Which random draws.")]
Configured = Annotated[
    Path | None, typer.Option("--config", "-c", help="The cascade that will serve: models, prices, prompts, strategy.")
]

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The policy directory to write. By default that of --policy.")
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--guarantee",
        help=f"What is promised: {', '.join(KINDS.built_in)}, or an installed one. By default coverage; a "
        "directory keeps every part of its promise that is not given, and with this it is asked for anew.",
    ),
]
NewKind = Annotated[
    str | None,
    typer.Option(
        "--guarantee", help=f"What is promised: {', '.join(KINDS.built_in)}, or an installed one. By default coverage."
    ),
]
Alpha = Annotated[
    float | None, typer.Option("--alpha", help="The share of questions that may be missed. By default 0.1.")
]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Promise it for all but this share of calibrations, not on average over them."),
]
Budget = Annotated[
    float | None, typer.Option("--budget", help="What a question may cost on average, in USD, as in 0.01.")
]
Most = Annotated[
    float | None,
    typer.Option("--most", help="What no question can cost more than, in USD. By default budget.per_question."),
]
BySegment = Annotated[
    bool, typer.Option("--by-segment", help="A promise for each segment of questions (a tenant, a task, a language).")
]
Together = Annotated[
    bool,
    typer.Option("--together", help="With --by-segment and --delta: delta for all segments at once, not for each."),
]
ByGroup = Annotated[
    bool,
    typer.Option("--by-group", "--groups", help="Until 0.7: as --by-segment, of the column group. Use --by-segment."),
]
Abstain = Annotated[bool, typer.Option("--abstain", help="Serve no answer where the best one is not sure enough.")]
ExpiresDays = Annotated[
    int | None, typer.Option("--expires-days", min=0, help="How many days it holds. By default without end.")
]
AllowEverything = Annotated[
    bool, typer.Option("--allow-everything", help="With too few questions, keep every answer of every step.")
]
Force = Annotated[bool, typer.Option("--force", help="Write over another policy in the directory.")]
METHODS_SAID = ", ".join(map(method_written, METHODS))
"""As `--help` lists them; each may be written with dashes or underscores."""


Method = Annotated[
    str,
    typer.Option(
        "--policy",
        callback=method_named,
        help=f"What to fit: {METHODS_SAID}. auto tries all but networks (--networks) and takes "
        "the simplest that does as well as the best.",
    ),
]
