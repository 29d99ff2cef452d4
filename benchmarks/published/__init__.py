"""What `paper.py` is made of: the printed tables, the contest that replays them, the claims, the pages."""
