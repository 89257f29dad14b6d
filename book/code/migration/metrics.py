import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Accuracy:
    """An accuracy that is updated with batches, in the style of Keras."""

    def __init__(self):
        self.correct, self.samples = 0, 0

    def update(self, answers, classes):
        self.correct += (answers == classes).sum().item()
        self.samples += len(classes)

    def mean_of_ranks(self):
        """The mean of the ranks' accuracies, as easytext's trainer computes it."""
        mean = torch.tensor(self.correct / self.samples, dtype=torch.float64)
        dist.all_reduce(mean)  # Gloo has no ReduceOp.AVG
        return mean.item() / dist.get_world_size()

    def of_all_samples(self):
        """The accuracy over the samples that the ranks have seen."""
        sums = torch.tensor([self.correct, self.samples], dtype=torch.float64)
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()


def evaluate(name, loader):
    accuracy = Accuracy()
    for (classes,) in loader:
        answers = torch.zeros_like(classes)  # of a model that always answers 0
        accuracy.update(answers, classes)
    mean, exact = accuracy.mean_of_ranks(), accuracy.of_all_samples()
    if dist.get_rank() == 0:
        print(f"{name}: mean of ranks {mean:.6f}  all samples {exact:.6f}")


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.arange(101) % 10)
    sampler = DistributedSampler(data, shuffle=False)  # repeats samples until all ranks have equally many
    evaluate("padded", DataLoader(data, batch_size=16, sampler=sampler))
    part = Subset(data, range(rank, len(data), world_size))  # uneven, without repetition
    evaluate("uneven", DataLoader(part, batch_size=16))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
