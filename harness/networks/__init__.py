"""The contract of a network for algorithms, and the feed-forward network over replicas."""
