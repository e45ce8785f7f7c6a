"""The built-in models and data as a PyTorch user would write them. Troupe's are compared with these."""
import gzip
import os

import numpy as np
import torch
from torch import nn

FOLDER = "/usr/share/datasets/fashion-mnist"


def make(model, hidden=(256, 128), dropout=0.0):
    """A module whose keys begin with `net.`."""
    after = nn.Dropout(dropout) if dropout else nn.Identity()
    relu = nn.Sequential(nn.ReLU(), after) if dropout else nn.ReLU()
    if model == "mlp":
        layers, width = [nn.Flatten()], 784
        for nxt in hidden:
            layers += [nn.Linear(width, nxt), relu]
            width = nxt
        layers += [nn.Linear(width, 10)]
    elif model == "cnn":
        layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                  nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                  nn.Flatten(), nn.Linear(3136, 128), relu, nn.Linear(128, 10)]
    else:
        raise ValueError(f"no model {model}")
    module = nn.Module()
    module.net = nn.Sequential(*layers)
    return module


def optimizer(name, parameters, learning_rate, momentum=0.0, weight_decay=0.0):
    if name == "sgd":
        return torch.optim.SGD(parameters, learning_rate, momentum=momentum, weight_decay=weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(parameters, learning_rate, weight_decay=weight_decay)


def fashion_mnist(half, folder=FOLDER):
    """Images (N, 1, 28, 28) as pixel/255 and labels; `half` is train or t10k."""
    def elements(what, header):
        path = os.path.join(folder, f"{half}-{what}-ubyte")
        opened = gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb")
        with opened as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)
    images = torch.from_numpy(elements("images-idx3", 16).reshape(-1, 1, 28, 28).astype(np.float32))
    return images / 255, torch.from_numpy(elements("labels-idx1", 8).astype(np.int64))
