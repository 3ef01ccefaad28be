"""Where an algorithm meets a timeline, in eight rooms."""
