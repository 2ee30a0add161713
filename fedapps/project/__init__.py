"""``fedapps new``: a project of a few files with a task, a method or a deployment, from templates."""
