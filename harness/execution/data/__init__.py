"""What is trained on: frames and utterances, whose they are, and in what order."""
