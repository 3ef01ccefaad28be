"""Who waits for whom: one file a protocol."""
