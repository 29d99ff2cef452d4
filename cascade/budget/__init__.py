"""Caps on spending, and the upper bound on a call's cost before it is made."""
