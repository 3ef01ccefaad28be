"""What is asked for: configurations, and the files they are read from."""
