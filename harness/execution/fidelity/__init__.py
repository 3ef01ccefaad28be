"""Is it true? Replays, comparisons, predictions and calibration."""
