"""Constrained policy optimisation: CPO, CCPO, with a threshold and without, sampled and exact (`design/ccpo.md`)."""
