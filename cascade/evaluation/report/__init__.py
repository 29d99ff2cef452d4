"""What people read of a fitted policy or a comparison: the model card and the plots."""
