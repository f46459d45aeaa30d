"""How verdicts are shown: tables and words for the terminal, one HTML page, JSON."""
