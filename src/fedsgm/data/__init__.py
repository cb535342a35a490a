"""Clients' data: how examples are dealt out, and the data sets of the paper."""

from fedsgm.data.clients import Clients, Scheme, by, dirichlet, iid, split

__all__ = ["Clients", "Scheme", "by", "dirichlet", "iid", "split"]
