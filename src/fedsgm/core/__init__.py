"""The method itself: quantities, problems, rules, compression, error feedback, and Algorithm 1 in five functions."""
