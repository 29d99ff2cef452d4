"""People judge the outputs in which a cascade differs from its reference: pairs, what was said of them, how many."""
