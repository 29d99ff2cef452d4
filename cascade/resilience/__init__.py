"""How long a call may take and how often it is tried."""
