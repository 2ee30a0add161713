"""Algorithms: subclasses of :class:`~fedapps.strategies.base.BaseStrategy`."""
