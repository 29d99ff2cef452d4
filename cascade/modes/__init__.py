"""The modes of a cascade: observe, enforce (once a certificate holds), and fallback (after an alarm)."""
