#!/usr/bin/env python3
"""The models of bench/train.cpp in PyTorch: same data, same batches per core, same optimizer.

PyTorch at its best on a few cores is one process per core with one thread each; its mode with several threads is slower than one
thread here and would be no fair peer. Prints one line of JSON.

    train_torch.py --model mlp --precision fp32 --processes 2 --models 2 --seconds 3
    train_torch.py --model mlp --epochs 10 --seeds 3
"""
import argparse
import collections
import functools
import gzip
import json
import multiprocessing
import os
import time

BATCH = {"mlp": 128, "small": 32, "cnn": 128, "transformer": 64}
LANGUAGES = ["american-english", "french", "italian", "ngerman", "spanish"]
LENGTH, WORDS = 16, 20000


def small(c):
    """A code point in lower case, as Troupe's reader of word lists has it."""
    if 65 <= c <= 90 or (0xC0 <= c <= 0xDE and c != 0xD7) or 0x391 <= c <= 0x3A9 or 0x410 <= c <= 0x42F:
        return c + 32
    if 0x400 <= c <= 0x40F:
        return c + 80
    if c == 0x178:
        return 0xFF
    if (0x100 <= c <= 0x137 or 0x14A <= c <= 0x177) and c % 2 == 0:
        return c + 1
    if (0x139 <= c <= 0x148 or 0x179 <= c <= 0x17E) and c % 2 == 1:
        return c + 1
    return c


def letter(c):
    return 97 <= c <= 122 or (0xC0 <= c < 0x250 and c not in (0xD7, 0xF7)) or 0x370 <= c < 0x2000


def fnv(word):
    h = 0xCBF29CE484222325
    for byte in word:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def load_words(folder, part):
    """The data set "languages" of Troupe at its defaults, word for word (docs/workloads.md says how it is made)."""
    import numpy as np
    import torch

    lists = []
    for name in LANGUAGES:
        with open(os.path.join(folder, name), "rb") as f:
            raw = f.read()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
        words = set()
        for line in text.replace("\r", "\n").split("\n"):
            points = [small(ord(c)) for c in line]
            if len(points) >= 2 and all(letter(c) for c in points):
                words.add("".join(map(chr, points)).encode())
        lists.append(words)
    seen = collections.Counter(w for words in lists for w in words)
    rows, labels = [], []
    for label, words in enumerate(lists):
        own = sorted((fnv(w), w) for w in words if seen[w] == 1)[:WORDS]
        held = len(own) // 10
        for _, w in own[:len(own) - held] if part == "train" else own[len(own) - held:]:
            rows.append(w[:LENGTH].ljust(LENGTH, b"\0"))
            labels.append(label)
    x = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, LENGTH).astype("int64")
    return torch.from_numpy(x), torch.tensor(labels)


@functools.cache  # one class, so that models of it can be stacked
def transformer_class(vocabulary=256, width=64, heads=4, layers=2, hidden=256, classes=len(LANGUAGES)):
    """Troupe's transformer, from PyTorch's fastest pieces: one product for queries, keys and values, and its own attention."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
            nn.init.zeros_(self.qkv.bias), nn.init.zeros_(self.projection.bias)

        def forward(self, x, mask):
            n, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + self.projection(mixed.transpose(1, 2).reshape(n, t, d))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            bound = width ** -0.5
            self.tokens = nn.Parameter(torch.empty(vocabulary, width).uniform_(-bound, bound))
            self.positions = nn.Parameter(torch.empty(LENGTH, width).uniform_(-bound, bound))
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, tokens):
            real = tokens != 0
            mask = real[:, None, None, :]
            x = functional.embedding(tokens, self.tokens) + self.positions
            for layer in self.layers:
                x = layer(x, mask)
            share = real / real.sum(1, keepdim=True)
            return self.output((self.norm(x) * share.unsqueeze(2)).sum(1))

    return Classifier


def load(args, part):
    if args.model == "transformer":
        return load_words(args.words, {"t10k": "test"}.get(part, part))
    import numpy as np
    import torch

    folder = args.data

    def read(name, skip):
        with gzip.open(os.path.join(folder, name)) as f:
            return np.frombuffer(f.read(), np.uint8, offset=skip)

    images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    labels = read(f"{part}-labels-idx1-ubyte.gz", 8)
    x = torch.from_numpy((images / 255.0 - 0.2860) / 0.3530).float()
    return x, torch.from_numpy(labels.astype("int64"))


def make_model(name):
    from torch import nn

    if name == "transformer":
        return transformer_class()()
    if name == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
    width = 64 if name == "small" else 256
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


class Trainer:
    def __init__(self, args, x, y, seed, lr):
        import torch

        torch.manual_seed(seed)
        self.torch, self.args, self.x, self.y = torch, args, x, y
        self.model = make_model(args.model)
        if args.model == "cnn" and args.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        if args.model == "transformer":
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr / 10, weight_decay=0.01, fused=True)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.loss = torch.nn.CrossEntropyLoss()
        self.forward = torch.compile(self.model) if args.compile else self.model
        self.order, self.at = None, len(x)

    def step(self):
        torch, b = self.torch, BATCH[self.args.model]
        if self.order is None or self.at + b > len(self.x):
            self.order, self.at = torch.randperm(len(self.x)), 0
        rows = self.order[self.at:self.at + b]
        self.at += b
        self.optimizer.zero_grad(set_to_none=True)
        if self.args.precision == "bf16":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = self.loss(self.forward(self.x[rows]), self.y[rows])
        else:
            loss = self.loss(self.forward(self.x[rows]), self.y[rows])
        loss.backward()
        self.optimizer.step()


class Stacked:
    """All models of a process in batched products (as HFTA does), for the dense networks in fp32."""

    def __init__(self, args, x, y, seed, count):
        import torch

        torch.manual_seed(seed)
        self.torch, self.args, self.x, self.y, self.count = torch, args, x, y, count
        models = [make_model(args.model) for _ in range(count)]
        linear = [[m for m in model if isinstance(m, torch.nn.Linear)] for model in models]
        self.params = []
        for layer in zip(*linear):
            self.params.append(torch.nn.Parameter(torch.stack([m.weight.detach().t() for m in layer]).contiguous()))
            self.params.append(torch.nn.Parameter(torch.stack([m.bias.detach() for m in layer]).unsqueeze(1)))
        self.momentum = [torch.zeros_like(p) for p in self.params]
        self.lr = torch.tensor([0.01 * (1 + k % 3) for k in range(count)]).view(-1, 1, 1)
        self.orders, self.at = None, len(x)

    def step(self):
        torch, b, k = self.torch, BATCH[self.args.model], self.count
        if self.orders is None or self.at + b > len(self.x):
            self.orders, self.at = torch.stack([torch.randperm(len(self.x)) for _ in range(k)]), 0
        rows = self.orders[:, self.at:self.at + b].reshape(-1)
        self.at += b
        w1, b1, w2, b2, w3, b3 = self.params
        h = torch.baddbmm(b1, self.x[rows].view(k, b, -1), w1).relu()
        h = torch.baddbmm(b2, h, w2).relu()
        out = torch.baddbmm(b3, h, w3)
        loss = torch.nn.functional.cross_entropy(out.reshape(k * b, -1), self.y[rows]) * k
        grads = torch.autograd.grad(loss, self.params)
        with torch.no_grad():
            torch._foreach_mul_(self.momentum, 0.9)
            torch._foreach_add_(self.momentum, grads)
            for p, v in zip(self.params, self.momentum):
                p.sub_(v * self.lr)


def work(args, index, barrier, results):
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # PyTorch's best: dead units' momentum decays into them
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[index % len(cores)]})
    x, y = load(args, "train")
    if args.epochs:
        accuracy(args, index, x, y, results)
        return
    if args.stacked:
        models, per_step = [Stacked(args, x, y, 100 + index, args.models)], args.models
    else:
        models = [Trainer(args, x, y, 100 * index + k, 0.01 * (1 + k % 3)) for k in range(args.models)]
        per_step = 1
    for m in models:
        for _ in range(32):
            m.step()
    barrier.wait()
    start, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < args.seconds:
        for m in models:
            for _ in range(4):
                m.step()
        steps += 4 * len(models) * per_step
    samples = steps * BATCH[args.model]
    results.put((index, samples / (time.perf_counter() - start), samples / (time.process_time() - cpu)))
    barrier.wait()


def accuracy(args, index, x, y, results):
    import torch

    held_x, held_y = load(args, "t10k")
    for seed in range(index, args.seeds, args.processes):
        t = Trainer(args, x, y, 1 + seed, args.lr)
        for _ in range(args.epochs * (len(x) // BATCH[args.model])):
            t.step()
        t.model.eval()
        with torch.no_grad():
            right = sum((t.model(held_x[i:i + 1000]).argmax(1) == held_y[i:i + 1000]).sum().item()
                        for i in range(0, len(held_x), 1000))
        results.put((seed, right / len(held_x)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=sorted(BATCH), default="mlp")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--models", type=int, default=2, help="per process")
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--stacked", action="store_true", help="batched products over the models (dense networks, fp32)")
    p.add_argument("--compile", action="store_true", help="torch.compile")
    p.add_argument("--channels-last", action="store_true", help="NHWC for the CNN")
    p.add_argument("--epochs", type=int, default=0, help="measure accuracy after this many instead of speed")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--data", default=os.path.join(os.environ.get("TROUPE_DATA_DIR") or "/usr/share/datasets", "fashion-mnist"))
    p.add_argument("--words", default="/usr/share/dict", help="the folder of the transformer's word lists")
    args = p.parse_args()
    if args.stacked and (args.model not in ("mlp", "small") or args.precision != "fp32"):
        p.error("--stacked is for the dense networks in fp32")

    # Before torch starts its pools.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    ctx = multiprocessing.get_context("spawn")
    barrier, results = ctx.Barrier(args.processes), ctx.Queue()
    children = [ctx.Process(target=work, args=(args, i, barrier, results)) for i in range(args.processes)]
    for c in children:
        c.start()
    found = [results.get(timeout=3600) for _ in range(args.seeds if args.epochs else args.processes)]
    for c in children:
        c.join()

    import torch
    out = {"program": f"torch {torch.__version__}", "model": args.model, "precision": args.precision, "threads": args.processes,
           "batch": BATCH[args.model],
           "mode": "stacked" if args.stacked else "compile" if args.compile else "eager"}
    if args.epochs:
        out.update(epochs=args.epochs, lr=args.lr, accuracy=[a for _, a in sorted(found)])
    else:
        out.update(models_per_thread=args.models, samples_per_second=sum(r for _, r, _ in found),
                   samples_per_cpu_second=sum(c for _, _, c in found))
    print(json.dumps(out))


if __name__ == "__main__":
    main()
