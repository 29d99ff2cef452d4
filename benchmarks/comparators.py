"""How many pairs of outputs a second each comparator compares, on one core.

    python benchmarks/comparators.py [--pairs 20000]

The pairs are made here: tool calls of three arguments, one nested, of a request with ten tools and defaults; half of
them are the same in another spelling. Each figure is of the quickest of five turns, in seconds of the processor.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from cascade.chat import ChatRequest
from cascade.matching import default_for, get_matcher

TURNS = 5


def tool(number: int) -> dict[str, object]:
    """Make a tool with four parameters, one with a default."""
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "place": {"type": "object", "properties": {"radius": {"type": "number", "default": 5}}},
        "unit": {"type": "string", "default": "C"},
    }
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "parameters": {"type": "object", "properties": properties}},
    }


def made(pairs: int, rng: random.Random) -> list[tuple[str, str]]:
    """Return pairs of tool calls."""
    found = list[tuple[str, str]]()
    for number in range(pairs):
        days, place = rng.randrange(9), {"radius": rng.random()}
        arguments = {"city": f"city {number}", "days": days, "place": place}
        other = {"unit": "C", **arguments, "days": days + number % 2}
        name = f"tool_{number % 10}"
        one, two = (json.dumps([{"name": name, "arguments": given}]) for given in (arguments, other))
        found.append((one, two))
    return found


def main() -> None:
    """Print pairs a second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    pairs = made(parser.parse_args().pairs, random.Random(0))
    tools = ChatRequest([{"role": "user", "content": "?"}], {"tools": [tool(number) for number in range(10)]})
    for name, request in ((default_for(tools).name, tools), ("json", None), ("text", None)):
        comparator, spent = get_matcher(name), []
        for _ in range(TURNS):
            started = time.process_time()
            same = sum(comparator.same(one, other, request) is True for one, other in pairs)
            spent.append(time.process_time() - started)
        print(f"{name:<12}{len(pairs) / min(spent):>10,.0f} pairs/s   {same / len(pairs):.2f} the same")


if __name__ == "__main__":
    main()
