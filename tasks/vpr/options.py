"""What can be chosen about visual place recognition."""

from dataclasses import dataclass
from pathlib import Path

from tasks.options import option
from tasks.profiles import DataError

from .images import Size
from .mining import Anywhere, NearestSequences, Pool

#: The networks and poolings by name, as in tasks.vpr.backbones and tasks.vpr.pooling.
BACKBONES = ("resnet18-layer3", "resnet18", "vgg16", "squeezenet1_1", "squeezenet1_1-stride8")
POOLINGS = ("gem", "spoc", "mac")
#: Metres around a query of a Proximity client: the paper's, and what suits made-up cities of a few streets.
RADIUS, WORLD_RADIUS = 2000.0, 50.0


def require_weights(path: Path | None) -> None:
    """Raise :class:`DataError` where a file of weights is named that is not there."""
    if path is not None and not path.is_file():
        raise DataError(
            f"vpr.weights = '{path}': no such file; give a file of weights, or none for weights drawn at random"
        )


@dataclass(frozen=True)
class Options:
    """Options of the task "vpr"; the defaults are those of Dutto et al., FedVPR, 2024, and of what it builds on."""

    source: str = option(
        "auto",
        "files: pictures in the folder data-dir; simulated: without a data-dir, made-up cities are drawn; auto: files "
        "where data-dir is given",
        choices=("auto", "files", "simulated"),
    )
    dataset: str = option(
        "auto",
        "msls: cities in train_val and test, as of Mapillary Street-Level Sequences; nordland: nordland_64x32.npz; "
        "indoor: images_128x96.tar and metadata.csv; table: a CSV file that lists pictures; auto: what is there",
        choices=("auto", "msls", "nordland", "indoor", "table"),
    )
    table_file: str = option(
        "places.csv",
        "the CSV file of dataset 'table': columns path, sequence, role, x and y or lon and lat, and perhaps city, "
        "continent, group, frame",
    )
    skip_unreadable: bool = option(
        False,
        "leave out pictures that are missing or that are none by their first and last bytes, all of which are looked "
        "at first; false: refuse them",
    )
    nordland_stretches: int = option(30, "stretches of the Nordland line: the groups of split 'group'", minimum=1)
    nordland_regions: int = option(5, "regions of the Nordland line, which stand for cities", minimum=1)

    test_cities: str = option(
        "",
        "cities of the common test, separated by commas; '' = sf and cph where they are there, else those in the "
        "folder test, else the last by name as test-share says",
    )
    test_share: float = option(0.2, "share of the cities for the common test, at least one", minimum=0, maximum=0.9)
    test_queries: int = option(0, "queries of the common test, drawn once; 0 = all", minimum=0)
    test_database: int = option(
        0,
        "database images of the common test beside those near its queries, drawn once, which makes it easier; 0 = all",
        minimum=0,
    )
    recall_radius: float = option(25.0, "metres within which a picture shows the query's place", above=0)
    validation_cities: str = option(
        "", "cities of the common validation, left out of training, separated by commas (amsterdam,manila)"
    )
    validation_clients: int = option(
        0, "clients drawn for the common validation in place of cities, left out of training (12)", minimum=0
    )
    local_share: float = option(
        0.0,
        "share of a client's sequences of queries that it keeps for a test of its own, where it has two or more; "
        "0 = none: its recall is then that of the queries it trains on",
        minimum=0,
        maximum=0.9,
    )

    split: str = option(
        "proximity",
        "who is a client: proximity, sequences near a place; clustering, sequences that look alike; random, some of "
        "every city, as many clients as nodes; group, a floor or a stretch",
        choices=("proximity", "clustering", "random", "group"),
    )
    radius: float = option(
        0.0,
        f"metres of split 'proximity', whose number of clients 'clustering' takes over; 0 = {RADIUS:g}, and "
        f"{WORLD_RADIUS:g} for made-up cities",
        minimum=0,
    )
    surplus: str = option(
        "auto",
        "where the split gives more clients than nodes: refuse, or draw so many of them; auto: draw for made-up cities",
        choices=("auto", "refuse", "draw"),
    )
    split_seed: int = option(0, "seed of the split, of held-out clients and sequences and of a drawn test", minimum=0)

    backbone: str = option("resnet18-layer3", "convolutional network before the pooling", choices=BACKBONES)
    weights: str = option(
        "",
        "file of the backbone's ImageNet weights (.pth, .safetensors, .npz), which all nodes have; '' = drawn",
        path=True,
    )
    pooling: str = option("gem", "from local features to a descriptor", choices=POOLINGS)
    train_all: bool = option(
        False, "train the first layers too, as weights that are drawn need it; false: they stay as they are"
    )
    batch_norms: str = option(
        "frozen",
        "batch normalisation in the trained layers: frozen suits small batches",
        choices=("frozen", "trained"),
    )
    height: int = option(288, "pixels that pictures are resized to", minimum=16)
    width: int = option(0, "pixels that pictures are resized to; 0 = 4/3 of the height", minimum=0)

    negatives: int = option(5, "negatives of a query", minimum=1)
    margin: float = option(0.1, "margin of the triplet loss", minimum=0)
    near: float = option(10.0, "metres within which a picture is a positive", minimum=0)
    far: float = option(25.0, "metres beyond which a picture is a negative", above=0)
    pool: int = option(1000, "database images drawn to look for negatives in", minimum=1)
    nearest_sequences: int = option(
        0, "look for negatives only in so many sequences nearest to the query (333 or 20); 0 = in the pool", minimum=0
    )
    sequence_images: int = option(
        0, "images of each of these sequences; 0 = as many as make up the pool, 3 of 333 or 50 of 20", minimum=0
    )
    refresh: int = option(1000, "queries for which triplets are mined at a time, with the weights of then", minimum=1)
    queries_per_epoch: int = option(
        5000, "most queries of an epoch, drawn anew; 0 = all, as for virtual clients of more examples", minimum=0
    )
    augment: str = option(
        "none",
        "each with probability 1/2 per picture: jitter of colours, client-jitter of strengths of the client's own, "
        "jitter-crop with a random crop too",
        choices=("none", "jitter", "client-jitter", "jitter-crop"),
    )
    augmented: str = option("queries", "which pictures of a triplet are augmented", choices=("queries", "all"))
    maps_megabytes: int = option(
        1024,
        "memory for what the frozen layers make of pictures, kept for nodes whose pictures all fit: results differ "
        "from those without by rounding; 0 = nothing is kept",
        minimum=0,
    )

    world_cities: int = option(8, "made-up cities to train in", minimum=1)
    world_test_cities: int = option(2, "made-up cities of the common test", minimum=0)
    world_metres: float = option(320.0, "metres of street per node", above=0)
    world_spacing: float = option(10.0, "metres from a picture to the next", above=0)

    @property
    def size(self) -> Size:
        """Height and width of pictures."""
        return self.height, self.width or round(self.height * 4 / 3)

    @property
    def proximity(self) -> float:
        """The radius in metres with the default filled in."""
        return self.radius or (WORLD_RADIUS if self.source == "simulated" else RADIUS)

    @property
    def draws_surplus(self) -> bool:
        """Whether some of the clients are drawn where there are more than nodes."""
        return self.surplus == "draw" or (self.surplus == "auto" and self.source == "simulated")

    @property
    def weights_file(self) -> Path | None:
        """The file of weights, if any."""
        return Path(self.weights).expanduser() if self.weights else None

    def mining_pool(self) -> Pool:
        """Where negatives are looked for."""
        if self.nearest_sequences:
            images = self.sequence_images or max(1, self.pool // self.nearest_sequences)
            return NearestSequences(self.nearest_sequences, images)
        return Anywhere(self.pool)

    def check(self) -> None:
        """Raise :class:`DataError` for options that do not go together."""
        if self.near > self.far:
            raise DataError(f"vpr.near = {self.near:g}: must be at most vpr.far = {self.far:g}")
        if self.validation_clients and self.validation_cities:
            raise DataError(
                f"vpr.validation-clients = {self.validation_clients} and vpr.validation-cities = "
                f"{self.validation_cities!r}: only one of them can be set"
            )
        if both := set(listed(self.test_cities)) & set(listed(self.validation_cities)):
            raise DataError(f"vpr.test-cities and vpr.validation-cities both have {', '.join(sorted(both))}")
        if self.nordland_regions > self.nordland_stretches:
            raise DataError(
                f"vpr.nordland-regions = {self.nordland_regions}: must be at most vpr.nordland-stretches = "
                f"{self.nordland_stretches}"
            )


def listed(names: str) -> tuple[str, ...]:
    """The names in a string that are separated by commas."""
    return tuple(name.strip() for name in names.split(",") if name.strip())
