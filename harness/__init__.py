"""The harness: simulator, algorithms, networks, training, replay, store and judge."""
