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
Matched = Annotated[
    str | None, typer.Option("--matcher", help="Judge the answers again, against the gold answers, with this matcher.")
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        help="An answer is right if it equals this model's output; labels are ignored: guide, or a ladder's model.",
    ),
]
Models = Annotated[
    str | None,
    typer.Option(
        "--models", help="CHEAP,DEAR: use only these models of the log, in this order; the last is the reference."
    ),
]
Reviews = Annotated[
    list[Path] | None,
    typer.Option(
        "--reviews",
        help="A file of reviews (cascade review): they decide what is right. Repeatable, for several reviewers.",
    ),
]
LabelRate = Annotated[
    float | None,
    typer.Option("--label-rate", help="Use only the reviews drawn at this rate. By default all that were drawn."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random draws.")]
Configured = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration that will serve: models, prices, prompts, strategy."),
]

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The policy directory to write. By default that of --policy.")
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--guarantee",
        help=f"The kind of guarantee: {', '.join(KINDS.built_in)}, or an installed one. By default coverage. For a "
        "policy directory, the parts of its guarantee that are not given stay as they are.",
    ),
]
NewKind = Annotated[
    str | None,
    typer.Option(
        "--guarantee",
        help=f"The kind of guarantee: {', '.join(KINDS.built_in)}, or an installed one. By default coverage.",
    ),
]
Alpha = Annotated[
    float | None, typer.Option("--alpha", help="The share of questions that may be missed. By default 0.1.")
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        help="The guarantee holds with probability 1 - delta over calibrations, not only on average over them.",
    ),
]
Budget = Annotated[float | None, typer.Option("--budget", help="The mean cost of a question, in USD, as in 0.01.")]
Most = Annotated[
    float | None,
    typer.Option("--most", help="The highest cost that a question can have, in USD. By default budget.per_question."),
]
BySegment = Annotated[
    bool,
    typer.Option(
        "--by-segment", help="Make a certificate for each segment of questions (a tenant, a task, a language)."
    ),
]
Together = Annotated[
    bool,
    typer.Option(
        "--together", help="With --by-segment and --delta: delta holds for all segments together, not for each."
    ),
]
ByGroup = Annotated[
    bool,
    typer.Option("--by-group", "--groups", help="Until 0.7: as --by-segment, of the column group. Use --by-segment."),
]
Abstain = Annotated[bool, typer.Option("--abstain", help="Abstain where the best answer is not sure enough.")]
ExpiresDays = Annotated[
    int | None,
    typer.Option("--expires-days", min=0, help="The certificate expires after so many days. By default never."),
]
AllowEverything = Annotated[
    bool,
    typer.Option(
        "--allow-everything", help="If there are too few questions, keep every answer of every step instead of failing."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the policy in the directory.")]
METHODS_SAID = ", ".join(map(method_written, METHODS))
"""As `--help` lists them; each may be written with dashes or underscores."""


Method = Annotated[
    str,
    typer.Option(
        "--policy",
        callback=method_named,
        help=f"The kind of policy: {METHODS_SAID}. auto compares all but networks (--networks) and takes "
        "the simplest that does as well as the best.",
    ),
]
