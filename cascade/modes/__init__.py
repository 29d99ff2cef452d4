"""The modes of a cascade: it observes, is promoted once a certificate holds, and falls back after an alarm."""
