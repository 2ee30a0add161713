"""FedVocab: vocabulary and embedding stay private, with adaptive updating."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tasks.options import option
from tasks.private_parameters import PrivateParameters

from .base import Round, Scalar
from .partial import PartialMethod

if TYPE_CHECKING:
    from clients.local_part import LocalPart
    from tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FedVocabOptions:
    """The options of FedVocab."""

    adapt_epochs: int = option(
        1,
        "epochs with the shared parameters frozen, before all are trained; 0 = no adaptive updating",
        minimum=0,
        formerly="adapt-epochs",
    )
    own_start: bool = option(False, "let nodes start from embeddings of their own (Different init in the paper)")


class FedVocab(PartialMethod):
    """Private word vectors under a shared encoder and classifier."""

    name = "fedvocab"
    line = "FedVocab: vocabulary and embedding stay private, with adaptive updating"
    citation = "Zhang et al., Federated Model Decomposition with Private Vocabulary for Text Classification, EMNLP 2022"
    task = "text"
    patterns = ("embedding.*",)
    former_names: ClassVar = {
        "fedvocab-no-adapt": "fedvocab(adapt-epochs=0)",
        "fedvocab-own-start": "fedvocab(own-start=true)",
    }
    Options = FedVocabOptions

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(self.patterns, self.options.own_start)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"adapt-epochs": self.options.adapt_epochs} if server_round.message == "train" else {}

    def local_parts(self) -> "Sequence[LocalPart]":
        from clients.parts.adaptive_updating import AdaptiveUpdating

        return [AdaptiveUpdating()]
