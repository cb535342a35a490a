"""The benchmark of constrained federated learning: problems with natural clients, rivals tuned alike, one page."""
