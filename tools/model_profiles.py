"""Writes the profiles of published models, crates/cli/models, from their architectures.

Usage: tools/model_profiles.py [FOLDER]. Layers have the names and the order of torchvision's and Hugging Face's models. Only convolutions and
matrix products are counted as multiply-adds; docs/reference/model-profile.md explains this.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from herringbone.profile.document import Layer, Parameter, Profile, Published
from herringbone.profile.writing import text

FOLDER = ROOT / "crates" / "cli" / "models"


def parameter(name: str, *shape: int) -> Parameter:
    return Parameter(name, shape, "float32")


def linear(name: str, inputs: int, outputs: int, rows: int = 1, bias: bool = True, more: int = 0) -> Layer:
    """A matrix product of ``rows`` vectors; ``more`` multiply-adds are of products beside it that have no parameters."""
    biases = [parameter("bias", outputs)] if bias else []
    return Layer(name, [parameter("weight", outputs, inputs), *biases], inputs * outputs * rows + more)


def norm(name: str, width: int, more: int = 0) -> Layer:
    """A normalisation, of batches or layers: a factor and a summand for each channel."""
    return Layer(name, [parameter("weight", width), parameter("bias", width)], more)


def embedding(name: str, rows: int, width: int) -> Layer:
    return Layer(name, [parameter("weight", rows, width)], 0)


class Images:
    """Layers of a network for square images, while it is put together; ``side`` and ``channels`` are those of the last output."""

    def __init__(self, side: int, channels: int = 3) -> None:
        self.side, self.channels = side, channels
        self.layers: list[Layer] = []

    def convolution(
        self,
        name: str,
        outputs: int,
        kernel: int | Sequence[int],
        stride: int = 1,
        padding: int | None = None,
        bias: bool = False,
    ) -> None:
        """A convolution. Without ``padding`` a kernel of one row or an odd square keeps the side; 0 pads nothing."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        if height == width:
            around = (height - 1) // 2 if padding is None else padding
            self.side = (self.side + 2 * around - height) // stride + 1
        weight = parameter("weight", outputs, self.channels, height, width)
        biases = [parameter("bias", outputs)] if bias else []
        self.layers.append(Layer(name, [weight, *biases], weight.elements * self.side**2))
        self.channels = outputs

    def normed(self, name: str, outputs: int, kernel: int | Sequence[int], stride: int = 1, padding: int | None = None) -> None:
        """A convolution without bias, and a normalisation."""
        self.convolution(f"{name}.conv", outputs, kernel, stride, padding)
        self.layers.append(norm(f"{name}.bn", outputs))

    def pool(self, kernel: int, stride: int, padding: int = 0) -> None:
        self.side = (self.side + 2 * padding - kernel) // stride + 1


def alexnet() -> Profile:
    """The network in one column, as torchvision has it."""
    net = Images(224)
    net.convolution("features.0", 64, 11, 4, 2, bias=True)
    net.pool(3, 2)
    net.convolution("features.3", 192, 5, bias=True)
    net.pool(3, 2)
    for place, outputs in ((6, 384), (8, 256), (10, 256)):
        net.convolution(f"features.{place}", outputs, 3, bias=True)
    net.pool(3, 2)
    net.layers += [linear("classifier.1", net.channels * net.side**2, 4096), linear("classifier.4", 4096, 4096)]
    net.layers += [linear("classifier.6", 4096, 1000)]
    return Profile(
        "AlexNet",
        "Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, in one column",
        net.layers,
        sample="an image of 3 x 224 x 224",
        published=Published(61_100_840, "torchvision, AlexNet_Weights: num_params, _ops", 714_000_000),
    )


def vgg16() -> Profile:
    """Configuration D of the paper."""
    net, place = Images(224), 0
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            net.convolution(f"features.{place}", outputs, 3, bias=True)
            place += 2  # the activation has a place, too
        net.pool(2, 2)
        place += 1
    net.layers += [linear("classifier.0", net.channels * net.side**2, 4096), linear("classifier.3", 4096, 4096)]
    net.layers += [linear("classifier.6", 4096, 1000)]
    return Profile(
        "VGG-16",
        "Simonyan and Zisserman, Very deep convolutional networks for large-scale image recognition, 2015, configuration D",
        net.layers,
        sample="an image of 3 x 224 x 224",
        published=Published(138_357_544, "torchvision, VGG16_Weights: num_params, _ops", 15_470_000_000),
    )


def resnet50() -> Profile:
    """Bottlenecks with the stride in their 3 x 3 convolution, as torchvision has them; the paper has it in the first one."""
    net = Images(224)
    net.convolution("conv1", 64, 7, 2)
    net.layers.append(norm("bn1", 64))
    net.pool(3, 2, 1)
    for number, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            bottleneck(net, f"layer{number}.{block}", width, 2 if number > 1 and block == 0 else 1)
    net.layers.append(linear("fc", net.channels, 1000))
    return Profile(
        "ResNet-50",
        "He, Zhang, Ren and Sun, Deep residual learning for image recognition, 2015; the stride is in the 3 x 3 convolutions (v1.5)",
        net.layers,
        sample="an image of 3 x 224 x 224",
        published=Published(25_557_032, "torchvision, ResNet50_Weights: num_params, _ops", 4_089_000_000),
    )


def bottleneck(net: Images, name: str, width: int, stride: int) -> None:
    """Three convolutions, and one more if the shape of what is added changes."""
    side, channels = net.side, net.channels
    for number, (outputs, kernel, step) in enumerate(((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)), 1):
        net.convolution(f"{name}.conv{number}", outputs, kernel, step)
        net.layers.append(norm(f"{name}.bn{number}", outputs))
    if stride != 1 or channels != 4 * width:
        net.side, net.channels = side, channels
        net.convolution(f"{name}.downsample.0", 4 * width, 1, stride)
        net.layers.append(norm(f"{name}.downsample.1", 4 * width))


BRANCHES_A = (("branch1x1", ((64, 1),)), ("branch5x5", ((48, 1), (64, 5))), ("branch3x3dbl", ((64, 1), (96, 3), (96, 3))))


def inception(
    net: Images, name: str, branches: Sequence[tuple[str, Sequence[tuple[int, int | tuple[int, int]]]]], kept: int = 0
) -> None:
    """Branches of convolutions over one input, whose outputs are put together; ``kept`` channels come from a pooling.

    A branch of several convolutions numbers them. The last ones of a branch that ends in a fork (``2a`` and ``2b``) read the same input.
    """
    side, channels, total = net.side, net.channels, kept
    for branch, convolutions in branches:
        net.side, net.channels = side, channels
        for number, (outputs, kernel) in enumerate(convolutions, 1):
            suffix = f"_{number}" if len(convolutions) > 1 else ""
            net.normed(f"{name}.{branch}{suffix}", outputs, kernel)
        total += net.channels
    net.side, net.channels = side, total


def reduction(net: Images, name: str, branches: Sequence[tuple[str, Sequence[tuple[int, int | tuple[int, int]]]]]) -> None:
    """Branches that end in a convolution of stride 2 without padding, beside a pooling that keeps all channels."""
    side, channels = net.side, net.channels
    total = channels
    for branch, convolutions in branches:
        net.side, net.channels = side, channels
        for number, (outputs, kernel) in enumerate(convolutions, 1):
            suffix = f"_{number}" if len(convolutions) > 1 else ""
            is_last = number == len(convolutions)
            net.normed(f"{name}.{branch}{suffix}", outputs, kernel, 2 if is_last else 1, 0 if is_last else None)
        total += net.channels
    net.channels = total


def forked(net: Images, name: str) -> None:
    """The blocks before the output: two branches end in a fork of a row and a column."""
    side, channels = net.side, net.channels
    net.normed(f"{name}.branch1x1", 320, 1)
    for branch, first, fork in (("branch3x3", ((384, 1),), "2"), ("branch3x3dbl", ((448, 1), (384, 3)), "3")):
        net.channels = channels
        for number, (outputs, kernel) in enumerate(first, 1):
            net.normed(f"{name}.{branch}_{number}", outputs, kernel)
        for end, kernel in (("a", (1, 3)), ("b", (3, 1))):
            net.normed(f"{name}.{branch}_{fork}{end}", 384, kernel)
    net.channels = channels
    net.normed(f"{name}.branch_pool", 192, 1)
    net.side, net.channels = side, 320 + 4 * 384 + 192


def inception_v3() -> Profile:
    """With the auxiliary classifier, as it is trained."""
    net = Images(299)
    for name, outputs, kernel, stride, padding in (
        ("Conv2d_1a_3x3", 32, 3, 2, 0),
        ("Conv2d_2a_3x3", 32, 3, 1, 0),
        ("Conv2d_2b_3x3", 64, 3, 1, 1),
    ):
        net.normed(name, outputs, kernel, stride, padding)
    net.pool(3, 2)
    net.normed("Conv2d_3b_1x1", 80, 1)
    net.normed("Conv2d_4a_3x3", 192, 3, 1, 0)
    net.pool(3, 2)
    for letter, kept in (("b", 32), ("c", 64), ("d", 64)):
        inception(net, f"Mixed_5{letter}", (*BRANCHES_A, ("branch_pool", ((kept, 1),))))
    reduction(net, "Mixed_6a", (("branch3x3", ((384, 3),)), ("branch3x3dbl", ((64, 1), (96, 3), (96, 3)))))
    for letter, width in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        row, column = (width, (1, 7)), (width, (7, 1))
        double = ((width, 1), column, row, column, (192, (1, 7)))
        branches = (("branch1x1", ((192, 1),)), ("branch7x7", ((width, 1), row, (192, (7, 1)))), ("branch7x7dbl", double))
        inception(net, f"Mixed_6{letter}", (*branches, ("branch_pool", ((192, 1),))))
    auxiliary(net)
    seven = ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3))
    reduction(net, "Mixed_7a", (("branch3x3", ((192, 1), (320, 3))), ("branch7x7x3", seven)))
    forked(net, "Mixed_7b")
    forked(net, "Mixed_7c")
    net.layers.append(linear("fc", net.channels, 1000))
    return Profile(
        "Inception-v3",
        "Szegedy et al., Rethinking the Inception architecture for computer vision, 2015, with its auxiliary classifier",
        net.layers,
        sample="an image of 3 x 299 x 299",
        published=Published(27_161_264, "torchvision, Inception_V3_Weights: num_params, _ops", 5_713_000_000),
    )


def auxiliary(net: Images) -> None:
    """The classifier that only trainings have, over the last output of side 17."""
    side, channels = net.side, net.channels
    net.pool(5, 3)
    net.normed("AuxLogits.conv0", 128, 1)
    net.normed("AuxLogits.conv1", 768, 5, 1, 0)
    net.layers.append(linear("AuxLogits.fc", 768, 1000))
    net.side, net.channels = side, channels


def transformer() -> Profile:
    """Blocks of GPT-2, as many and as wide as have 1.37 billion parameters together."""
    width, blocks, tokens, words = 2048, 25, 2048, 50_257
    layers = [embedding("wte", words, width), embedding("wpe", tokens, width)]
    for number in range(blocks):
        name = f"h.{number}"
        # Scores and weighted sums of attention, each of all pairs of tokens.
        layers += [
            norm(f"{name}.ln_1", width),
            linear(f"{name}.attn.c_attn", width, 3 * width, tokens, more=2 * tokens**2 * width),
        ]
        layers += [linear(f"{name}.attn.c_proj", width, width, tokens), norm(f"{name}.ln_2", width)]
        layers += [linear(f"{name}.mlp.c_fc", width, 4 * width, tokens), linear(f"{name}.mlp.c_proj", 4 * width, width, tokens)]
    layers.append(norm("ln_f", width, more=tokens * words * width))  # the output shares the weight of wte
    return Profile(
        "Transformer-1.37B",
        "Radford et al., Language models are unsupervised multitask learners, 2019: its blocks, 25 of width 2,048. The figures of Fairring "
        "are of a transformer of 1.37 billion parameters whose shape they do not give",
        layers,
        sample="2,048 tokens",
        published=Published(1_370_000_000, "Fairring's README: 1.37 B parameters"),
    )


def bert_large() -> Profile:
    """With both heads of its first training; the output shares the weight of the words' embedding."""
    width, tokens, words = 1024, 128, 30_522
    layers = [
        embedding("bert.embeddings.word_embeddings", words, width),
        embedding("bert.embeddings.position_embeddings", 512, width),
        embedding("bert.embeddings.token_type_embeddings", 2, width),
        norm("bert.embeddings.LayerNorm", width),
    ]
    for number in range(24):
        name = f"bert.encoder.layer.{number}"
        layers += [linear(f"{name}.attention.self.{part}", width, width, tokens) for part in ("query", "key")]
        layers.append(linear(f"{name}.attention.self.value", width, width, tokens, more=2 * tokens**2 * width))
        layers += [
            linear(f"{name}.attention.output.dense", width, width, tokens),
            norm(f"{name}.attention.output.LayerNorm", width),
        ]
        layers += [linear(f"{name}.intermediate.dense", width, 4 * width, tokens)]
        layers += [linear(f"{name}.output.dense", 4 * width, width, tokens), norm(f"{name}.output.LayerNorm", width)]
    layers.append(linear("bert.pooler.dense", width, width))
    layers.append(Layer("cls.predictions", [parameter("bias", words)], words * width * tokens))
    layers += [
        linear("cls.predictions.transform.dense", width, width, tokens),
        norm("cls.predictions.transform.LayerNorm", width),
    ]
    layers.append(linear("cls.seq_relationship", width, 2))
    return Profile(
        "BERT-large",
        "Devlin, Chang, Lee and Toutanova, BERT, 2018: the large model, uncased, with the heads of its pre-training",
        layers,
        sample="128 tokens; the word of each is predicted",
        published=Published(340_000_000, "Devlin et al., section 3: 340 M parameters in total"),
    )


MODELS = {
    "alexnet": alexnet,
    "bert-large": bert_large,
    "inception-v3": inception_v3,
    "resnet50": resnet50,
    "transformer-1.37b": transformer,
    "vgg16": vgg16,
}
"""By the names of their files."""


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in MODELS.items():
        profile = made()
        (folder / f"{name}.json").write_text(text(profile))
        print(f"{name}: {profile.elements:,} parameters, {profile.multiply_adds / 1e9:.3f} G multiply-adds", file=sys.stderr)


if __name__ == "__main__":
    main()
