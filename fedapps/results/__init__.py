"""Results of runs, comparisons and pipelines for Python: pandas frames, final arrays and figures."""
