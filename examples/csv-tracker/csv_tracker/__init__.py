"""A tracker and a report section for fedapps."""
