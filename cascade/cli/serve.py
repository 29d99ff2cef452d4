"""`cascade serve`: the cascade behind OpenAI's APIs (chat completions, responses) and Anthropic's (messages)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.output import plain
from cascade.cli.main import console, notes
from cascade.config import CascadeConfig, load, traces_url
from cascade.records.address import parse


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration.")] = Path("cascade.yaml"),
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on; overrides server.host.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="The port; overrides server.port.")
    ] = None,
    new_key: Annotated[
        str | None, typer.Option("--new-key", metavar="NAME", help="Make a key, print it once, and exit.")
    ] = None,
) -> None:
    """Serve the cascade to clients of the OpenAI and Anthropic APIs.

    Example: cascade serve --port 8400
    """
    from cascade.server import running

    if new_key is not None:
        _print_key(new_key)
        return
    settings = load(config)
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update={"server": settings.server.model_copy(update=given)})
    server = settings.server
    shown = f"[{server.host}]" if ":" in server.host else server.host

    def listening(at: int) -> None:
        address = f"http://{plain(shown)}:{at}/v1"
        notes().print(f"serving {plain(server.name)} at {address}, pages at /ui (Ctrl-C ends)", soft_wrap=True)
        notes().print(plain(_kept(settings)), soft_wrap=True)

    status = running.serve(settings, listening)
    if status is not None and status.answered:
        notes().print(plain(status.describe()), soft_wrap=True)


def _kept(settings: CascadeConfig) -> str:
    """Return where requests are recorded, and what of them."""
    traces, url = settings.traces, traces_url(settings.traces)
    if traces is None or url is None:
        return "records nothing of requests and answers (traces: off)"
    texts = {"full": "questions and answers as text", "hash": "hashes of texts", "none": "no texts"}[traces.content]
    return f"records in {parse(url).shown}: {texts}, costs, signals"


def _print_key(name: str) -> None:
    """Print a new key, and the line of a configuration that admits it."""
    from cascade.server.access import new_key

    made = new_key()
    notes().print("the key; it is shown once and stored nowhere:")
    console().print(made.key, soft_wrap=True)
    notes().print("for the configuration:")
    notes().print(plain(f"server: {{keys: [{{name: {name}, sha256: {made.sha256}}}]}}"), soft_wrap=True)
