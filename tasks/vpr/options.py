"""Options of visual place recognition."""

import re
from dataclasses import dataclass
from pathlib import Path

from fedapps.tasks.vision import MAX_PIXELS, MOST_PIXELS

from fedapps.base.errors import DataError
from fedapps.base.options import option, split_names

from .backbones import BACKBONES, HEAD, POOLINGS, require_backbone
from .images import Size
from .readers import METRES_PER_FRAME
from .retrieval import Anywhere, NearestSequences, Pool

#: The radius in metres of a Proximity client: the paper's, and a smaller one for simulated cities of a few streets.
RADIUS, WORLD_RADIUS = 2000.0, 50.0
#: The form of the names of torchvision's weights.
_PUBLISHED = re.compile(r"[A-Za-z0-9_]+_Weights\.[A-Z0-9_]+")


def require_weights(weights: Path | str | None) -> None:
    """Raise :class:`DataError` if a file of weights does not exist; names and ``None`` (random weights) pass."""
    if isinstance(weights, Path) and not weights.is_file():
        raise DataError(
            f"vpr.weights = '{weights}': no such file; name a file or weights of torchvision "
            "(ResNet18_Weights.IMAGENET1K_V1), or leave it empty for random weights"
        )


@dataclass(frozen=True)
class Options:
    """Options of the task "vpr". The defaults are those of Dutto et al., FedVPR, 2024, and of the benchmark it builds
    on.
    """

    source: str = option(
        "auto",
        "files: images in the folder data-dir; simulated: simulated cities, generated if data-dir is not set; "
        "auto: files if data-dir is set, otherwise simulated",
        choices=("auto", "files", "simulated"),
        data=True,
    )
    dataset: str = option(
        "auto",
        "msls: cities in train_val and test, as in Mapillary Street-Level Sequences; nordland: "
        "nordland_64x32.npz; indoor: images_128x96.tar and metadata.csv; table: a table that lists images; auto: "
        "recognise the data set",
        choices=("auto", "msls", "nordland", "indoor", "table"),
        data=True,
    )
    table_file: str = option(
        "places.csv",
        "Table of dataset 'table' (.csv, .tsv or .jsonl): columns path, sequence, role, x and y or lon and lat, "
        "and optionally city, continent, group",
        data=True,
    )
    skip_unreadable: bool = option(
        False,
        "Leave out images that are missing or damaged, judged by their first and last bytes; false = report them "
        "as an error",
    )
    max_pixels: int = option(
        MAX_PIXELS,
        "Refuse images of more pixels: a small file can describe a picture that fills the memory",
        minimum=1,
        maximum=MOST_PIXELS,
    )
    nordland_spacing: float = option(
        METRES_PER_FRAME,
        "Metres between consecutive frames of nordland; the default is for 3,576 frames on 729 km, 10 s apart",
        above=0,
        data=True,
    )
    nordland_stretches: int = option(
        30, "Stretches of the Nordland line, the groups of split 'group'", minimum=1, data=True
    )
    nordland_regions: int = option(
        5, "Regions of the Nordland line, which take the place of cities", minimum=1, data=True
    )

    test_cities: str = option(
        "",
        "Cities of the common test, separated by commas; '' = sf and cph if present, otherwise the cities in the "
        "folder test, otherwise the last cities by name according to test-share",
        data=True,
    )
    test_share: float = option(
        0.2, "Share of the cities for the common test, at least one city", minimum=0, maximum=0.9, data=True
    )
    test_queries: int = option(0, "Queries of the common test, drawn once; 0 = all", minimum=0)
    test_database: int = option(
        0,
        "Database images of the common test besides those near its queries, drawn once; fewer images make the "
        "test easier; 0 = all",
        minimum=0,
    )
    recall_radius: float = option(
        25.0, "Maximum distance in metres of a correct match from the query", above=0, data=True
    )
    validation_cities: str = option(
        "", "Cities of the common validation, excluded from training, separated by commas (amsterdam,manila)"
    )
    validation_clients: int = option(
        0, "Clients drawn for the common validation instead of cities, excluded from training (12)", minimum=0
    )
    local_share: float = option(
        0.0,
        "Share of a client's query sequences held out for its own test, if it has at least two; 0 = none, and "
        "local recall is that of the training queries",
        minimum=0,
        maximum=0.9,
    )

    split: str = option(
        "proximity",
        "How sequences are divided among clients: proximity, sequences near a place; clustering, sequences that "
        "look alike; random, sequences of every city for as many clients as nodes; group, a floor or a stretch",
        choices=("proximity", "clustering", "random", "group"),
        data=True,
    )
    radius: float = option(
        0.0,
        f"Radius in metres of split 'proximity', whose number of clients 'clustering' adopts; 0 = {RADIUS:g}, and "
        f"{WORLD_RADIUS:g} for simulated cities",
        minimum=0,
        data=True,
    )
    surplus: str = option(
        "auto",
        "If the split gives more clients than nodes: refuse, or draw a subset; auto = draw for simulated cities, "
        "otherwise refuse",
        choices=("auto", "refuse", "draw"),
        data=True,
    )
    split_seed: int = option(
        0, "Seed of the split, of held-out clients and sequences, and of a drawn test set", minimum=0
    )

    backbone: str = option(
        "resnet18-layer3",
        f"Convolutional network before the pooling: {', '.join(BACKBONES)}, or NETWORK@LAYER, a classifier of "
        "torchvision or efficientnet_lite0, cut after one of its layers (resnet50@layer3)",
    )
    trained_from: str = option(
        "",
        "First layer of the backbone that is trained, by torchvision's name (layer2, features.10); '' = the layer of "
        f"NETWORK@LAYER, or the last stage of the other backbones; {HEAD} = none: only pooling and projection are",
    )
    weights: str = option(
        "",
        "The backbone's ImageNet weights, which every node needs: a file (.pth, .safetensors, .npz), or a name in "
        "torchvision (ResNet18_Weights.IMAGENET1K_V1), which is downloaded once; '' = random weights",
        path=True,
    )
    pooling: str = option("gem", "Pooling of local features into a descriptor", choices=tuple(POOLINGS))
    projection: int = option(
        0, "Width of a linear layer after the pooling, which gives the descriptor; 0 = no layer", minimum=0
    )
    train_all: bool = option(
        False, "Train the first layers as well, which random weights require; false = keep them frozen"
    )
    batch_norms: str = option(
        "frozen", "Batch normalisation in the trained layers; frozen suits small batches", choices=("frozen", "trained")
    )
    height: int = option(288, "Height in pixels to which images are resized", minimum=16, maximum=4096)
    width: int = option(
        0, "Width in pixels to which images are resized; 0 = 4/3 of the height", minimum=0, maximum=4096
    )

    negatives: int = option(5, "Negatives per query", minimum=1)
    margin: float = option(0.1, "Margin of the triplet loss", minimum=0)
    near: float = option(10.0, "Maximum distance in metres of a positive from its query", minimum=0)
    far: float = option(25.0, "Minimum distance in metres of a negative from its query", above=0)
    pool: int = option(1000, "Database images drawn as candidates for negatives", minimum=1)
    nearest_sequences: int = option(
        0,
        "Search negatives only in this number of sequences nearest to the query (333 or 20); 0 = in the pool",
        minimum=0,
    )
    sequence_images: int = option(
        0, "Images of each of these sequences; 0 = fill the pool, 3 of 333 sequences or 50 of 20", minimum=0
    )
    refresh: int = option(1000, "Queries per mining of triplets, which uses the current weights", minimum=1)
    queries_per_epoch: int = option(
        5000,
        "Maximum number of queries per epoch, drawn anew each time; 0 = all, for example for virtual clients with "
        "more examples",
        minimum=0,
    )
    augment: str = option(
        "none",
        "Augmentation of an image with probability 1/2: none, jitter (colours), client-jitter (with strengths "
        "drawn for each client), jitter-crop (also a random crop)",
        choices=("none", "jitter", "client-jitter", "jitter-crop"),
    )
    augmented: str = option("queries", "Images of a triplet that are augmented", choices=("queries", "all"))
    maps_megabytes: int = option(
        1024,
        "Memory for cached feature maps of the frozen layers, used for nodes whose images all fit; results differ "
        "from uncached ones by rounding; 0 = no cache",
        minimum=0,
    )

    world_cities: int = option(8, "Simulated cities for training", minimum=1, data=True)
    world_test_cities: int = option(2, "Simulated cities for the common test", minimum=0, data=True)
    world_metres: float = option(320.0, "Metres of street per node", above=0, data=True)
    world_spacing: float = option(10.0, "Metres between consecutive images", above=0, data=True)

    @property
    def size(self) -> Size:
        """Height and width of images in pixels."""
        return self.height, self.width or round(self.height * 4 / 3)

    @property
    def proximity(self) -> float:
        """The radius in metres, with the default filled in."""
        return self.radius or (WORLD_RADIUS if self.source == "simulated" else RADIUS)

    @property
    def draws_surplus(self) -> bool:
        """Whether a subset of the clients is drawn if there are more clients than nodes."""
        return self.surplus == "draw" or (self.surplus == "auto" and self.source == "simulated")

    @property
    def given_weights(self) -> Path | str | None:
        """The file of weights, their name in torchvision, or ``None`` for random weights."""
        if _PUBLISHED.fullmatch(self.weights):
            return self.weights
        return Path(self.weights).expanduser() if self.weights else None

    def mining_pool(self) -> Pool:
        """Return the pool in which negatives are searched."""
        if self.nearest_sequences:
            images = self.sequence_images or max(1, self.pool // self.nearest_sequences)
            return NearestSequences(self.nearest_sequences, images)
        return Anywhere(self.pool)

    def check(self) -> None:
        """Raise :class:`DataError` if options are incompatible."""
        require_backbone(self.backbone)
        if self.trained_from and self.train_all:
            raise DataError(
                f"vpr.trained-from = {self.trained_from!r} and vpr.train-all = true: these options are mutually "
                "exclusive; set one of them"
            )
        if self.trained_from == HEAD and self.pooling != "gem" and not self.projection:
            raise DataError(
                f"vpr.trained-from = {HEAD!r} with vpr.pooling = {self.pooling!r} leaves nothing to train; set "
                "vpr.projection to a width, or vpr.pooling = 'gem'"
            )
        if self.near > self.far:
            raise DataError(f"vpr.near = {self.near:g}: must be at most vpr.far = {self.far:g}")
        if self.validation_clients and self.validation_cities:
            raise DataError(
                f"vpr.validation-clients = {self.validation_clients} and vpr.validation-cities = "
                f"{self.validation_cities!r}: these options are mutually exclusive; set one of them"
            )
        if both := set(split_names(self.test_cities)) & set(split_names(self.validation_cities)):
            raise DataError(
                f"vpr.test-cities and vpr.validation-cities both contain {', '.join(sorted(both))}; name each city once"
            )
        if self.nordland_regions > self.nordland_stretches:
            raise DataError(
                f"vpr.nordland-regions = {self.nordland_regions}: must be at most vpr.nordland-stretches = "
                f"{self.nordland_stretches}"
            )
