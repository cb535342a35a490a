"""What keeps a single client, or a single example, from being seen: secure aggregation, noise and its account."""
