"""``python -m fedapps board``: a page in the browser that follows the runs of a folder while they go on."""
