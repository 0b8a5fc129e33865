"""Ditto (Li et al. 2021), Algorithm 1: `coterie run examples/my_ditto.py:MyDitto --rounds 20`."""

from dataclasses import dataclass, field

from coterie import Cohort, FedAvg, Models, Trained, Use, local_sgd, on_client, spread, use


@dataclass(frozen=True)
class MyDitto(FedAvg):
    """FedAvg; every client also trains a model of its own, v_k, held near the common one, w, and uses that."""

    lam: float = field(default=0.5, metadata={"help": "how strongly v_k is held near w (lambda)"})
    name = "my-ditto"

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """One step of v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w)) for each batch, then FedAvg's own training."""
        w = spread(sent.models, len(c))
        c.keep("model", local_sgd(c, c.recall("model", w), self.opt, prox=w, mu=self.lam, purpose="personal"))
        return Trained(local_sgd(c, w, self.opt), c.size)

    def uses(self, c: Cohort, sent: Models) -> Use:
        """A client uses its own model; one that has none yet, the common one."""
        return use(c, c.recall("model", sent.models))
