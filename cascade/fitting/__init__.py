"""What a log teaches: which requests learn, what is chosen, and what is certified."""
