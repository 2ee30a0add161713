"""Classification of tables from scikit-learn, a task for fedapps."""
