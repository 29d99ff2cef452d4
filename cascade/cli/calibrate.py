"""`cascade calibrate`: a threshold with a guarantee, from a log."""

from __future__ import annotations

from cascade.api.calibrating import calibrate
from cascade.api.promises import KIND
from cascade.cli.main import command, flag

calibrate_log = command(
    calibrate,
    'cascade calibrate episodes.parquet --policy "{kind: threshold, keep: both}" -o policy',
    flags={
        "guarantee": flag(
            help=f"{KIND} For a policy directory, the parts of its guarantee that are not given stay as they are."
        ),
    },
)
