#!/usr/bin/env python3
"""Many small models at once in PyTorch, in every way that PyTorch offers, on a CPU or a GPU: the peers of bench/fusion.cpp.

    fusion_torch.py --device cpu --model small --members 16 --mode stacked
    fusion_torch.py --device cuda --model mlp --members 64 --mode graph --data random

Modes: eager (one model after the other), compile (torch.compile of each), vmap (torch.func over stacked modules), stacked (batched
products and grouped convolutions written by hand, as HFTA does), graph (stacked, one step captured as a CUDA graph and
replayed). On a CPU the members are shared out among processes of one thread each, PyTorch's best there. Prints one line of JSON.
"""
import argparse
import json
import multiprocessing
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# As in bench/fusion.cpp: widths of the hidden layers, batch.
DENSE = {"tiny": ((16,), 8), "small": ((64, 64), 32), "mlp": ((256, 256), 128)}
BATCH = {**{k: b for k, (_, b) in DENSE.items()}, "cnn": 128, "transformer": 64}
LR, MOMENTUM = 0.01, 0.9
# Of the transformer, which trains with AdamW; the rest is PyTorch's default.
ADAM_LR, DECAY, BETA1, BETA2, EPSILON = 0.001, 0.01, 0.9, 0.999, 1e-8


def load(args, torch):
    import train_torch

    g = torch.Generator().manual_seed(1)
    if args.model == "transformer" and args.data == "random":
        x, y = torch.randint(1, 256, (60000, train_torch.LENGTH), generator=g), torch.randint(5, (60000,), generator=g)
        x[torch.arange(train_torch.LENGTH) >= torch.randint(8, train_torch.LENGTH + 1, (60000, 1), generator=g)] = 0  # padding
    elif args.data == "random" and args.device != "cpu":  # bytes, as bench/fusion.cpp has its images
        x, y = torch.randint(256, (60000, 784), generator=g, dtype=torch.uint8), torch.randint(10, (60000,), generator=g)
    elif args.data == "random":
        x, y = torch.rand(60000, 784, generator=g), torch.randint(10, (60000,), generator=g)
    else:
        x, y = train_torch.load(args, "train")
    return x.to(args.device), y.to(args.device)


def examples(torch, x):
    """What a step gathered, as models take it: images that lie on the device as bytes become numbers from 0 to 1."""
    return x.to(torch.float32).mul_(1 / 255) if x.dtype == torch.uint8 else x


def make_model(name):
    from torch import nn

    if name in ("cnn", "transformer"):
        import train_torch
        return train_torch.make_model(name)
    widths = (784, *DENSE[name][0])
    layers = [m for a, b in zip(widths, widths[1:]) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


class Batches:
    """The next batch of each member: every member has its own order of the data."""

    def __init__(self, torch, examples, batch, members, device):
        self.torch, self.n, self.b, self.k, self.device = torch, examples, batch, members, device
        self.orders, self.at = None, examples

    def rows(self):
        if self.orders is None or self.at + self.b > self.n:
            self.orders = self.torch.stack([self.torch.randperm(self.n, device=self.device) for _ in range(self.k)])
            self.at = 0
        out = self.orders[:, self.at:self.at + self.b]
        self.at += self.b
        return out


class Alone:
    """One model after the other: what people write first."""

    def __init__(self, torch, args, x, y, members):
        self.torch, self.x, self.y = torch, x, y
        self.models = [make_model(args.model).to(args.device) for _ in range(members)]
        self.steps = [torch.compile(m, mode="reduce-overhead" if args.device != "cpu" else None) if args.mode == "compile"
                      else m for m in self.models]
        if args.model == "transformer":
            self.optimizers = [torch.optim.AdamW(m.parameters(), lr=ADAM_LR, weight_decay=DECAY, fused=True) for m in self.models]
        else:
            self.optimizers = [torch.optim.SGD(m.parameters(), lr=LR, momentum=MOMENTUM) for m in self.models]
        self.loss = torch.nn.CrossEntropyLoss()
        self.batches = Batches(torch, len(x), BATCH[args.model], members, args.device)

    def step(self):
        for model, optimizer, rows in zip(self.steps, self.optimizers, self.batches.rows()):
            optimizer.zero_grad(set_to_none=True)
            self.loss(model(examples(self.torch, self.x[rows])), self.y[rows]).backward()
            optimizer.step()


class Sgd:
    """With momentum, over all tensors in a few calls."""

    def __init__(self, torch, params):
        self.torch, self.params, self.momentum = torch, params, [torch.zeros_like(p) for p in params]

    def step(self, grads):
        with self.torch.no_grad():
            self.torch._foreach_mul_(self.momentum, MOMENTUM)
            self.torch._foreach_add_(self.momentum, grads)
            self.torch._foreach_add_([p.data for p in self.params], self.momentum, alpha=-LR)


class FusedAdamW:
    """PyTorch's fused kernel over stacked tensors."""

    def __init__(self, torch, params):
        self.params = params
        self.inner = torch.optim.AdamW(params, lr=ADAM_LR, weight_decay=DECAY, betas=(BETA1, BETA2), eps=EPSILON, fused=True,
                                       capturable=params[0].is_cuda)

    def step(self, grads):
        for p, g in zip(self.params, grads):
            p.grad = g.contiguous()
        self.inner.step()


def optimizer(torch, args, params):
    return (FusedAdamW if args.model == "transformer" else Sgd)(torch, params)


class Vmapped:
    def __init__(self, torch, args, x, y, members):
        from torch.func import functional_call, grad, stack_module_state, vmap

        self.torch, self.x, self.y = torch, x, y
        models = [make_model(args.model).to(args.device) for _ in range(members)]
        params, _ = stack_module_state(models)
        self.params = {k: v.detach() for k, v in params.items()}
        self.optimizer = optimizer(torch, args, list(self.params.values()))
        base = make_model(args.model).to("meta")

        def loss(p, bx, by):
            return torch.nn.functional.cross_entropy(functional_call(base, p, (bx,)), by)

        self.gradients = vmap(grad(loss))
        self.batches = Batches(torch, len(x), BATCH[args.model], members, args.device)

    def step(self):
        torch, rows = self.torch, self.batches.rows()
        grads = self.gradients(self.params, examples(torch, self.x[rows]), self.y[rows])
        self.optimizer.step([grads[k] for k in self.params])


class Dense:
    """K times y = x W + b as one batched product."""

    def __init__(self, torch, add, layers):
        self.torch = torch
        self.w = add(torch.stack([m.weight.detach().t() for m in layers]).contiguous())
        self.b = add(torch.stack([m.bias.detach() for m in layers]).unsqueeze(1))

    def __call__(self, x):  # [K, rows, in]
        return self.torch.baddbmm(self.b, x, self.w)


class Norm:
    """One normalisation over all members' rows; scale and shift are each member's own."""

    def __init__(self, torch, add, layers):
        self.torch = torch
        self.w, self.b = (add(torch.stack([getattr(m, n).detach() for m in layers]).unsqueeze(1)) for n in ("weight", "bias"))

    def __call__(self, x):
        return self.torch.addcmul(self.b, self.torch.nn.functional.layer_norm(x, x.shape[-1:]), self.w)


class StackedTransformer:
    """train_torch.transformer_class for K members, [K, texts * tokens, width]: batched products, one attention over all."""

    def __init__(self, torch, models, params):
        def add(p):
            params.append(torch.nn.Parameter(p.clone()))
            return params[-1]

        self.torch, self.k = torch, len(models)
        self.tokens = add(torch.cat([m.tokens.detach() for m in models]))
        self.positions = add(torch.stack([m.positions.detach() for m in models]))
        self.vocabulary = models[0].tokens.shape[0]
        self.first = torch.arange(self.k, device=self.tokens.device).view(-1, 1, 1) * self.vocabulary
        self.layers = [{name: kind(torch, add, [getattr(m.layers[i], name) for m in models])
                        for name, kind in (("norm1", Norm), ("qkv", Dense), ("projection", Dense), ("norm2", Norm), ("up", Dense),
                                           ("down", Dense))} for i in range(len(models[0].layers))]
        self.norm, self.output = Norm(torch, add, [m.norm for m in models]), Dense(torch, add, [m.output for m in models])

    def __call__(self, tokens, heads=4):  # [K, texts, tokens]
        functional, (k, n, t) = self.torch.nn.functional, tokens.shape
        real = tokens != 0
        mask = real.view(k * n, 1, 1, t)
        x = functional.embedding(tokens + self.first, self.tokens) + self.positions.unsqueeze(1)
        x = x.view(k, n * t, -1)
        d = x.shape[2]
        for at in self.layers:
            q, key, v = at["qkv"](at["norm1"](x)).view(k * n, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, key, v, attn_mask=mask)
            x = x + at["projection"](mixed.transpose(1, 2).reshape(k, n * t, d))
            x = x + at["down"](functional.gelu(at["up"](at["norm2"](x)), approximate="tanh"))
        share = real / real.sum(2, keepdim=True)
        return self.output((self.norm(x).view(k, n, t, d) * share.unsqueeze(3)).sum(2))


class Stacked:
    """Linear layers as batched products, convolutions as grouped ones; one optimizer step over all members."""

    def __init__(self, torch, args, x, y, members):
        self.torch, self.args, self.x, self.y, self.k = torch, args, x, y, members
        self.b = BATCH[args.model]
        models = [make_model(args.model).to(args.device) for _ in range(members)]
        self.plan, self.params = [], []
        self.transformer = StackedTransformer(torch, models, self.params) if args.model == "transformer" else None
        for layer in zip(*[list(m) for m in models]) if not self.transformer else ():
            first = layer[0]
            if isinstance(first, torch.nn.Linear):
                w = torch.stack([m.weight.detach().t() for m in layer]).contiguous()
                bias = torch.stack([m.bias.detach() for m in layer]).unsqueeze(1)
                self.add("linear", w, bias)
            elif isinstance(first, torch.nn.Conv2d):
                self.add("conv", torch.cat([m.weight.detach() for m in layer]), torch.cat([m.bias.detach() for m in layer]))
            else:
                self.plan.append((type(first).__name__, None))
        self.optimizer = optimizer(torch, args, self.params)
        self.batches = Batches(torch, len(x), self.b, members, args.device)
        self.rows = torch.empty(members * self.b, dtype=torch.long, device=args.device)
        self.graph = self.capture() if args.mode == "graph" else None

    def add(self, kind, w, bias):
        for p in (w, bias):
            self.params.append(self.torch.nn.Parameter(p.clone()))
        self.plan.append((kind, len(self.params) - 2))

    def forward(self, h):
        torch, k, b = self.torch, self.k, self.b
        if self.transformer:
            return self.transformer(h)
        for kind, at in self.plan:
            if kind == "linear":
                h = torch.baddbmm(self.params[at + 1], h, self.params[at])
            elif kind == "ReLU":
                h = h.relu()
            elif kind == "Unflatten":
                h = h.view(k, b, 1, 28, 28).transpose(0, 1).reshape(b, k, 28, 28)
            elif kind == "conv":
                h = torch.nn.functional.conv2d(h, self.params[at], self.params[at + 1], padding=1, groups=k)
            elif kind == "MaxPool2d":
                h = torch.nn.functional.max_pool2d(h, 2)
            else:  # Flatten
                h = h.reshape(b, k, -1).transpose(0, 1)
        return h

    def train(self):
        torch = self.torch
        out = self.forward(examples(torch, self.x[self.rows]).view(self.k, self.b, -1))
        loss = torch.nn.functional.cross_entropy(out.reshape(self.k * self.b, -1), self.y[self.rows]) * self.k
        grads = torch.autograd.grad(loss, self.params)
        self.optimizer.step(grads)

    def capture(self):
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.rows.copy_(self.batches.rows().reshape(-1))
                self.train()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.train()
        return graph

    def step(self):
        self.rows.copy_(self.batches.rows().reshape(-1))
        self.graph.replay() if self.graph else self.train()


KINDS = {"eager": Alone, "compile": Alone, "vmap": Vmapped, "stacked": Stacked, "graph": Stacked}


def work(args, index, members, barrier, results):
    import torch

    torch.manual_seed(1 + index)
    torch.set_flush_denormal(True)  # PyTorch's best: dead units' momentum decays into them
    if args.device == "cpu":
        torch.set_num_threads(1)
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[index % len(cores)]})
    elif args.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    x, y = load(args, torch)
    group = KINDS[args.mode](torch, args, x, y, members)
    wait = torch.cuda.synchronize if args.device != "cpu" else (lambda: None)
    for _ in range(args.warm_up):
        group.step()
    wait()
    barrier.wait()
    start, steps = time.perf_counter(), 0
    while True:
        for _ in range(args.chunk):
            group.step()
        steps += args.chunk
        wait()
        seconds = time.perf_counter() - start
        if seconds >= args.seconds:
            break
    results.put(steps * members / seconds)
    barrier.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=sorted(BATCH), default="small")
    p.add_argument("--mode", choices=sorted(KINDS), default="eager")
    p.add_argument("--members", type=int, default=16)
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--tf32", action="store_true", help="GPU: products on tensor cores")
    p.add_argument("--processes", type=int, default=2, help="CPU: of one thread each")
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--chunk", type=int, default=4, help="steps of all members between two looks at the clock")
    p.add_argument("--warm-up", type=int, default=16)
    p.add_argument("--data", default=os.path.join(os.environ.get("TROUPE_DATA_DIR") or "/usr/share/datasets", "fashion-mnist"),
                   help="folder of Fashion-MNIST, or \"random\"")
    p.add_argument("--words", default="/usr/share/dict", help="the folder of the transformer's word lists")
    args = p.parse_args()
    if args.mode == "graph" and args.device == "cpu":
        p.error("--mode graph needs --device cuda")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before torch starts its pools
        os.environ[name] = "1"
    count = min(args.processes, args.members) if args.device == "cpu" else 1
    shares = [args.members // count + (i < args.members % count) for i in range(count)]
    ctx = multiprocessing.get_context("spawn")
    barrier, results = ctx.Barrier(count), ctx.Queue()
    children = [ctx.Process(target=work, args=(args, i, shares[i], barrier, results)) for i in range(count)]
    for c in children:
        c.start()
    rates = []
    while len(rates) < count:
        try:
            rates.append(results.get(timeout=1))
        except Exception:  # queue.Empty; a child that died says why on stderr
            if any(c.exitcode not in (None, 0) for c in children):
                for c in children:
                    c.kill()
                sys.exit("fusion_torch: a process failed")
    for c in children:
        c.join()
    import torch
    print(json.dumps({"program": f"torch {torch.__version__}", "mode": args.mode, "model": args.model, "device": args.device,
                      "members": args.members, "batch": BATCH[args.model], "processes": count, "tf32": args.tf32,
                      "member_steps_per_second": sum(rates), "samples_per_second": sum(rates) * BATCH[args.model]}))


if __name__ == "__main__":
    main()
