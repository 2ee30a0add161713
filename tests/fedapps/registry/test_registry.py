"""Entry points of other packages."""

from fedapps import registry


def test_the_installed_packages_are_searched_once_for_all_groups(monkeypatch):
    searches = []
    search = registry.entry_points
    monkeypatch.setattr(registry, "entry_points", lambda: searches.append(1) or search())
    monkeypatch.syspath_prepend("/")  # a path that was not searched before
    for group in ("fedapps.methods", "fedapps.tasks", "fedapps.trackers", "fedapps.methods"):
        assert all(point.group == group for point in registry.plugins(group).values())
    assert searches == [1]
    assert registry.plugins("console_scripts") == {}
