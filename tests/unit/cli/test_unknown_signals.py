"""A log whose signals are of no known kind: what `fit` and `prove` leave out because of it, they say.

0.5.0: "`compare` drops the threshold and UALA rows silently", and so did `fit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from unit.cli.conftest import Ran
from unit.cli.test_unserved import log

Cli = Callable[..., Ran]

WHY = "the signal zest is of no known kind, so it is unknown whether a higher value means more doubt"


def counted(path: Path) -> Path:
    """Give every row of a log its tokens."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    path.write_text(
        "\n".join(json.dumps(row | {"input_tokens": 10, "output_tokens": 5 + len(row["answer"])}) for row in rows)
    )
    return path


def test_fits_document_names_what_is_left_out(cli: Cli, tmp_path: Path) -> None:
    episodes = log(tmp_path / "log.jsonl", "zest")
    ran = cli("fit", str(episodes), "--alpha", "0.2", "-o", "policy", "--json")
    (said,) = json.loads(ran.out)["left_out"]
    assert WHY in said


def test_trees_are_learned_where_numbers_vary_and_none_is_of_a_known_kind(cli: Cli, tmp_path: Path) -> None:
    for signal, learned in (("zest", True), (None, False)):
        episodes = counted(log(tmp_path / "log.jsonl", signal))
        options = ["--guarantee", "regret", "--alpha", "0.3", "-o", f"policy-{signal}", "--json"]
        ran = cli("fit", str(episodes), *options)
        assert ran.code == 0, ran.err
        notes = json.loads(ran.out)["fit_notes"]
        named = any(one.startswith(("nothing is learned", "threshold on ")) for one in notes)
        assert named is not learned
