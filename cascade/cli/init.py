"""`cascade init`: a commented configuration to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from cascade.api.output import plain
from cascade.cli.main import console
from cascade.errors import UsageError

_LOCAL = "qwen2.5-coder-0.5b qwen2.5-coder-1.5b"
"""The models that the local configuration names."""


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("cascade.yaml"),
    local: Annotated[bool, typer.Option("--local", help="Use the local models: no key, no network.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration for a ladder of two models, and print the next steps.

    Example: cascade init --local
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists already. Choose another name, or --force to overwrite it.")
    name = "cascade_local.yaml" if local else "cascade.yaml"
    text = resources.files("cascade").joinpath("data", name).read_text("utf-8")
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    fetch = f"cascade models pull {_LOCAL}" if local else "export OPENAI_API_KEY=…   (or the key that your models need)"
    out = console()
    out.print(f"wrote {plain(str(path))}")
    out.print("next:")
    out.print(f"  {fetch}")
    out.print(f"  cascade doctor --config {plain(str(path))}")
    out.print(f'  cascade ask "What is the capital of Spain?" --config {plain(str(path))}')
    log = "demo-ladder" if local else "episodes.parquet"
    of = "the log that ships with the package" if local else "a log of your own questions (cascade collect)"
    out.print(f"then estimate what it saves, from {of}:")
    out.print(f"  cascade prove {log}")
