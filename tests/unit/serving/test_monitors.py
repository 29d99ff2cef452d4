"""What audits told of certificates: shared out anew when others come into service, and never forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.config.schema import GuaranteeConfig
from cascade.conformal.certificate import Certificate
from cascade.serving.monitors import CertificateMonitors, judge
from unit.certified import certificate

MISSES = [number % 3 == 0 for number in range(12)]


def named(name: str, **fields: Any) -> Certificate:
    return certificate(segment=name, **fields)


def asking(level: float) -> CertificateMonitors:
    return CertificateMonitors(
        GuaranteeConfig.model_validate({"audit": {"probability": 1}, "monitor": {"level": level}})
    )


@pytest.mark.parametrize("rank", [{"losses": 39}, {"losses": 11, "confidence": 0.9}], ids=["mean", "confidence"])
def test_a_monitor_at_another_level_is_the_one_that_ran_at_it_from_the_start(rank: dict[str, Any]) -> None:
    held = named("a", n=399, **rank)
    monitors = asking(0.06)
    monitors.share([held])
    for place, missed in enumerate(MISSES):
        monitors.count(held, missed, f"q{place}")
    monitors.share([held, named("b"), named("c")])
    monitor, alone = monitors.of(held).monitor, asking(0.02)
    alone.share([held])
    for place, missed in enumerate(MISSES):
        alone.count(held, missed, f"q{place}")
    assert monitor is not None
    assert monitor.alarmed_after is None  # nor would it at the lower level, where an alarm needs more
    assert monitor == alone.of(held).monitor
    assert monitor.level == pytest.approx(0.02)


def test_the_levels_in_service_add_up_to_the_one_that_is_asked_for() -> None:
    first, second, third = (named(name) for name in "abc")
    monitors = asking(0.06)
    for serving in ([first], [first, second, third], [second], [second, third]):
        monitors.share(serving)
        for one in serving:
            monitors.count(one, False, "q")
        each = [monitors.of(one).monitor for one in serving]
        assert sum(one.level for one in each if one is not None) == pytest.approx(0.06)


def test_an_alarm_stays_whatever_serves() -> None:
    held, other = named("a"), named("b")
    monitors = asking(0.05)
    monitors.share([held])
    place = 0
    while not monitors.withdrawn:
        monitors.count(held, True, f"q{place}")
        place += 1
    told = monitors.of(held).alarm
    monitors.share([other])
    monitors.share([held, other])
    assert monitors.withdrawn == {held.id}
    assert monitors.of(held).alarm == told
    assert monitors.count(held, True, "another").reason == "its certificate was withdrawn in the meantime"


def test_a_truth_is_a_rule_or_the_accepted_answers() -> None:
    def is_danube(text: str) -> bool:
        return text == "Danube"

    assert judge(is_danube, "exact") is is_danube
    assert judge("the Danube", "exact")("Danube") is True
    assert judge(["Danube", "Donau"], "exact")("donau.") is True
    assert judge("3.14", "number:rel=0.01")("3.15") is True
    assert judge("Danube", "exact")("Rhine") is False
