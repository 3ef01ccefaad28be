"""Contribute and fold: tensors only, no notion of time, ranks or transports."""
