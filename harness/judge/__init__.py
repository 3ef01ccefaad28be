"""Statistics and verdicts; nothing here trains or draws."""
