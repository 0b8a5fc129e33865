"""A client's part: the device that the SuperNode's --node-config describes answers every message."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from coterie.deploy.boundary import place
from coterie.deploy.client import Device
from coterie.deploy.consent import LEAST_NOISE, MOST_QUESTIONS, Consent, own_secret, refused_words
from coterie.deploy.flower.content import answer
from coterie.runs.client_folder import keeping
from coterie.runs.config import ScenarioConfig
from coterie.runs.experiment import client_data


class DeviceApp(ClientApp):
    """Answers messages of every type: which function is meant stands in the order inside."""

    def __call__(self, message: Message, context: Context) -> Message:
        """One message, one reply."""
        own = context.node_config
        name = str(own["name"])
        memory = Path(str(own.get("memory", place(Path(".coterie"), name))))
        consent = Consent(
            refused_words(str(own.get("refuse", ""))),
            float(str(own.get("least-flip", 0))),
            int(str(own.get("most-questions", MOST_QUESTIONS))),
            float(str(own.get("least-noise", LEAST_NOISE))),
        )
        how = ScenarioConfig(target_column=str(own["target-column"]) if "target-column" in own else None)
        data, model = client_data(Path(str(own["data"])), name, how=how), str(own.get("model", ""))
        device = Device(name, data, memory, model, secret=own_secret(memory), consent=consent, at_end=keeping(memory))
        return answer(device, message)


app = DeviceApp()
