"""FedJAX in one process: its federated averaging, each step compiled (backend jit)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import fedjax
import haiku as hk
import jax
from common import WORK, data, say, serve
from fedjax.algorithms import fed_avg


def network(batch: dict[str, Any]) -> Any:
    """Return the logits; images have their channel last."""
    out = batch["x"]
    if WORK["model"] != "logistic":
        for channels in (10, 20):
            out = hk.Conv2D(channels, 5, padding="VALID")(out)
            out = jax.nn.relu(hk.max_pool(out, 2, 2, "VALID"))
        out = jax.nn.relu(hk.Linear(50)(out.reshape(out.shape[0], -1)))
    return hk.Linear(10)(out.reshape(out.shape[0], -1))


def main() -> None:
    """Run rounds until nobody asks for more."""
    x, y = data()
    x, y = x.transpose(0, 1, 3, 4, 2).copy(), y.astype("int32")
    dealt = fedjax.InMemoryFederatedData({b"%05d" % i: {"x": x[i], "y": y[i]} for i in range(WORK["clients"])})
    sample = {"x": x[0, :1], "y": y[0, :1]}
    model = fedjax.create_model_from_haiku(
        hk.transform(network), sample, lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out)
    )
    fedjax.set_for_each_client_backend("jit")
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(WORK["lr"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=WORK["batch"], num_epochs=WORK["epochs"]),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(dealt, WORK["sampled"], seed=0)
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def one_round() -> None:
        nonlocal state
        state, diagnostics = algorithm.apply(state, sampler.sample())
        jax.block_until_ready((state.params, diagnostics))

    say(fedjax=version("fedjax"), jax=version("jax"))
    serve(one_round)


if __name__ == "__main__":
    main()
