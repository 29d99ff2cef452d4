"""`cascade`: the commands, and what a run of one ends with.

Exit codes: 0 done, 2 bad usage or bad input, 3 target infeasible or not certified, 4 budget exhausted, 5 provider
failed, 1 anything else.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from cascade._version import __version__
from cascade.api.output import plain
from cascade.cli import (
    ask,
    calibrate,
    collect,
    compare,
    demo,
    doctor,
    fit,
    import_,
    init,
    models,
    monitor,
    prices,
    prove,
    review,
    serve,
    traces,
    verify,
)
from cascade.cli.output import LogFormatter, notes
from cascade.errors import CascadeError

app = typer.Typer(
    name="cascade",
    help="Most of a strong language model's quality at a fraction of its cost, with a number on the risk.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.init)
app.command("ask")(ask.ask)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("collect")(collect.collect_log)
app.command("import")(import_.import_log)
app.command("compare")(compare.compare_log)
app.command("evaluate")(compare.evaluate_log)
app.command("prove")(prove.prove_logs)
app.command("fit")(fit.fit_log)
app.command("review")(review.review_log)
app.command("calibrate")(calibrate.calibrate_log)
app.command("verify")(verify.verify_log)
app.command("monitor")(monitor.monitor_log)
app.command("prices")(prices.prices)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(traces.app, name="traces")


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"cascade {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    _version_option: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.")] = False,
) -> None:
    """Set up what all commands share."""
    level = logging.INFO if verbose else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    logging.getLogger("cascade").setLevel(level)


def main() -> None:
    """Run the command line; every error of ours is one message and its exit code."""
    try:
        app()
    except CascadeError as error:
        notes().print(f"[bold red]error:[/] {plain(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        notes().print("stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
