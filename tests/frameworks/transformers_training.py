"""Transformers' Trainer: `transformers_training.py WAY FOLDER` is one rank of a short training on CPU.

The model is made from a configuration: nothing is downloaded.
"""

import sys

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import outcome

LENGTH, WORDS = 16, 64


class Sentences(torch.utils.data.Dataset):
    """Rows of word numbers."""

    def __init__(self):
        drawing = torch.Generator().manual_seed(5)
        self.words = torch.randint(WORDS, (2 * outcome.STEPS * outcome.BATCH, LENGTH), generator=drawing)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, number):
        return {"input_ids": self.words[number], "labels": self.words[number]}


class Losses(TrainerCallback):
    """What the trainer logs of each step: the mean of all ranks."""

    def __init__(self):
        self.found, self.evaluated = [], []

    def on_log(self, *_, logs=None, **__):
        self.found += [logs["loss"]] if "loss" in logs else []
        self.evaluated += [logs["eval_loss"]] if "eval_loss" in logs else []


def model():
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes))


def main():
    way, folder = sys.argv[1:]
    if way == "before":
        dist.init_process_group("herringbone")
    settings = TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=outcome.BATCH,
        per_device_eval_batch_size=outcome.BATCH,
        num_train_epochs=1,
        learning_rate=0.01,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=outcome.STEPS // 2,
        report_to=[],
        disable_tqdm=True,
    )
    losses = Losses()
    trainer = Trainer(model(), settings, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=[losses])
    trainer.train()
    assert len(losses.evaluated) == 1, losses.evaluated
    trained = [parameter.detach().clone() for parameter in trainer.model.parameters()]

    resumed = Trainer(model(), settings, train_dataset=Sentences(), eval_dataset=Sentences())
    resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-{outcome.STEPS // 2}")
    assert all(map(torch.equal, trained, resumed.model.parameters())), "a resumed training differs"
    outcome.leave(folder, way, losses.found, trainer.model)


if __name__ == "__main__":
    main()
