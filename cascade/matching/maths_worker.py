"""The process in which formulas are compared; `maths` starts it by its path and may kill it at any time.

It reads one JSON object a line and answers each with one. It imports nothing of cascade, holds no key and no file, and
ends when its input ends. A line that takes too long is ended by the kernel, should the parent be gone.

Only LaTeX is parsed. math-verify's parser for plain expressions uses sympy's `parse_expr`, which runs its input as
code.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

Compare = Callable[[list[str], str], dict[str, Any]]


def limit_memory(size: int) -> None:
    """Limit the process's memory to `size` bytes, if the system supports it."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def set_alarm(limit_s: int) -> None:
    """Have the kernel end the process after some seconds; 0 cancels that. No handler: this also works inside C code."""
    import signal

    if hasattr(signal, "alarm"):
        signal.alarm(limit_s)


def load() -> Compare:
    """Import math-verify and return the comparison. Its own timeouts are off: they use signals and are unreliable."""
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    config = [LatexExtractionConfig()]

    def read(text: str) -> list[Any]:
        found: list[Any] = parse(
            text, extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=False
        )
        return found

    def compare(gold: list[str], answer: str) -> dict[str, Any]:
        wanted = [found for found in map(read, gold) if found]
        said = read(answer) if wanted and answer else []
        right = bool(said) and any(verify(one, said, timeout_seconds=None, raise_on_error=False) for one in wanted)
        return {"readable": bool(wanted), "correct": right}

    return compare


def answer_line(compare: Compare, line: str, limit_s: int) -> dict[str, Any]:
    """Return the reply to one request; it reports an error if the comparison cannot be computed."""
    request = json.loads(line)
    set_alarm(limit_s)
    try:
        return compare(request["gold"], request["answer"])
    except (MemoryError, RecursionError) as error:
        return {"failed": type(error).__name__}
    finally:
        set_alarm(0)


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer lines until there are no more."""

    def say(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    hello = json.loads(requests.readline())
    sys.path[:] = hello["path"]
    limit_memory(hello["memory_bytes"])
    try:
        compare = load()
    except ImportError as error:
        say({"missing": str(error)})
        return
    say({"ready": True})
    for line in requests:
        say(answer_line(compare, line, hello["limit_s"]))


def main() -> None:
    """Keep the channel apart from what a library may print, then serve."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
