"""Lightning: `lightning_training.py WAY FOLDER` is one rank of a short training, with checks, logs and a checkpoint."""

import pathlib
import sys

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.functional import cross_entropy

import outcome

FEATURES, LABELS = 16, 5


class Classifier(lightning.LightningModule):
    """Keeps its losses; what it logs and gathers goes through the group."""

    def __init__(self):
        super().__init__()
        self.network, self.losses = outcome.network(FEATURES, LABELS), []

    def training_step(self, batch, _):
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.log("validation", loss, sync_dist=True)
        everyones = self.all_gather(loss)
        assert everyones.shape == (2,) and everyones[self.global_rank] == loss, everyones

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main():
    way, folder = sys.argv[1:]
    if way == "before":
        dist.init_process_group("herringbone")
    named = {"process_group_backend": "herringbone"} if way in ("named", "started") else {}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(**named),
        max_epochs=1,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    rows = outcome.rows(FEATURES, LABELS)
    loaders = [torch.utils.data.DataLoader(rows, outcome.BATCH, shuffle=False) for _ in range(2)]
    trainer.fit(model, *loaders)
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items()), "the checkpoint differs"
    assert pathlib.Path(trainer.checkpoint_callback.best_model_path).is_relative_to(folder)
    outcome.leave(folder, way, model.losses, model.network)


if __name__ == "__main__":
    main()
