"""Gradient inversion audit: what a server can reconstruct from the gradients of a text task (``fedapps audit``)."""

from .plan import AuditPlan
from .run import audit_recipe

__all__ = ["AuditPlan", "audit_recipe"]
