"""Hidden Markov models, language models, decoding, sequence criteria and scoring."""
