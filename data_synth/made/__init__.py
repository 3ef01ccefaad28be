"""Speech generated on the training device from (seed, utterance, frame), and never stored."""
