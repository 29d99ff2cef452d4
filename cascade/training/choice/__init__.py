"""The honest choice: what is compared, by what figure, and which candidate is taken."""
