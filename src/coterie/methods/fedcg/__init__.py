"""FedCG (Caldarola et al. 2021): the method, how it finds domains, and what its clients are sent and answer."""

from coterie.methods.fedcg import compiled
from coterie.methods.fedcg.messages import Assigned, Domains, Report, Sent, Sums
from coterie.methods.fedcg.method import FedCG

__all__ = ["Assigned", "Domains", "FedCG", "Report", "Sent", "Sums"]

compiled.register()
