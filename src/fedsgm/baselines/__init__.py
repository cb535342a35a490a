"""Rival methods that are no setting of FedSGM, run by the same engine."""

from fedsgm.baselines.ipp_conex import IPPConEx

__all__ = ["IPPConEx"]
