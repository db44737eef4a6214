"""One thread per process: tensors are small here, and tests run beside each other."""

import torch

torch.set_num_threads(1)
