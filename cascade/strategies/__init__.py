"""How models are combined into steps. A strategy plans calls; it decides nothing about stopping."""
