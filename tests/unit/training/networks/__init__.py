"""Constrained policy optimisation: each part against something that shares no code with it."""
