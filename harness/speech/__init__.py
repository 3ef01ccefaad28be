"""Speech as an application: frames and sequences as tasks, decoding, recognition."""
