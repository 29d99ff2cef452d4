"""`solvable`: a right answer is among those kept, of the questions that some step answers rightly."""

from __future__ import annotations

from cascade.guarantees.kept_answers import KeptAnswers


class Solvable(KeptAnswers):
    """At most alpha of the questions that some step answers rightly are missed."""

    name = "solvable"
    event = "a right answer is among those kept, if any step would have brought one"
    kept = "a right answer is kept, of the questions that some step answers rightly"
    only_solvable = True
