"""Records how long Lightning trains and when it validates, for many settings of its Trainer: the table that
tests/unit/actors/lightning_orders_test.cpp reads. Needs Lightning (2.6.6), so no test runs it.

    lightning_orders.py >tests/unit/actors/lightning_orders.txt      writes the table
    lightning_orders.py --check FILE                                 ends with 1 if Lightning's orders are not FILE's

A row: the settings, then what happens: `s` and a number for a sanity check of so many batches, `b` for a batch of
training, `v` and a number for a validation, `e` for the end of an epoch; or `refused`.
"""
import logging
import pathlib
import random
import sys
import warnings

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

ROWS, SEED = 500, 24


class recorded(LightningModule):
    def __init__(self, stop):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.stop, self.seen, self.batches, self.text = stop, 0, 0, ""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def training_step(self, batch, index):
        self.text += "b"
        return self.weight.sum()

    def on_train_batch_end(self, outputs, batch, index):
        if self.batches == self.stop:
            self.trainer.should_stop = True
        self.batches += 1

    def on_train_epoch_end(self):
        self.text += "e"

    def validation_step(self, batch, index):
        self.seen += 1

    def on_validation_end(self):
        self.text += f"{'s' if self.trainer.sanity_checking else 'v'}{self.seen}"
        self.seen = 0


def number_of(text):
    return float(text) if "." in text else int(text)


def order(row):
    model = recorded(None if row["stop"] is None else int(row["stop"]))
    options = {name: number_of(row[name]) for name in (
        "max_epochs", "max_steps", "min_epochs", "min_steps", "limit_train_batches", "limit_val_batches",
        "overfit_batches", "val_check_interval", "num_sanity_val_steps", "accumulate_grad_batches", "fast_dev_run")
        if row[name] is not None}
    every = row["check_val_every_n_epoch"]
    try:
        Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, check_val_every_n_epoch=int(every) or None, **options).fit(
            model, *(DataLoader(range(int(row[name])), batch_size=1) for name in ("train", "val")))
    except (ValueError, MisconfigurationException):
        return "refused"
    return model.text


def drawn(draw):
    """One row of settings; those that are None are left out. `check_val_every_n_epoch` 0 is Lightning's None. A stop
    comes with windows of one batch, because Lightning ends inside of a window and Troupe after it."""
    pick = draw.choice
    row = {"train": pick("123456"), "val": pick("1123"), "max_epochs": pick("123344")}
    row["max_steps"] = pick([None] * 3 + ["1", "4", "9"])
    if row["max_steps"] == "9" and pick([True, False]):
        row["max_epochs"] = "-1"
    row["min_epochs"] = pick([None] * 3 + ["0", "1", "2"])
    row["min_steps"] = pick([None] * 3 + ["1", "3", "7"])
    row["stop"] = pick([None, "0", "1", "2", "4", "5", "7"])
    row["accumulate_grad_batches"] = "1" if row["stop"] is not None else pick("1123")
    row["limit_train_batches"] = pick([None] * 3 + ["2", "4"])
    row["limit_val_batches"] = pick([None] * 4 + ["1", "0"])
    row["overfit_batches"] = pick([None] * 5 + ["1", "2"])
    row["check_val_every_n_epoch"] = pick("112300")
    shares = [] if row["check_val_every_n_epoch"] == "0" else ["1.0", "0.5", "0.3"]  # Lightning refuses them
    row["val_check_interval"] = pick([None, *shares, "1", "2", "3", "5", "8"])
    row["num_sanity_val_steps"] = pick([None, "0", "1", "-1"])
    row["fast_dev_run"] = pick([None] * 12 + ["2"])
    return row


def main():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    draw = random.Random(SEED)
    rows = [drawn(draw) for _ in range(ROWS)]
    lines = [" ".join([*(f"{name}={value}" for name, value in row.items() if value is not None), "|", order(row)])
             for row in rows]
    if sys.argv[1:2] == ["--check"]:
        wanted = pathlib.Path(sys.argv[2]).read_text().splitlines()
        sys.exit(0 if wanted == lines else "lightning_orders: Lightning's orders are not those of the table")
    print("\n".join(lines))


main()
