"""A policy, a sampler and a reward of one's own: answers that repeat the prompt's token."""

import torch
from torch import nn

import lagbench
from harness.rollouts.protocol import Rollouts


def sampler(policy, prefixes, draws):
    """Yield the tokens of each answer, with the logarithms of their probabilities; 0 is the end."""
    for tokens, numbers in zip(map(list, prefixes), draws, strict=True):
        new, logs = [], []
        while not new or (new[-1] and len(tokens + new) < len(numbers)):
            chances = policy(torch.tensor([tokens + new]))[0, -1].double().softmax(0)
            new.append(min(5, int((chances.cumsum(0) <= numbers[len(tokens + new)]).sum())))
            logs.append(float(chances[new[-1]].log()))
        yield new, logs


def reward(prompt, answer):
    """Return the share of the answer that is the prompt's token."""
    return answer.count(prompt[0]) / len(answer)


policy = nn.Sequential(nn.Embedding(6, 32), nn.Linear(32, 6))  # of the last token alone
prompts = [[1 + k % 5] * (1 + k // 5 % 3) for k in range(15)]
own = {"sampler": sampler, "test": prompts, "context": 10, "cluster": "h100-node", "rate": 0.02}
protocol = Rollouts(slots=8, group=4, batch=4, eta=2)
print(lagbench.rollouts(policy, prompts, reward, **own, protocol=protocol, updates=40))
