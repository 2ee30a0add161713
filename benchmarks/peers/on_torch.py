"""FedAvg as a loop of torch alone: what the steps of SGD cost, which no library can avoid."""

import torch
from job import Job, network
from torch.nn.functional import cross_entropy

job = Job.read()
generator = torch.Generator().manual_seed(job.seed)
model, trained = network(), network()
optimizer = torch.optim.SGD(trained.parameters(), lr=job.rate)
for _ in range(job.rounds):
    drawn = torch.randperm(len(job.nodes), generator=generator)[: job.drawn].tolist()
    examples = sum(len(job.nodes[node][1]) for node in drawn)
    mean = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    for node in drawn:
        images, labels = job.nodes[node]
        trained.load_state_dict(model.state_dict())
        for _ in range(job.epochs):
            for rows in torch.randperm(len(labels), generator=generator).split(job.batch):
                optimizer.zero_grad()
                cross_entropy(trained(images[rows]), labels[rows]).backward()
                optimizer.step()
        for name, tensor in trained.state_dict().items():
            mean[name] += tensor * (len(labels) / examples)
    model.load_state_dict(mean)
job.finish(model)
