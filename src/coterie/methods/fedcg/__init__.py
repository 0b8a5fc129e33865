"""FedCG (Caldarola et al. 2021): the method, how it finds domains, and what its clients are sent and answer."""

from coterie.methods.fedcg import compiled
from coterie.methods.fedcg.messages import Domains, Report, Sent, Sums, Weighed
from coterie.methods.fedcg.method import FedCG

__all__ = ["Domains", "FedCG", "Report", "Sent", "Sums", "Weighed"]

compiled.register()
