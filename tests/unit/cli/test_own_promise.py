"""A promise in one class: the page's example, installed and named by its place, through every command that proves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cascade import PolicyDirectory, registry
from cascade.conformal import promise
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from unit import plugged
from unit.cli.conftest import Ran

Cli = Callable[..., Ran]
LOG = "demo"
PLACE = "avoidable_promise:Avoidable"
OPTIONS = ("--risk", "0.3", "--confidence", "0.8")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugged.installed_once(tmp_path_factory)


@pytest.fixture(autouse=True)
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the example's package known while a test runs."""
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "avoidable_promise", raising=False)
    promise.kind_of.cache_clear()
    yield
    sys.modules.pop("avoidable_promise", None)
    promise.kind_of.cache_clear()


@pytest.mark.parametrize("kind", ["avoidable", PLACE])
def test_it_is_proven_compared_fitted_and_verified(cli, kind):
    for verb in ("prove", "compare"):
        ran = cli(verb, LOG, "--promise", kind, *OPTIONS, "--splits", "2", "--json")
        assert ran.code == 0, ran.err
        assert f'"{kind}"' in ran.out
    ran = cli("fit", LOG, "--promise", kind, *OPTIONS, "-o", "policy")
    assert ran.code == 0, ran.err
    (certificate,) = PolicyDirectory.read("policy").certificates.values()
    assert certificate.promise == Promise(kind, 0.3, 0.8)
    assert ("cascade.yaml" in ran.out.splitlines()[-1]) == (kind != PLACE)  # a directory imports no code that it names
    assert cli("verify", "policy", LOG).code == 0


def test_a_certificate_imports_no_code_that_it_names(cli, monkeypatch):
    assert cli("fit", LOG, "--promise", PLACE, *OPTIONS, "-o", "policy").code == 0
    sys.modules.pop("avoidable_promise")
    promise.kind_of.cache_clear()
    assert cli("verify", "policy", LOG).code == 3
    assert "avoidable_promise" not in sys.modules
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    assert cli("fit", LOG, "--promise", "avoidable", *OPTIONS, "-o", "other").code == 2


@pytest.mark.parametrize("kind", ["os:system", "nowhere:Promise", "cascade.table:Log", "regrett"])
def test_what_is_no_promise_is_refused(kind):
    with pytest.raises(UsageError):
        Promise(kind, 0.1, 0.9)
