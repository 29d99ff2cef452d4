"""The forms in which clients ask and are answered: one translator each. The cascade knows none of them."""
