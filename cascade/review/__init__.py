"""Reviews by people of the outputs in which a cascade differs from its reference: pairs, sessions and judgements."""
