"""Asynchronous reinforcement learning: generators sample rollouts, a trainer learns from them."""
