"""What each method shares of a text task."""

from collections.abc import Mapping

from fedapps.tasks.privacy.sharing import Sharing
from fedapps.tasks.text.vocabulary import is_digits

#: What each method shares. The private words of FedRecon are digit tokens, as in the paper (Appendix A.2).
SHARINGS: Mapping[str, Sharing] = {
    "fedavg": Sharing("fedavg", ("*",), lambda word: True),
    "lg-fedavg": Sharing("lg-fedavg", ("*classifier.*",), lambda word: False, first_layer=False),
    "fedrecon": Sharing("fedrecon", ("*",), lambda word: not is_digits(word)),
    "fedvocab": Sharing("fedvocab", ("encoder.*", "*classifier.*"), lambda word: False),
}
