"""Choose a policy on questions that it has not seen: the candidates, the figure that compares them, and the choice."""
