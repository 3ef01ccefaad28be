"""A small GPT with AdamW, warm-up and cosine, and clipping."""

import torch
from torch import nn

import lagbench


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(16, 32), nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.blocks, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(32, 16)
        self.out.weight = self.symbols.weight  # tied

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        h = self.blocks(self.symbols(x) + self.places.weight, mask=mask, is_causal=True)
        return self.out(h).transpose(1, 2)


rows = [torch.randint(16, (800,), generator=torch.Generator().manual_seed(0))]
for _ in range(12):
    rows.append((5 * rows[-1] + 3) % 16)  # the next symbol follows from the last
x, loss = torch.stack(rows, 1), nn.functional.cross_entropy
cluster = lagbench.Cluster.of(4, step_s=0.05, bandwidth_bytes_per_s=1e6)
recipe = {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "cosine", "clip": 1.0}
recipe |= {"algorithms": ["ddp", "diloco:8"], "workers": [4], "rates": 0.01, "minibatch": 16}
print(lagbench.compare(Gpt, loss, (x[:, :-1], x[:, 1:]), cluster=cluster, seeds=1, **recipe))
