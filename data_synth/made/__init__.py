"""Speech made where it is trained on, of (seed, utterance, frame) alone, and never stored."""
