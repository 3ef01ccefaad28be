"""Checks of the simulation: replays, comparisons, predictions, calibration, algorithm contracts."""
