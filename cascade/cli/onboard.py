"""`cascade onboard`: what a new model would save, from a few logged questions."""

from __future__ import annotations

from cascade.api.onboarding import onboard
from cascade.cli.main import command, flag

onboard_model = command(
    onboard,
    "cascade onboard new-model episodes.parquet -o probes.jsonl --probes 200",
    flags={"probes": flag(min=2)},
)
