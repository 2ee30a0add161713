"""One CSV file per method."""

from fedapps.trackers import TrackedRecord, Tracker


class CsvTracker(Tracker):
    """Lines of round, name and value in the run folder."""

    name = "csv"
    line = "CSV files in the run folder"

    def open(self, run):
        return CsvFile(run.folder / f"{run.method}.csv")


class CsvFile(TrackedRecord):
    """The file of one method."""

    def __init__(self, path):
        self.path = path

    @property
    def last_round(self):
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return int(lines[-1].partition(",")[0]) if lines else 0

    def log(self, server_round, values):
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{server_round},{name},{value}\n" for name, value in values.items())
