"""A model as Hugging Face's are: named inputs, labels among them, an output with its loss."""

from types import SimpleNamespace

import torch
from torch import nn

import lagbench


class Classifier(nn.Module):
    """The mean of the words' embeddings, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 16), nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1)
        logits = self.head((self.words(input_ids) * mask).sum(1) / mask.sum(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


torch.manual_seed(0)
ids, mask = torch.randint(30, (800, 12)), (torch.rand(800, 12) < 0.7).long()
labels = ((ids < 15) * mask).sum(1) * 2 > mask.sum(1)
data = {"input_ids": ids, "attention_mask": mask, "labels": labels.long()}
given = {"cluster": "k20m-server", "rate": 0.5, "passes": 10, "optimizer": "momentum", "seeds": 2}
print(lagbench.train(Classifier, "model", data, metric="error", workers=4, **given))
