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
    from_litellm: Annotated[
        Path | None,
        typer.Option("--from-litellm", metavar="FILE", help="Carry over the configuration of a LiteLLM proxy."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented configuration for a ladder of two models, and print the next steps.

    Example: cascade init --local
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists already. Choose another name, or --force to overwrite it.")
    if from_litellm is not None:
        if local:
            raise UsageError("Give --local or --from-litellm, not both.")
        _carry_over(from_litellm, path)
        return
    name = "cascade_local.yaml" if local else "cascade.yaml"
    text = resources.files("cascade.data").joinpath(name).read_text("utf-8")
    _write(path, text)
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


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def _carry_over(source: Path, path: Path) -> None:
    """Write a configuration from that of a LiteLLM proxy, and print what is not carried over."""
    from cascade.config import load
    from cascade.config.from_litellm import carried
    from cascade.config.yamlfile import read_yaml, yaml_text

    config, left = carried(read_yaml(source))
    load(config)
    said = "".join(f"#   {one}\n" for one in left)
    head = f"# From {source.name}, a LiteLLM proxy's configuration.\n"
    _write(path, head + (f"# Not carried over:\n{said}" if left else "") + yaml_text(config))
    out = console()
    out.print(f"wrote {plain(str(path))}: {len(config['models'])} models", soft_wrap=True)
    if left:
        out.print("not carried over (the file lists it too):")
    for one in left:
        out.print(f"  {plain(one)}", soft_wrap=True)
    out.print("next:")
    out.print(f"  cascade doctor --serve --config {plain(str(path))}", soft_wrap=True)
    out.print(f"  cascade serve --config {plain(str(path))}", soft_wrap=True)
