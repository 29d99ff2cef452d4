"""People judge the outputs in which a cascade differs from its reference: pairs, judgements, and plans."""
