"""How long a call may take, how often it is tried, how many run at once, who is not asked, and what ends a call."""
