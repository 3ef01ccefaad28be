"""Is it true? Replays, comparisons, predictions, calibration, promises of an algorithm."""
