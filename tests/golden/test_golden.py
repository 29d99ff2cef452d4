"""What an earlier release certified is read, verified, watched and served as it was, and made again byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from golden.recipes import DECISIONS, POLICIES, RECIPES, judged, served

WROTE: Mapping[str, Any] = json.loads(DECISIONS.read_text("utf-8"))


def test_every_policy_is_judged_as_it_was() -> None:
    found = {policy: judged(POLICIES / policy, name) for policy, (name, _) in RECIPES.items()}
    assert found == {policy: one["judged"] for policy, one in WROTE.items()}


def test_every_policy_serves_as_it_did() -> None:
    found = {policy: served(POLICIES / policy, name) for policy, (name, _) in RECIPES.items()}
    assert found == {policy: one["served"] for policy, one in WROTE.items()}


def test_the_same_log_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    for policy, (_, make) in RECIPES.items():
        make(tmp_path / policy)
    made, wrote = dict(_bytes(tmp_path)), dict(_bytes(POLICIES))
    assert sorted(made) == sorted(wrote)
    assert [name for name in wrote if made[name] != wrote[name]] == []


def _bytes(folder: Path) -> Iterator[tuple[str, bytes]]:
    for one in folder.rglob("*"):
        if one.is_file():
            yield str(one.relative_to(folder)), one.read_bytes()


def test_every_kind_has_golden_files() -> None:
    certificates = [json.loads(one.read_text("utf-8")) for one in POLICIES.rglob("certificate.json")]
    kinds = {one["kind"] for document in certificates for one in document["certificates"]}
    assert kinds == {"coverage", "regret", "error"}


def test_a_certificate_that_was_made_on_another_processor_verifies() -> None:
    """Its path differs in the last bit of a number: numpy's exp of that processor had rounded it otherwise."""
    here = json.loads((POLICIES / "error-abstain" / "policy.json").read_text("utf-8"))["path"]
    there = json.loads((POLICIES.parent / "elsewhere" / "error-abstain" / "policy.json").read_text("utf-8"))["path"]
    assert here != there
    found = judged(POLICIES.parent / "elsewhere" / "error-abstain", RECIPES["error-abstain"][0])
    assert all(ok for _, ok, _ in found["checks"]), found["checks"]
