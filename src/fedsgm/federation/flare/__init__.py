"""NVIDIA FLARE as a transport of federated runs, and federations of it on one machine or many."""
