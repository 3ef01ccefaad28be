"""Where an algorithm meets a timeline."""
