"""Known methods: settings of FedSGM by name, and rivals that are none, run by the same engine."""

from fedsgm.methods.ipp_conex import IPPConEx

__all__ = ["IPPConEx"]
