"""How a cascade comes into service: it observes, it is promoted once a certificate holds, it falls back at an alarm."""
