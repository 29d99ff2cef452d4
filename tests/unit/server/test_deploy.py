"""The files in deploy/: the configuration loads, and the compose file runs it with what it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from cascade.config import ledger_url, load, traces_url
from cascade.server.auth import listening_problems
from cascade.server.catalog import Catalog

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_configuration_can_be_served_with_what_the_compose_file_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    given = services["cascade"]["environment"]
    monkeypatch.setenv("CASCADE_STORE", given["CASCADE_STORE"].replace("${POSTGRES_PASSWORD:?}", "secret"))
    config = load(DEPLOY / "cascade.yaml")
    assert list(listening_problems(config.server)) == []
    assert Catalog.of(config, ()).guide == "openai/gpt-6.1-sol"
    assert ledger_url(config.budget) == traces_url(config.traces) == "postgresql://cascade:secret@database/cascade"


def test_the_image_runs_what_the_compose_file_mounts() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    mounted = services["cascade"]["volumes"][0].split(":")[1]
    assert f'"{mounted}"' in image
    assert re.search(r"^USER cascade$", image, re.MULTILINE)
    assert f"EXPOSE {load(DEPLOY / 'cascade.yaml').server.port}" in image
