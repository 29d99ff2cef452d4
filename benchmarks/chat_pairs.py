"""The pairs of models in logged chat requests that promises without labels are measured on.

Logs: tool calls (`bfcl_v1`, and `bfcl_v4_live`, answered twice by gpt-oss) and, as a control in which the dear model is
a poor judge, classified texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cascade.episodes.importers import import_rows
from cascade.episodes.schema import Dropped
from cascade.episodes.truth import ladder_of_models

BFCL, LIVE, CSS = "bfcl_v1.parquet", "bfcl_v4_live.parquet", "css_classification.parquet"
MINI, TURBO, GPT4O = "gpt-4o-mini-2024-07-18-FC", "gpt-3.5-turbo-0125-FC", "gpt-4o-2024-08-06-FC"
AGAIN = "gpt-oss-20b, again"
"""The second run of the same model, where the log has no other cheap one."""
NEMO, NEMO_ANY, LARGE = "open-mistral-nemo-2407-FC-Auto", "open-mistral-nemo-2407-FC-Any", "mistral-large-2407-FC-Any"


class Pair(NamedTuple):
    """A cascade of a log: its models, the cheapest first, and about how many requests certify."""

    name: str
    file: str
    models: tuple[str, ...]
    certify: int = 200


PAIRS = (
    Pair("mini > 4o", BFCL, (MINI, GPT4O)),
    Pair("mini + nemo > 4o", BFCL, (MINI, NEMO, GPT4O)),
    Pair("3.5 > 4o", BFCL, (TURBO, GPT4O)),
    Pair("3.5 + nemo > 4o", BFCL, (NEMO, TURBO, GPT4O)),
    Pair("nemo > 4o", BFCL, (NEMO, GPT4O)),
    Pair("nemo > large", BFCL, (NEMO_ANY, LARGE)),
    Pair("nemo + mini > large", BFCL, (NEMO_ANY, MINI, LARGE)),
    Pair("20b > 120b, live", LIVE, ("gpt-oss-20b", "gpt-oss-120b"), 150),
    Pair("20b + 20b > 120b, live", LIVE, ("gpt-oss-20b", AGAIN, "gpt-oss-120b"), 150),
    Pair("curie > davinci-3, control", CSS, ("text-curie-001", "text-davinci-003")),
)


def runs(folder: Path, pair: Pair) -> list[dict[str, Any]]:
    """Return the first run of each request; with `AGAIN` also what the first model said in its second one."""
    models = tuple([one for one in pair.models if one != AGAIN])
    logged = list(import_rows(folder / pair.file, Dropped(), models=models))
    first = [one for one in logged if "#" not in one["episode_id"]]
    if AGAIN not in pair.models:
        return first
    again = [
        {**one, "episode_id": one["episode_id"].removesuffix("#2"), "model": AGAIN, "source": AGAIN, "step": 3}
        for one in logged
        if one["episode_id"].endswith("#2") and one["model"] == models[0]
    ]
    return list(ladder_of_models(lambda: [*first, *again], pair.models))
