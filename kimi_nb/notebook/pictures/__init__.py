"""Draw plans, starts and scores, each picture with a description and its numbers."""
