"""The application for a user's `torch.nn.Module`: gradients over the stack, identity, timing."""
