"""Strategies: how models are combined into steps. A strategy plans calls; the policy decides when to stop."""
