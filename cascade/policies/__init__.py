"""Policies: the doubt after each node of a walk, the answer that is served, and the files of a policy directory."""
