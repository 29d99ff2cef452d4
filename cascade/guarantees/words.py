"""Amounts and questions as certificates write them."""

from __future__ import annotations

from decimal import Decimal

from cascade.money import usd_or_none
from cascade.types import Certificate


def percent(share: float, *, rest: bool = False) -> str:
    """Return a share, or what it leaves, as a percentage, exactly as it is written: 0.1 is 10 %.

    >>> percent(0.1), percent(0.025), percent(0.1, rest=True)
    ('10 %', '2.5 %', '90 %')
    """
    exact = Decimal(repr(float(share)))
    return f"{((1 - exact if rest else exact) * 100).normalize():f} %"


def dollars(nano: int | None) -> str:
    """Return an amount in words, without trailing zeros.

    >>> dollars(1_500_000), dollars(None)
    ('0.0015 USD', 'nothing')
    """
    amount = usd_or_none(nano)
    return "nothing" if amount is None else f"{amount.normalize():f} USD"


def one_question(certificate: Certificate) -> str:
    """Return, in words, over what a certificate's probability is taken."""
    one = "a random question of a random fresh group" if certificate.unit == "group" else "a fresh question"
    return one if certificate.delta is not None else f"the calibration and {one}"


def many_questions(certificate: Certificate) -> str:
    """Return, in words, over what a certificate's mean is taken."""
    many = "random questions of random fresh groups" if certificate.unit == "group" else "fresh questions"
    return many if certificate.delta is not None else one_question(certificate)
