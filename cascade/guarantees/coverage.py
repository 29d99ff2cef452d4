"""`coverage`: a right answer is among those kept, or no step would have brought one."""

from __future__ import annotations

from cascade.guarantees.kept_answers import KeptAnswers


class Coverage(KeptAnswers):
    """At most alpha of all questions are missed."""

    name = "coverage"
    event = "a right answer is among those kept, or no step would have brought one"
    assumptions = ("A question that no step answers rightly counts as covered.",)
