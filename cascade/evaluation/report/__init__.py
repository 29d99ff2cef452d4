"""Reports on a fitted policy or a comparison, for people: the model card and the plots."""
