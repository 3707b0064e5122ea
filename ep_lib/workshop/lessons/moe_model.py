"""The language model of ``ep-lib demo`` and notebook 09, and its training text.

The text is the help topics that every Python ships (``help("for")`` reads :mod:`pydoc_data.topics`). The split is by
topic and depends on the names alone: every eighth topic, in alphabetical order, is held out. Topics overlap
(``compound`` repeats ``for`` and ``try`` word for word), so every paragraph of a held-out topic is removed from the
training part as well; otherwise the held-out loss would reward memorising.

The model is a small byte-level language model whose feed-forward layers are Mixtures of Experts. A block is a causal
convolution over the last few bytes, causal self-attention, and the MoE layer, each added to the stream: small enough to
learn readable English from the help topics in seconds on two CPU cores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from ep_lib.errors import ArgumentError, BackendUnavailable
from ep_lib.moe import routing as library_router
from ep_lib.moe.layer import ExpertBuffer, MoELayer
from ep_lib.moe.routing import Router, Routing

HELD_OUT_EVERY = 8  # one topic in eight is held out
_HELD_OUT_FIRST = 3  # 'atom-identifiers' in Python 3.11; the first topics are very short
_MINIMUM_BYTES = 4096  # less text than this is not worth training on

VOCABULARY = 256  # one symbol per byte value
BALANCE_WEIGHT = 0.02  # of the load-balancing loss, per layer
_PEAK_LEARNING_RATE = 1e-2
_WARM_UP_STEPS = 10
_CLIP_NORM = 1.0
_RESIDUAL_GAIN = 0.1  # small outputs at the start: each block then changes almost nothing

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TextSplit:
    """Training and held-out text as flat ``uint8`` arrays, and the names of the held-out topics."""

    train: Bytes
    held_out: Bytes
    held_out_topics: tuple[str, ...]


def load_text(topics: dict[str, str] | None = None) -> TextSplit:
    """Split ``topics`` (name to text; default: those of the running Python) into training and held-out bytes.

    Raises :class:`BackendUnavailable` if this Python ships no topics and :class:`ArgumentError` if one of the two parts
    has too little text.
    """
    if topics is None:
        topics = _python_topics()
    names = sorted(topics)
    held_out_names = names[_HELD_OUT_FIRST::HELD_OUT_EVERY]
    seen: set[str] = set()
    held_out = _unique_paragraphs([topics[name] for name in held_out_names], seen)
    train = _unique_paragraphs([topics[name] for name in names if name not in set(held_out_names)], seen)
    split = TextSplit(_join(train), _join(held_out), tuple(held_out_names))
    if min(split.train.size, split.held_out.size) < _MINIMUM_BYTES:
        raise ArgumentError(
            f"too little text: {split.train.size} bytes to train on and {split.held_out.size} held out from "
            f"{len(names)} topics; each part needs at least {_MINIMUM_BYTES} bytes"
        )
    return split


def windows(text: Bytes, count: int, length: int) -> Bytes:
    """``count`` windows of ``length`` bytes, evenly spaced over ``text``: ``uint8 [count, length]``."""
    if count < 1 or length < 1 or text.size < length:
        raise ArgumentError(f"cannot cut {count} windows of {length} bytes from a text of {text.size} bytes")
    starts = np.linspace(0, text.size - length, count).astype(np.int64)
    cut: Bytes = text[starts[:, None] + np.arange(length)]
    return cut


def random_windows(text: Bytes, count: int, length: int, generator: np.random.Generator) -> Bytes:
    """``count`` windows of ``length`` bytes at places drawn from ``generator``: ``uint8 [count, length]``."""
    if count < 1 or length < 1 or text.size < length:
        raise ArgumentError(f"cannot cut {count} windows of {length} bytes from a text of {text.size} bytes")
    starts = generator.integers(0, text.size - length + 1, size=count)
    cut: Bytes = text[starts[:, None] + np.arange(length)]
    return cut


def printable(data: Bytes | bytes) -> str:
    """Bytes as text for a terminal: UTF-8 where it is valid, a replacement mark elsewhere, no control characters."""
    decoded = bytes(data).decode("utf-8", errors="replace")
    return "".join(letter if letter == "\n" or letter.isprintable() else "\N{MIDDLE DOT}" for letter in decoded)


def _python_topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise BackendUnavailable(
            "this Python ships no pydoc_data.topics, the demo's text; install the full standard library "
            "(Debian: libpython3-stdlib) or use another Python"
        ) from error
    return dict(topics)


def _unique_paragraphs(texts: list[str], seen: set[str]) -> list[str]:
    """The paragraphs of ``texts`` in order, without those whose words are in ``seen``, to which it adds the others."""
    kept: list[str] = []
    for text in texts:
        for paragraph in text.strip("\n").split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                kept.append(paragraph.strip("\n"))
    return kept


def _join(paragraphs: list[str]) -> Bytes:
    return np.frombuffer("\n\n".join(paragraphs).encode("utf-8"), dtype=np.uint8)


# ---- the model -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ModelConfig:
    """Sizes. ``context``: the number of bytes that the model sees; ``conv_width``: that the convolution sees."""

    hidden: int = 64
    ffn: int = 128
    layers: int = 2
    heads: int = 4
    num_experts: int = 16
    top_k: int = 2
    context: int = 128
    conv_width: int = 6


class Block(nn.Module):
    """Convolution, attention, experts; each reads the normalised stream and adds to it."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        hidden = config.hidden
        self.heads = config.heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.conv = nn.Parameter(_normal(generator, hidden, 1, config.conv_width, scale=config.conv_width**-0.5))
        self.conv_out = nn.Parameter(_normal(generator, hidden, hidden, scale=_RESIDUAL_GAIN * hidden**-0.5))
        self.qkv = nn.Parameter(_normal(generator, 3 * hidden, hidden, scale=hidden**-0.5))
        self.attention_out = nn.Parameter(_normal(generator, hidden, hidden, scale=_RESIDUAL_GAIN * hidden**-0.5))
        self.moe = MoELayer.create(hidden, config.ffn, config.num_experts, config.top_k, generator)

    def forward(self, x: Tensor, buffer: ExpertBuffer | None, router: Router) -> tuple[Tensor, Routing]:
        """``x`` float32 ``[sequences, context, hidden]``."""
        x = x + self._convolution(self.norms[0](x))
        x = x + self._attention(self.norms[1](x))
        y, routing = self.moe(self.norms[2](x).reshape(-1, x.shape[-1]), buffer, router)
        return x + y.view_as(x), routing

    def _convolution(self, x: Tensor) -> Tensor:
        width = self.conv.shape[-1]
        padded = functional.pad(x, (0, 0, width - 1, 0))  # zeros before the first byte: it sees no future
        length = x.shape[1]
        mixed = sum(padded[:, shift : shift + length] * self.conv[:, 0, shift] for shift in range(width))
        return functional.linear(functional.gelu(torch.as_tensor(mixed)), self.conv_out)

    def _attention(self, x: Tensor) -> Tensor:
        sequences, length, hidden = x.shape
        qkv = functional.linear(x, self.qkv).view(sequences, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.linear(mixed.transpose(1, 2).reshape(sequences, length, hidden), self.attention_out)


class ByteMoE(nn.Module):
    """The language model. ``forward(text, buffer=None, router=...)`` with int64 ``[sequences, length]`` gives logits
    ``[sequences, length, 256]`` and one :class:`Routing` per layer; zero sequences are fine."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(_normal(generator, VOCABULARY, config.hidden, scale=0.5))
        self.position = nn.Parameter(_normal(generator, config.context, config.hidden, scale=0.1))
        self.blocks: list[Block] = nn.ModuleList(Block(config, generator) for _ in range(config.layers))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Parameter(torch.zeros(VOCABULARY, config.hidden))

    def forward(
        self, text: Tensor, buffer: ExpertBuffer | None = None, router: Router = library_router
    ) -> tuple[Tensor, list[Routing]]:
        x = functional.embedding(text, self.embedding) + self.position[: text.shape[1]]
        routings = []
        for block in self.blocks:
            x, routing = block(x, buffer, router)
            routings.append(routing)
        return functional.linear(self.norm(x), self.head), routings

    def shard(self, rank: int, world_size: int) -> ByteMoE:
        """The model of one rank: everything but the experts replicated, and a copy of that rank's experts."""
        own = {id(block.moe): block.moe.shard(rank, world_size) for block in self.blocks}
        return copy.deepcopy(self, own)  # deepcopy treats every MoE layer as already copied: as this rank's shard


def _normal(generator: torch.Generator, *shape: int, scale: float) -> Tensor:
    return torch.randn(*shape, generator=generator) * scale


@dataclass(frozen=True)
class TrainingStep:
    """The losses of a step: mean cross-entropy in nats per byte, and the balance loss."""

    step: int
    loss: float
    balance: float


class AdamW:
    """Bit-identical to torch.optim.AdamW, for parameters on the CPU. torch's own imports torch's compiler, which takes
    four seconds: longer than the demo's training."""

    def __init__(self, parameters: Iterable[Tensor], betas: tuple[float, float], weight_decay: float) -> None:
        self._state = [(each, torch.zeros_like(each), torch.zeros_like(each)) for each in parameters]
        self._betas, self._weight_decay, self._eps = betas, weight_decay, 1e-8
        self._steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step along the gradients; a parameter without one is unchanged. Clears them."""
        self._steps += 1
        first, second = self._betas
        step_size = learning_rate / (1 - first**self._steps)
        for parameter, mean, square in self._state:
            if (gradient := parameter.grad) is None:
                continue
            parameter.mul_(1 - learning_rate * self._weight_decay)
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            scale = (square.sqrt() / (1 - second**self._steps) ** 0.5).add_(self._eps)
            parameter.addcdiv_(mean, scale, value=-step_size)
            parameter.grad = None


def train(
    model: ByteMoE,
    text: Bytes,
    *,
    steps: int,
    batch: int,
    seed: int,
    on_step: Callable[[TrainingStep], None] | None = None,
    router: Router = library_router,
    balance_weight: float = BALANCE_WEIGHT,
) -> list[TrainingStep]:
    """Train in place with AdamW; batches are drawn from ``seed``. Returns one :class:`TrainingStep` per step.

    ``router``: the module that chooses experts and gives the balance loss, the library's or a learner's.
    """
    optimizer = AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = min(_WARM_UP_STEPS, max(1, steps // 4))
    batches = np.random.default_rng(seed)
    history = []
    for step in range(steps):
        cosine = 0.5 * (1 + np.cos(np.pi * step / steps))
        learning_rate = _PEAK_LEARNING_RATE * min((step + 1) / warm_up, float(cosine))
        drawn = random_windows(text, batch, model.config.context + 1, batches)
        data = torch.from_numpy(drawn.astype(np.int64))
        logits, routings = model(data[:, :-1], router=router)
        loss = cross_entropy(logits, data[:, 1:], "mean")
        balance = torch.stack([router.load_balancing_loss(routing) for routing in routings]).mean()
        (loss + balance_weight * len(routings) * balance).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step(learning_rate)
        history.append(TrainingStep(step + 1, float(loss.detach()), float(balance.detach())))
        if on_step is not None:
            on_step(history[-1])
    return history


def cross_entropy(logits: Tensor, target: Tensor, reduction: str) -> Tensor:
    """Next-byte cross-entropy in nats; ``logits`` ``[..., 256]``, ``target`` int64 ``[...]``."""
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), target.reshape(-1), reduction=reduction)


@torch.no_grad()
def evaluate(model: ByteMoE, data: Bytes) -> tuple[float, list[Routing]]:
    """Mean next-byte cross-entropy (nats) with all experts here; ``data`` uint8 ``[sequences, context + 1]``."""
    text = torch.from_numpy(data.astype(np.int64))
    logits, routings = model(text[:, :-1])
    return float(cross_entropy(logits, text[:, 1:], "sum").double()) / text[:, 1:].numel(), routings


@torch.no_grad()
def generate(
    model: ByteMoE,
    prompt: bytes,
    length: int,
    *,
    seed: int,
    temperature: float = 0.7,
    buffer: ExpertBuffer | None = None,
) -> bytes:
    """``prompt`` and ``length`` bytes more, sampled with a generator of its own seeded by ``seed``. With a ``buffer``
    all ranks call, with the same length."""
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt)
    for _ in range(length):
        window = torch.tensor([text[-model.config.context :]], device=model.head.device)
        logits = model(window, buffer)[0][0, -1].cpu() / temperature
        text.append(int(torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)))
    return bytes(text)
