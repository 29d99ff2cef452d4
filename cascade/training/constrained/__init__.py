"""Constrained policy optimisation: CPO and CCPO, pointwise and with a threshold, sampled and exact (`design/ccpo.md`)."""
