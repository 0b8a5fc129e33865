"""`coterie advise`: are there groups among the clients, who gains by what, and what to run."""

from coterie.runs.advice.advise import advise
from coterie.runs.advice.answer import Advice, Candidate
from coterie.runs.advice.paired import Interval

__all__ = ["Advice", "Candidate", "Interval", "advise"]
