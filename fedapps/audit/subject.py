"""What an audit attacks in a task."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedapps.config.recipe_files import read_recipe
from fedapps.registry.tasks import task_class, task_names, usable_tasks
from fedapps.tasks.base import Task
from fedapps.tasks.privacy.subject import AuditSubject


def audit_subject(task: Task | type[Task]) -> AuditSubject | None:
    """What an audit attacks in a task; ``None`` if the task cannot be audited. Only now are the attacks imported."""
    if not task.audit_subject:
        return None
    module, _, name = task.audit_subject.partition(":")
    subject: AuditSubject = getattr(import_module(module), name)()
    return subject


def recipe_subject(recipe: Path, overrides: Mapping[str, Any] | None = None) -> AuditSubject:
    """What an audit attacks in the task of a recipe, with ``overrides`` of its keys.

    Raises
    ------
    ValueError
        The recipe names no task that can be audited, or cannot be read.
    """
    name = str(read_recipe(recipe, overrides).get("task", ""))
    subject = audit_subject(task_class(name)) if name in task_names() else None
    if subject is None:
        raise ValueError(
            f"recipe {recipe}: task = {name!r}: must be one of {', '.join(_audited_tasks())}, because an audit "
            "reconstructs the words of sentences"
        )
    return subject


def _audited_tasks() -> list[str]:
    return [name for name in usable_tasks() if task_class(name).audit_subject]
