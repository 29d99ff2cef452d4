"""`cascade prove`: estimates from a log what a cascade would save. It makes no model calls."""

from __future__ import annotations

from typing import Any

from cascade.api.output import plain
from cascade.api.proving import FAST, MANY, ProofResult, prove
from cascade.cli.main import Shown, command, flag, notes, say
from cascade.training.portfolio import AUTO, METHODS, method_named, method_written

_METHODS_SAID = ", ".join(method_written(one) for one in METHODS)


def _prove(**given: Any) -> ProofResult:
    with Shown() as shown:
        found = prove(**given, show=shown.tell, tell=say)
    if given["report"] is not None:
        notes().print(f"written: {plain(str(given['report']))}", soft_wrap=True)
    return found


prove_logs = command(
    prove,
    "cascade prove episodes.parquet --alpha 0.02 --alpha 0.05",
    flags={
        "splits": flag(min=2),
        "policy": flag(
            callback=method_named,
            help=f"The kind of policy: {_METHODS_SAID}. By default {AUTO}, all but networks, up to {MANY:,} questions; "
            f"beyond, {FAST}.",
        ),
    },
    call=_prove,
)
