"""Constrained models of one's own table: fairness, constraints in words, models, fit and predict, estimators."""
