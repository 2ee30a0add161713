"""Gradient inversion audit: what words a server can read from what a node shares (``fedapps audit``)."""

from .plan import AuditPlan
from .run import audit_recipe
from .victim import recipe_subject

__all__ = ["AuditPlan", "audit_recipe", "recipe_subject"]
