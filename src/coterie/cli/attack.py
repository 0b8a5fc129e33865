"""`coterie attack reconstruction` and `coterie encoder`: what embeddings give away, and autoencoders as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coterie.core.errors import CoterieError

attack_app = typer.Typer(help="Attacks on what clients send.", no_args_is_help=True)

RunArgument = Annotated[Path | None, typer.Argument(help="folder of a finished `embedding` run")]
EncoderOption = Annotated[Path | None, typer.Option("--encoder", help="an autoencoder's file instead of a run")]
ScenarioOption = Annotated[str | None, typer.Option("--scenario", help="whose images are attacked, with --encoder")]
RootOption = Annotated[Path | None, typer.Option("--root", help="where the datasets are")]


@attack_app.command("reconstruction")
def reconstruction(
    run: RunArgument = None,
    encoder: EncoderOption = None,
    scenario: ScenarioOption = None,
    root: RootOption = None,
    client: Annotated[str | None, typer.Option("--client", help="the attacked client (default: the first)")] = None,
    images: Annotated[int, typer.Option("--images", help="how many of its images are decoded")] = 64,
    levels: Annotated[str, typer.Option("--levels", help="flip probabilities")] = "0,0.05,0.1,0.15,0.2",
    seed: Annotated[int, typer.Option("--seed", help="seed of the flips, and of the scenario")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="folder for the picture and the table")] = None,
) -> None:
    """Decode embeddings as the server could: the error and a picture at several flip probabilities."""
    from coterie.core.panels import save_panels
    from coterie.core.samples import Samples
    from coterie.methods.embedding.autoencoder import load_encoder
    from coterie.report import attack
    from coterie.runs.config import ScenarioConfig
    from coterie.runs.experiment import config_of, population_of

    if (run is None) == (encoder is None):
        raise CoterieError("Name the folder of an embedding run, or an --encoder with a --scenario.")
    if images < 1:
        raise CoterieError(f"--images is {images}; attack at least 1.")
    if run is not None:
        config = config_of(run)
        population, autoencoder = population_of(config.scenario, config.seed), attack.autoencoder_of_run(run)
    else:
        if scenario is None or encoder is None:
            raise CoterieError("An --encoder needs a --scenario, whose images are attacked.")
        population = population_of(ScenarioConfig(name=scenario, root=str(root) if root else None), seed)
        autoencoder = load_encoder(encoder, tuple(population.shape))
    victim = client or population.ids[0]
    attacked = population.client(victim).train
    others = [other for other in population.ids if other != victim]
    found = attack.reconstruct(
        autoencoder,
        Samples(attacked.x[:images], attacked.y[:images]),
        levels=_levels(levels),
        known=attack.known_images(population, others) if others else None,
        seed=seed,
    )
    _print(found.table(paper=autoencoder.shape == (3, 32, 32)))
    folder = out or (run / "attack" if run is not None else Path("runs") / "attack")
    folder.mkdir(parents=True, exist_ok=True)
    attack.picture(found.images, folder / "reconstruction.png")
    save_panels(folder / "panels.json", found.panels())
    _say(f"picture: {folder / 'reconstruction.png'}")
    if run is not None:
        _say(f"report: {attack.add_to_report(run, found.panels())}")


def encoder(
    out: Annotated[Path, typer.Argument(help="file to write")],
    run: Annotated[Path | None, typer.Option("--run", help="take the autoencoder of this `embedding` run")] = None,
    public: Annotated[
        str | None, typer.Option("--public", help="train one on this public set: a name or a folder")
    ] = None,
    scenario: Annotated[str, typer.Option("--scenario", help="for inputs like this scenario's")] = "rotated-mnist",
    root: RootOption = None,
    epochs: Annotated[int, typer.Option("--epochs", help="epochs on the public set")] = 20,
    architecture: Annotated[str, typer.Option("--autoencoder", help="which one; default: by input shape")] = "",
    seed: Annotated[int, typer.Option("--seed", help="seed of the training")] = 0,
) -> None:
    """Save an autoencoder, from a run or trained on public data, so that a federation can start from its file."""
    from coterie.methods.embedding.autoencoder import fresh_encoder
    from coterie.methods.embedding.pretraining import read_public, train_on_public
    from coterie.report import attack
    from coterie.runs.config import ScenarioConfig
    from coterie.runs.experiment import population_of

    if (run is None) == (public is None):
        raise CoterieError("Say where the autoencoder comes from: --run FOLDER or --public NAME.")
    if run is not None:
        made = attack.autoencoder_of_run(run)
    else:
        assert public is not None
        population = population_of(ScenarioConfig(name=scenario, root=str(root) if root else None), seed)
        shape = tuple(population.shape)
        blank = fresh_encoder(shape, population.normalise.scale, architecture=architecture, seed=seed)
        made = train_on_public(blank, read_public(public, shape, str(root) if root else None), epochs=epochs, seed=seed)
    _say(f"encoder: {made.save(out)} ({made.architecture}); use it with --set encoder={out}")


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise CoterieError(f"--levels takes numbers joined by commas, such as 0,0.1, not {text!r}.") from None


def _print(table: Any) -> None:
    shown = Table(title=table.title, title_justify="left", title_style="bold")
    for column in table.columns:
        shown.add_column(column)
    for row in table.rows:
        shown.add_row(*("-" if cell is None else str(cell) for cell in row))
    Console().print(shown)


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
