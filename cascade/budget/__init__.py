"""What may be spent, and what a call can cost at most before it is made."""
