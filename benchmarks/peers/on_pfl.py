"""FedAvg and SCAFFOLD of pfl-research on its simulation in one process."""

from typing import Any

import numpy as np
import torch
from job import Job, network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

job = Job.read()
np.random.seed(job.seed)  # noqa: NPY002  # pfl draws users from NumPy's global generator
criterion = torch.nn.CrossEntropyLoss()


class Classifier(torch.nn.Module):
    """The network in the form that pfl expects."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, images: torch.Tensor) -> Any:
        """Return logits."""
        return self.network(images)

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return the cross-entropy."""
        return criterion(self(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        """Return no metrics: the model is evaluated once, at the end."""
        return {}


classifier = Classifier()
model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0))
users = [PyTorchTensorDataset(list(node), user_id=str(number)) for number, node in enumerate(job.nodes)]
sampler = get_user_sampler("random", list(range(len(users))))
data = FederatedDataset(users.__getitem__, sampler)
backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
rounds = {"central_num_iterations": job.rounds, "evaluation_frequency": job.rounds + 1, "val_cohort_size": 0}
steps = NNTrainHyperParams(local_batch_size=job.batch, local_num_epochs=job.epochs, local_learning_rate=job.rate)
if job.method == "scaffold":
    algorithm = SCAFFOLD()
    # Option I of the paper: with option II, pfl 0.6.0 changes the old control variate in place, so the server gets 0.
    parameters = SCAFFOLDParams(
        **rounds, train_cohort_size=job.drawn, population=len(users), use_gradient_as_control_variate=True,
        user_state_storage=InMemoryUserStateStorage(),
    )  # fmt: skip
else:
    algorithm = FederatedAveraging()
    parameters = NNAlgorithmParams(**rounds, train_cohort_size=job.drawn)
algorithm.run(parameters, backend, model, steps)
job.finish(classifier)
