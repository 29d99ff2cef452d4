"""Policies: how sure each node of a walk is, which answer is served, and what a policy directory holds."""
