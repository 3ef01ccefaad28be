"""What is trained where it is anybody's `torch.nn.Module`: gradients over the stack, identity."""
