#!/usr/bin/env python3
"""Many dense models at once in JAX: one jitted program, vmapped over the members, with several steps in one scan.

    fusion_jax.py --model mlp --members 64 --steps 32

The strongest published way to train a stacked population on one accelerator. Data on the device; every member draws its own
batches with its own key. Prints one line of JSON, as fusion_torch.py.
"""
import argparse
import json
import time

DENSE = {"tiny": ((16,), 8), "small": ((64, 64), 32), "mlp": ((256, 256), 128)}
LR, MOMENTUM = 0.01, 0.9


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=sorted(DENSE), default="mlp")
    p.add_argument("--members", type=int, default=64)
    p.add_argument("--steps", type=int, default=32, help="in one call")
    p.add_argument("--tf32", action="store_true")
    p.add_argument("--seconds", type=float, default=2)
    args = p.parse_args()
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if args.tf32 else "float32")
    hidden, batch = DENSE[args.model]
    widths = (784, *hidden, 10)
    key = jax.random.key(1)
    x = jax.random.bits(key, (60000, 784), "uint8")  # bytes, as bench/fusion.cpp has its images
    y = jax.random.randint(key, (60000,), 0, 10)

    def init(k):
        out = []
        for a, b in zip(widths, widths[1:]):
            k, kw, kb = jax.random.split(k, 3)
            bound = a ** -0.5
            out.append((jax.random.uniform(kw, (a, b), minval=-bound, maxval=bound),
                        jax.random.uniform(kb, (b,), minval=-bound, maxval=bound)))
        return out

    def loss(params, bx, by):
        h = bx
        for w, b in params[:-1]:
            h = jax.nn.relu(h @ w + b)
        logits = h @ params[-1][0] + params[-1][1]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), by[:, None], 1))

    def step(state, _):
        params, momentum, k = state
        k, draw = jax.random.split(k)
        rows = jax.random.randint(draw, (batch,), 0, x.shape[0])
        grads = jax.grad(loss)(params, x[rows].astype(jnp.float32) / 255, y[rows])
        momentum = jax.tree.map(lambda v, g: MOMENTUM * v + g, momentum, grads)
        params = jax.tree.map(lambda w, v: w - LR * v, params, momentum)
        return (params, momentum, k), ()

    many = jax.jit(jax.vmap(lambda s: jax.lax.scan(step, s, length=args.steps)[0]), donate_argnums=0)
    keys = jax.random.split(key, args.members)
    params = jax.vmap(init)(keys)
    state = (params, jax.tree.map(jnp.zeros_like, params), keys)
    for _ in range(2):
        state = jax.block_until_ready(many(state))
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < args.seconds:
        state = jax.block_until_ready(many(state))
        calls += 1
    rate = calls * args.steps * args.members / (time.perf_counter() - start)
    print(json.dumps({"program": f"jax {jax.__version__}", "mode": "jit(vmap), scan", "model": args.model,
                      "device": jax.devices()[0].platform, "members": args.members, "batch": batch, "tf32": args.tf32,
                      "member_steps_per_second": rate, "samples_per_second": rate * batch}))


if __name__ == "__main__":
    main()
