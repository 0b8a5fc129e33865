"""Whether what a client says of its data is what a run is about."""

from __future__ import annotations

from coterie.data.labels import are_whole
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import RunSpec


def unlike(hello: Hello, spec: RunSpec, inputs: str = "") -> str:
    """Why a client's data are not what the run is about; nothing if they are."""
    kind = "classification" if spec.kind == "binary" else spec.kind
    if hello.task != kind:
        return f"its targets are those of {hello.task}, the run is about {kind}"
    if not _known_labels(hello.names, spec):
        return "its labels are not those of the run"
    if {(c.name, c.text) for c in hello.columns} != {(c.name, c.text) for c in spec.columns}:
        return "the columns of its table are not those of the run"
    many = hello.classes > spec.classes if kind == "classification" else hello.classes != spec.classes
    if (hello.shape != spec.shape and not spec.columns) or many or hello.inputs != (inputs or hello.inputs):
        return (
            f"it has {hello.inputs if inputs else 'inputs'} of shape {hello.shape} in {hello.classes} "
            f"classes, the run is about {inputs or 'inputs'} of shape {spec.shape} in {spec.classes}"
        )
    return ""


def _known_labels(names: tuple[str, ...], spec: RunSpec) -> bool:
    """Whether a client's labels are among the run's: its words, or numbers where one of the two has such as words."""
    if names and spec.class_names:
        return set(names) <= set(spec.class_names)
    if not are_whole((*names, *spec.class_names)):
        return False
    return all(0 <= int(name) < spec.classes for name in names)
