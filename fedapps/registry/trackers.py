"""Trackers by their names: the modules of ``fedapps/trackers``, and the entry points ``fedapps.trackers`` of others."""

from fedapps import trackers
from fedapps.trackers.base import Tracker

from .classes import Registry

TRACKERS: Registry[Tracker] = Registry(trackers, Tracker, "fedapps.trackers", "trackers")
