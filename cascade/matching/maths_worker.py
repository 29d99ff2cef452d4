"""The process in which formulas are compared; `maths` starts it by its path.

It reads one JSON object per line and answers each with one. It imports nothing from cascade, holds no key and no file,
and ends when its input ends. The kernel ends it if a line takes too long: an alarm without a handler works in C code.

Only LaTeX is parsed. math-verify's parser for plain expressions uses sympy's `parse_expr`, which runs its input as
code. Its own timeouts are off: they use signals and are unreliable.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from typing import Any

START_LIMIT_S = 120.0
"""sympy is imported in 1 s on an idle core; a loaded machine may take long."""


def main() -> None:
    """Separate the replies from what a library may print, then answer lines until the input ends."""
    settings = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.setitimer(signal.ITIMER_REAL, START_LIMIT_S)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = settings["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    sys.path[:] = settings["path"]
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError as error:
        replies.write(json.dumps({"missing": str(error)}) + "\n")
        return
    logging.disable(logging.CRITICAL)
    options: dict[str, Any] = {"extraction_config": [LatexExtractionConfig()], "fallback_mode": "no_fallback"}

    def read(text: str) -> list[Any]:
        formula: list[Any] = parse(text, **options, parsing_timeout=None, raise_on_error=False)
        return formula

    def compare(gold: list[str], answer: str) -> bool | None:
        golds = [formula for text in gold if (formula := read(text))]
        if not golds:
            return None
        formula = read(answer) if answer else []
        return bool(formula) and any(
            verify(text, formula, timeout_seconds=None, raise_on_error=False) for text in golds
        )

    signal.setitimer(signal.ITIMER_REAL, 0)
    replies.write("{}\n")
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, settings["timeout_s"])
        try:
            correct = compare(**json.loads(line))
        except (MemoryError, RecursionError):
            correct = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps({"correct": correct}) + "\n")


if __name__ == "__main__":
    main()
