"""`cascade prove`: what a log says could be saved, with the reasons."""
