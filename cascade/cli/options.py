"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LogName = Annotated[
    str,
    typer.Argument(metavar="LOG", help="A log (.jsonl, .parquet, a store's URL), demo, demo-ladder, demo-requests."),
]
Risk = Annotated[float | None, typer.Option(help="The share of requests that may break it.")]
Confidence = Annotated[float | None, typer.Option(help="How sure that is; without it: on average (coverage only).")]
Splits = Annotated[int, typer.Option(min=1, help="The number of random splits.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the random draws.")]
On = Annotated[str, typer.Option(help="Where splits are played: here, processes, ray (extra ray).")]
Details = Annotated[bool, typer.Option("--details", help="Print the tables too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Columns = Annotated[list[str] | None, typer.Option("--where", help="Only rows with COLUMN=VALUE. Repeatable.")]
Matcher = Annotated[
    str | None, typer.Option(help="Judges answers by the accepted ones (gold), or decides which outputs are equal.")
]
Reference = Annotated[str | None, typer.Option(help="Right is equal to this model's output: guide, or a model.")]
Models = Annotated[str | None, typer.Option(help="CHEAP,DEAR: only these models; the last is the reference.")]
Reviews = Annotated[list[str] | None, typer.Option(help="Reviews (file or URL) decide what is right. Repeatable.")]
LabelRate = Annotated[float | None, typer.Option(help="Only the reviews drawn at this rate.")]
Config = Annotated[Path, typer.Option("--config", "-c", help="The configuration.")]
Configs = Annotated[
    list[Path], typer.Option("--config", "-c", help="The configuration. Repeatable: one for each cascade.")
]
Serving = Annotated[Path | None, typer.Option("--config", "-c", help="The configuration that will serve.")]
Concurrency = Annotated[int, typer.Option(min=1, max=1_000, help="How many requests run at once.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]

CONFIG = Path("cascade.yaml")
"""The configuration that commands read by default."""
