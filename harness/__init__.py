"""The machinery: simulator, algorithms, acoustics, execution, store and judge."""
