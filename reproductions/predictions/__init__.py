"""Blind predictions: plans with uncertain figures, and a comparison with what was measured."""
