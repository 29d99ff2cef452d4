"""`cascade prove`: estimate from a log what a cascade would save, and give the reasons."""
