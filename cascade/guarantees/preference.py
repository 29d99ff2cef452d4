"""`preference`: people prefer the reference's output to what is served at most alpha of the time."""

from __future__ import annotations

from cascade.guarantees.served_answer import BesideReference


class Preference(BesideReference):
    """An output counts that a reviewer found worse than the reference's (`cascade review`); equal or both bad does not.

    In audits an output is "right" if the reviewer found it no worse than the reference's.
    """

    name = "preference"
    event = "no reviewer prefers the reference's answer to the one served"
    kept = "the answer served is no worse than the reference's"
    worst = "loss"
    reviewed = True
    labelled = False
