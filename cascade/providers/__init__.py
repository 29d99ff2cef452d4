"""Who answers a request. A provider moves bytes; `guard` decides what they are worth."""
