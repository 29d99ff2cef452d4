"""Several levels in one policy directory: written whole, read as written, and refused with every reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import ConfigError, UsageError
from cascade.factory import read_levels
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import make
from cascade.policies import artifact, levels, reading
from cascade.policies.artifact import CERTIFICATE_FILE, LEVELS_FILE, POLICY_FILE, PolicyArtifact
from cascade.policies.levels import Level, Levels
from unit.certified import certificate

ALPHAS = {"low": 0.2, "medium": 0.1, "high": 0.05}
CARD = "README.md"


def made(alpha: float, threshold: float | None = None, *, asked: bool = True, **fields: Any) -> PolicyArtifact:
    """Return a certified policy: its settings are another one's at each alpha."""
    settings = {"kind": "threshold", "keep": "both", "when": "uncertain", "threshold": threshold or alpha}
    bare = PolicyArtifact(settings)
    one = make(replace(certificate(alpha=alpha, **fields), policy_sha256=bare.policy_sha256))
    kind = Guarantee(one.kind, alpha, one.delta) if asked else None
    return replace(bare, certificates=(one,), questions=("q",), asked=kind)


def three() -> dict[str, PolicyArtifact]:
    return {name: made(alpha) for name, alpha in ALPHAS.items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


# --- as it was written ---


def test_levels_are_read_as_they_were_written(tmp_path: Path) -> None:
    artifacts = three()
    written = levels.write(tmp_path / "deep" / "policy", artifacts, "medium")
    held = read_levels(tmp_path / "deep" / "policy")
    assert held is not None
    assert held.levels == written == levels.read(tmp_path / "deep" / "policy")
    assert [(one.name, one.alpha) for one in written.by_name.values()] == [
        ("low", 0.2),
        ("medium", 0.1),
        ("high", 0.05),
    ]
    for name, one in artifacts.items():
        assert held.policies[name].artifact.certificates == one.certificates
        assert held.policies[name].artifact.policy_sha256 == written.by_name[name].policy_sha256


def test_the_directory_itself_is_the_default_level_and_the_others_are_policy_directories(tmp_path: Path) -> None:
    artifacts = three()
    levels.write(tmp_path, artifacts, "medium", files={"medium": {CARD: b"m"}, "low": {CARD: b"l"}})
    assert reading.read(tmp_path).certificates == artifacts["medium"].certificates
    assert reading.read(tmp_path / "levels" / "low").certificates == artifacts["low"].certificates
    assert set(contents(tmp_path)) == {
        LEVELS_FILE,
        *(POLICY_FILE, CERTIFICATE_FILE, CARD),
        *(f"levels/low/{one}" for one in (POLICY_FILE, CERTIFICATE_FILE, CARD)),
        *(f"levels/high/{one}" for one in (POLICY_FILE, CERTIFICATE_FILE)),
    }
    document = json.loads((tmp_path / LEVELS_FILE).read_text())
    assert document["default"] == "medium"
    assert document["levels"]["medium"]["directory"] == "."
    assert document["levels"]["low"] == {
        "directory": "levels/low",
        "alpha": 0.2,
        "policy_sha256": artifacts["low"].policy_sha256,
    }


def test_the_same_levels_are_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    levels.write(tmp_path / "one", three(), "low")
    levels.write(tmp_path / "two", dict(reversed(three().items())), "low")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_directory_without_the_file_has_no_levels(tmp_path: Path) -> None:
    artifact.write(tmp_path, made(0.1))
    assert levels.read(tmp_path) is None
    assert read_levels(tmp_path) is None


# --- writing over others ---


def test_other_levels_take_the_place_of_those_before(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium", files={"low": {CARD: b"l"}})
    levels.write(tmp_path, {"a": made(0.3), "b": made(0.02)}, "b")
    assert {Path(one).parts[1] for one in contents(tmp_path) if one.startswith("levels/")} == {"a"}
    assert [one.name for one in (tmp_path / "levels").iterdir()] == ["a"]
    held = read_levels(tmp_path)
    assert held is not None
    assert held.levels.default == "b"


def test_a_policy_without_levels_takes_the_place_of_one_with(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium")
    artifact.write(tmp_path, three()["medium"])  # the very policy that was the default level
    assert set(contents(tmp_path)) == {POLICY_FILE, CERTIFICATE_FILE}
    assert not (tmp_path / "levels").exists()
    assert read_levels(tmp_path) is None


def test_only_our_own_files_are_taken_away(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium")
    (tmp_path / "levels" / "low" / "notes.txt").write_text("mine")
    (tmp_path / "levels" / "else").mkdir()
    (tmp_path / "levels" / "else" / CARD).write_text("mine too")
    artifact.write(tmp_path, made(0.1))
    assert set(contents(tmp_path)) == {POLICY_FILE, CERTIFICATE_FILE, "levels/low/notes.txt", f"levels/else/{CARD}"}


def test_a_folder_levels_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    artifact.write(tmp_path / "levels" / "mine", made(0.1))
    artifact.write(tmp_path, made(0.2))
    assert reading.read(tmp_path / "levels" / "mine").certificates


@pytest.mark.parametrize("failing", range(1, 8))
def test_where_writing_fails_all_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    levels.write(tmp_path, {"low": made(0.2), "other": made(0.15)}, "low", files={"other": {CARD: b"o"}})
    before, calls, real = contents(tmp_path), [0], os.replace

    def moved(source: str, target: str, **rest: object) -> None:
        calls[0] += 1
        if calls[0] == failing:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", moved)
    with pytest.raises(UsageError, match="space"):
        levels.write(tmp_path, three(), "medium")
    assert contents(tmp_path) == before
    assert not (tmp_path / "levels" / "high").exists()


def test_levels_are_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "levels").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(UsageError, match="is a link"):
        levels.write(tmp_path / "policy", three(), "medium")
    assert not list((tmp_path / "elsewhere").iterdir())


# --- what are no levels ---


@pytest.mark.parametrize(
    ("artifacts", "default", "said"),
    [
        ({"low": made(0.2)}, "low", "there must be at least two"),
        ({"low": made(0.2), "high": made(0.1)}, "medium", "default: there is no level 'medium', only low, high"),
        ({"Low": made(0.2), "high": made(0.1)}, "high", "'Low' is not a name for a level"),
        ({"../up": made(0.2), "high": made(0.1)}, "high", "'../up' is not a name for a level"),
        ({"low": made(0.2), "high": made(0.2)}, "high", "two levels have the same alpha"),
        ({"low": replace(made(0.2), certificates=()), "high": made(0.1)}, "high", "levels.low: it has no certificate"),
        (
            {"low": made(0.2, asked=False), "high": made(0.1, asked=False, delta=0.1)},
            "high",
            "levels.high: its promise differs from that of low",
        ),
        (
            {"low": made(0.2, made_for={"strategy": {"kind": "ladder"}}), "high": made(0.1)},
            "low",
            "levels.high: it was made for another cascade than low",
        ),
    ],
)
def test_what_are_no_levels_is_not_written(
    tmp_path: Path, artifacts: dict[str, PolicyArtifact], default: str, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        levels.write(tmp_path / "policy", artifacts, default)
    assert said in str(refused.value)
    assert not (tmp_path / "policy").exists()


# --- hostile or damaged files ---


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / LEVELS_FILE).read_text())
        change(document)
        (folder / LEVELS_FILE).write_text(json.dumps(document))

    return edit


def renamed(document: dict[str, Any], old: str, new: str) -> None:
    document["levels"][new] = document["levels"].pop(old)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / LEVELS_FILE).write_text("[]"), "it must be an object with named fields"),
    (lambda folder: (folder / LEVELS_FILE).write_text('{"a": 1, "a": 2}'), "a name appears twice"),
    (lambda folder: (folder / LEVELS_FILE).write_text("{NaN"), "it is not JSON"),
    (edited(lambda one: one.update(schema_version=0)), "schema_version: it is 0, and this release reads 1"),
    (edited(lambda one: one.update(schema_version=2, more={})), "a newer release of cascade wrote it"),
    (edited(lambda one: one.update(schema_version=True)), "schema_version: it is True"),
    (edited(lambda one: one.update(more=1)), "more: there is no such field"),
    (edited(lambda one: one.pop("default")), "default: is missing"),
    (edited(lambda one: one.update(default="other")), "default: there is no level 'other'"),
    (edited(lambda one: one.update(default=["low"])), "default: there is no level ['low']"),
    (edited(lambda one: one.update(levels=["low"])), "levels: it must be an object with a name for each level"),
    (edited(lambda one: one.update(levels={})), "levels: there must be at least two"),
    (edited(lambda one: one["levels"].update(low="levels/low")), "levels.low: it must be an object with named fields"),
    (edited(lambda one: one["levels"]["low"].update(directory="../other")), "can only be 'levels/low'"),
    (edited(lambda one: one["levels"]["low"].update(directory="/etc")), "can only be 'levels/low'"),
    (edited(lambda one: one["levels"]["low"].update(directory=".")), "can only be 'levels/low'"),
    (edited(lambda one: one["levels"]["medium"].update(directory="levels/medium")), "can only be '.'"),
    (edited(lambda one: renamed(one, "low", "..")), "'..' is not a name for a level"),
    (edited(lambda one: renamed(one, "low", "a/b")), "'a/b' is not a name for a level"),
    (edited(lambda one: renamed(one, "low", "")), "'' is not a name for a level"),
    (edited(lambda one: renamed(one, "low", "lowest")), "levels.lowest.directory: it is 'levels/low'"),
    (edited(lambda one: one["levels"]["low"].update(alpha=0)), "levels.low.alpha: it is 0, but must lie between 0 and 1"),
    (edited(lambda one: one["levels"]["low"].update(alpha=True)), "levels.low.alpha: it is True"),
    (edited(lambda one: one["levels"]["low"].update(alpha="0.2")), "levels.low.alpha: it is '0.2'"),
    (edited(lambda one: one["levels"]["low"].update(alpha=0.1)), "levels: two of them have the same alpha"),
    (edited(lambda one: one["levels"]["low"].update(alpha=0.3)), "levels.low.alpha: it is 0.3, and a certificate promises"),
    (edited(lambda one: one["levels"]["low"].update(policy_sha256="1")), "levels.low.policy_sha256: it is not a SHA-256"),
    (edited(lambda one: one["levels"]["low"].update(policy_sha256="0" * 64)), "levels.low.policy_sha256: it is 0000"),
    (edited(lambda one: one["levels"]["low"].update(more=1)), "levels.low.more: there is no such field"),
    (edited(lambda one: one["levels"]["low"].pop("alpha")), "levels.low.alpha: is missing"),
    (lambda folder: (folder / "levels" / "low" / POLICY_FILE).unlink(), "levels.low: there is no policy.json"),
    (lambda folder: (folder / "levels" / "low" / CERTIFICATE_FILE).unlink(), "levels.low: it has no certificate"),
    (lambda folder: (folder / "levels" / "low" / POLICY_FILE).write_text("{}"), "levels.low: policy: is missing"),
    (lambda folder: artifact.write(folder / "levels" / "low", made(0.2, 0.9)), "another one, or one that was changed"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=lambda one: one if isinstance(one, str) else "")
def test_a_damaged_directory_is_refused_with_the_reason(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    levels.write(tmp_path, three(), "medium")
    damage(tmp_path)
    with pytest.raises(ConfigError) as refused:
        read_levels(tmp_path)
    assert said in "; ".join(refused.value.problems)


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium")
    edited(lambda one: (one.update(more=1), one["levels"]["low"].update(alpha=2), one["levels"]["high"].pop("alpha")))(
        tmp_path
    )
    with pytest.raises(ConfigError) as refused:
        levels.read(tmp_path)
    assert len(refused.value.problems) == 3


def test_problems_of_several_levels_are_told_together(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium")
    for name in ("low", "high"):
        (tmp_path / "levels" / name / POLICY_FILE).write_text("{}")
    with pytest.raises(ConfigError) as refused:
        read_levels(tmp_path)
    told = "; ".join(refused.value.problems)
    assert "levels.low:" in told
    assert "levels.high:" in told


def test_a_level_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    levels.write(tmp_path / "policy", three(), "medium")
    real = tmp_path / "policy" / "levels" / "low"
    real.rename(tmp_path / "elsewhere")
    real.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(ConfigError, match="low is a link"):
        read_levels(tmp_path / "policy")


def test_without_certificates_the_alphas_are_those_of_the_file(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium")
    (tmp_path / "levels" / "low" / CERTIFICATE_FILE).write_text("damaged")
    held = read_levels(tmp_path, certificates=False)
    assert held is not None
    assert held.levels.by_name["low"].alpha == 0.2


def test_no_edit_of_one_byte_is_believed(tmp_path: Path) -> None:
    levels.write(tmp_path, three(), "medium")
    before, file = levels.read(tmp_path), tmp_path / LEVELS_FILE
    whole = file.read_bytes()
    believed = 0
    for place in range(len(whole)):
        for other in (b'1f"-,}' * 2)[place % 6 : place % 6 + 2]:
            edited_file = whole[:place] + bytes([other]) + whole[place + 1 :]
            file.write_bytes(edited_file)
            try:
                held = read_levels(tmp_path)
            except ConfigError:
                continue
            assert held is not None
            assert held.levels == before
            believed += edited_file != whole
    assert believed == 0


@pytest.mark.parametrize("before", ["levels", "policy", "nothing"])
def test_a_machine_that_stops_half_way_mixes_no_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """What stands there after each single file of a write is refused, or is the old levels or the new ones, whole."""
    if before == "levels":
        levels.write(tmp_path / "old", {"low": made(0.3), "high": made(0.2)}, "low")
    elif before == "policy":
        artifact.write(tmp_path / "old", made(0.3))
    old = contents(tmp_path / "old")
    order: list[dict[str, bytes | None]] = []
    monkeypatch.setattr(levels, "write_whole", lambda folder, written: order.append(dict(written)))
    (tmp_path / "now").mkdir()
    for name, data in old.items():
        (tmp_path / "now" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "now" / name).write_bytes(data)
    levels.write(tmp_path / "now", three(), "medium")
    monkeypatch.undo()
    states = []
    for name, data in order[0].items():
        if data is None:
            (tmp_path / "now" / name).unlink(missing_ok=True)
        else:
            (tmp_path / "now" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "now" / name).write_bytes(data)
        states.append(served(tmp_path / "now"))
    new, default = served_by(three()), {"": three()["medium"].certificates}
    was = {"levels": served_by({"low": made(0.3), "high": made(0.2)}), "policy": {"": made(0.3).certificates}}
    assert all(one in (None, was.get(before), default, new) for one in states)
    assert states[-1] == new
    assert new not in states[:-1]
    assert states[-2] == (default if before != "levels" else None)  # complete by itself, or of other levels


def served_by(artifacts: dict[str, PolicyArtifact]) -> dict[str, Any]:
    return {name: one.certificates for name, one in artifacts.items()}


def served(folder: Path) -> dict[str, Any] | None:
    """Return what a directory serves under a certificate, by its levels; None where it is refused, or has none."""
    try:
        held = read_levels(folder)
        if held is None:
            found = reading.read(folder).certificates
            return {"": found} if found else None
    except ConfigError:
        return None
    return served_by({name: one.artifact for name, one in held.policies.items()})


# --- which one ---

KNOWN = Levels("medium", {name: Level(name, alpha, "0" * 64) for name, alpha in ALPHAS.items()})


@pytest.mark.parametrize(
    ("alpha", "name"),
    [(0.9, "low"), (0.2, "low"), (0.19, "medium"), (0.1, "medium"), (0.0999, "high"), (0.05, "high")],
)
def test_the_cheapest_level_that_keeps_the_promise_is_taken(alpha: float, name: str) -> None:
    assert KNOWN.chosen(alpha=alpha).name == name


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"level": "hihg"}, "There is no level 'hihg'; did you mean high?"),
        ({"level": ""}, "There is no level ''"),
        ({"alpha": 0.04}, "No level promises an alpha of 0.04 or less"),
        ({"alpha": 0}, "alpha must be a share of questions, between 0 and 1, not 0"),
        ({"alpha": 5}, "alpha must be a share of questions, between 0 and 1, not 5"),
        ({"alpha": True}, "not True"),
        ({"alpha": float("nan")}, "not nan"),
        ({"alpha": "0.1"}, "not '0.1'"),
        ({"level": "low", "alpha": 0.1}, "Give a level or an alpha, not both"),
    ],
)
def test_what_there_is_none_of_is_refused_with_what_there_is(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        KNOWN.chosen(**asked)
    assert said in str(refused.value)
    assert "low (alpha 0.2), medium (alpha 0.1), high (alpha 0.05)" in str(refused.value)
