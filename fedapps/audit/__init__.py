"""What somebody who reads along on the server makes of the gradients that nodes share: ``python -m fedapps audit``."""

from .plan import AuditPlan
from .run import audit_recipe

__all__ = ["AuditPlan", "audit_recipe"]
