"""Bad input: one sentence that says what to do, exit code 2, no traceback, nothing written, nothing overwritten."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.cohort import Cohort
from coterie.core.evaluation import Scores
from coterie.core.states import Stack
from tests.conftest import Command, Said
from tests.tiny import tiny_digits

SMALL = ("--clients", 6, "--samples", 8, "--groups", 2, "--rounds", 1, "--set", "epochs=1")


def files_in(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def refused(coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Calls the command line in an empty folder and gives back its one sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)

    def call(*arguments: object) -> str:
        before = files_in(tmp_path)
        folders = {folder for folder in tmp_path.rglob("*") if folder.is_dir()}
        said: Said = coterie(*arguments)
        assert said.code == 2, said.out
        assert files_in(tmp_path) == before, "something was written or overwritten"
        assert {folder for folder in tmp_path.rglob("*") if folder.is_dir()} <= {*folders, tmp_path / "runs"}
        assert "Traceback" not in said.err
        lines = said.err.strip().splitlines()
        assert len(lines) == 1, said.err
        assert lines[0].startswith("coterie: ")
        sentence = lines[0].removeprefix("coterie: ")
        assert sentence.endswith(".")
        return sentence

    return call


WRONG = {
    "method": (["run", "fedavgg"], "There is no method 'fedavgg'; did you mean 'fedavg'? Known: "),
    "method far off": (["run", "xyz"], "There is no method 'xyz'; known: "),
    "no method": (["run"], "Name a method, such as `coterie run fedavg`"),
    "scenario": (["run", "fedavg", "--scenario", "rotated-digit"], "There is no scenario 'rotated-digit'; did you"),
    "model": (["run", "fedavg", "--model", "digitsmlp"], "There is no model 'digitsmlp'; did you mean 'digits-mlp'?"),
    "key": (["run", "ifca", "--set", "restart=3"], "There is no setting of ifca 'restart'; did you mean 'restarts'?"),
    "key of a table": (
        ["run", "ifca", "--set", "faults.dropot=1"], "There is no setting of faults 'dropot'; did you mean 'dropout'?"
    ),
    "key of another table": (
        ["run", "fedavg", "--set", "normalise=none"],
        "There is no setting of fedavg 'normalise'; it is scenario.normalise.",
    ),
    "key of the method": (
        ["run", "ifca", "--set", "engine.k=4"], "There is no setting of engine 'k'; it is a setting of ifca."
    ),
    "key of the run": (
        ["run", "ifca", "--set", "settings.rounds=4"], "There is no setting of ifca 'rounds'; it is rounds, outside"
    ),
    "table": (["run", "ifca", "--set", "fault.dropout=1"], "There is no table 'fault'; did you mean 'faults'?"),
    "assignment": (["run", "ifca", "--set", "k"], "--set takes key=value, not 'k'."),
    "whole number": (["run", "ifca", "--set", "k=two"], "ifca.k needs a whole number, not 'two'."),
    "half a number": (["run", "ifca", "--set", "k=2.5"], "ifca.k needs a whole number, not '2.5'."),
    "number": (["run", "fedavg", "--set", "lr=fast"], "fedavg.lr needs a number, not 'fast'."),
    "no number": (["run", "fedavg", "--set", "lr=nan"], "fedavg.lr needs a number, not 'nan'."),
    "endless": (["run", "fedavg", "--set", "lr=inf"], "fedavg.lr needs a number, not 'inf'."),
    "yes or no": (
        ["run", "fedavg", "--set", "engine.kernel=maybe"], "engine.kernel needs true or false, not 'maybe'."
    ),
    "choice": (
        ["run", "fedavg", "--set", "optimiser=adan"], "There is no value of fedavg.optimiser 'adan'; did you mean 'ada"
    ),
    "dtype": (["run", "fedavg", "--set", "dtype=float16"], "There is no value of dtype 'float16'; did you mean"),
    "pairs": (["run", "fedavg", "--set", "faults.joins=3"], "faults.joins needs 2 values joined by ':'"),
    "range": (["run", "fedavg", "--set", "momentum=1"], "fedavg: momentum must lie in [0, 1), not 1.0."),
    "rounds": (["run", "fedavg", "--rounds", "0"], "rounds must be at least 1, not 0."),
    "evaluation": (["run", "fedavg", "--set", "evaluate_every=0"], "evaluate_every and evaluate_clients must be"),
    "workers": (["run", "fedavg", "--workers", "-1"], "engine.workers and engine.lanes must be at least 0"),
    "clients": (["run", "fedavg", "--clients", "0"], "0 clients were asked for; ask for at least 1."),
    "samples": (["run", "fedavg", "--samples", "50000"], "samples"),
    "no samples": (["run", "fedavg", "--samples", "0"], "0 samples were asked for; ask for at least 1."),
    "alpha": (["run", "fedavg", "--alpha", "0"], "alpha is 0.0 and must be above 0"),
    "negative alpha": (["run", "fedavg", "--alpha", "-1"], "alpha is -1.0 and must be above 0"),
    "groups": (["run", "fedavg", "--groups", "50"], "50 groups need at least as many clients"),
    "image size": (["run", "fedavg", "--image-size", "2"], "Images of 2 x 2 pixels are not possible"),
    "k of ifca": (
        ["run", "ifca", "--set", "k=41", "--set", "min_share=0"],
        "ifca: k = 41 clusters need at least as many clients, but there are 40",
    ),
    "k of fedsem": (["run", "fedsem", "--set", "k=41"], "fedsem: k = 41 centres need at least as many clients"),
    "joins": (["run", "fedavg", "--set", "faults.joins=1:41"], "faults.joins and faults.leaves name 41 clients"),
    "model of another shape": (["run", "fedavg", "--model", "lenet5"], ""),
    "missing data": (["run", "fedavg", "--scenario", "rotated-mnist"], "mnist"),
    "missing root": (["run", "fedavg", "--scenario", "rotated-cifar10", "--root", "nowhere"], "nowhere/cifar10"),
    "config": (["run", "fedavg", "--config", "none.toml"], "There is no file none.toml"),
    "own data": (["run", "fedavg", "--data", "nowhere"], "There is no folder nowhere; give a folder of <client>.npz"),
    "own model": (["run", "fedavg", "--model", "net.py:build"], "There is no file net.py to take a model from."),
    "own module": (["run", "fedavg", "--model", "no.such.module:build"], "which has the model, cannot be imported"),
    "no module": (["run", "fedavg", "--model", ":build"], "cannot be imported"),
    "compared method": (["compare", "fedavg", "ifcaa"], "There is no method 'ifcaa'; did you mean 'ifca'?"),
    "data and scenario": (
        ["run", "fedavg", "--data", "mine", "--scenario", "rotated-digits"], "give one of the two."
    ),
    "compared data and scenario": (
        ["compare", "fedavg", "--data", "mine", "--set", "scenario.name=rotated-digits"], "give one of the two."
    ),
    "described data and scenario": (["data", "rotated-digits", "--data", "mine"], "give one of the two."),
    "model without function": (["run", "fedavg", "--model", "net.py"], "net.py is a file; name the function in it"),
    "folder of settings": (["run", "fedavg", "--config", "."], ". is a folder, not a TOML file; name the file itself."),
    "no out": (["run", "fedavg", "--out", ""], "--out is empty; name a folder, or do without --out."),
    "no out of many": (["compare", "fedavg", "--out", ""], "--out is empty; name a folder, or do without --out."),
    "seed": (["run", "fedavg", "--seed", "-1"], "A seed must be at least 0, not -1."),
    "negative seeds": (["compare", "fedavg", "--seeds=0,-1"], "A seed must be at least 0, not -1."),
    "seed of data": (["data", "rotated-digits", "--seed", "-1"], "A seed must be at least 0, not -1."),
    "listed scenario": (["list", "rotated-digits"], "rotated-digits is a scenario; see `coterie data rotated-digits`."),
    "seeds": (["compare", "fedavg", "--seeds", "0;1"], "--seeds takes whole numbers joined by commas"),
    "target": (["compare", "fedavg", "--target", "90"], "The target accuracy must lie in (0, 1], not 90.0."),
    "compared key": (["compare", "fedavg", "ifca", "--set", "kk=3"], "There is no setting of fedavg 'kk'"),
    "key of a method that is not compared": (
        ["compare", "fedavg", "local", "--set", "ifca.k=3"], "There is no table 'ifca'"
    ),
    "list": (["list", "metods"], "There is no list 'metods'; did you mean 'methods'?"),
    "described scenario": (["data", "rotated-digitz"], "There is no scenario 'rotated-digitz'; did you mean"),
    "reported folder": (["report", "nowhere"], "There is no folder nowhere; name the folder of a run"),
    "resumed folder": (["resume", "nowhere"], "nowhere is not the folder of a run"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG)
def test_is_refused(arguments: list[str], says: str, refused: Callable[..., str]) -> None:
    assert says in refused(*arguments)


@pytest.mark.parametrize("option", ["--rounds=abc", "--sed=3"])
def test_an_option_the_command_line_does_not_know(option: str, coterie: Command) -> None:
    said = coterie("run", "fedavg", option)
    assert said.code == 2
    assert "Error: " in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("method = ", "is not a readable TOML file"),
        ("\xff\xfe", "is not a readable TOML file"),
        ('method = "fedavg"\nround = 3', "There is no setting 'round'; did you mean 'rounds'?"),
        ('method = "fedavg"\nrounds = "3x"', "rounds needs a whole number, not '3x'."),
        ('method = "fedavg"\nrounds = "3"', "rounds needs a whole number, not '3'."),
        ('method = "fedavg"\n[settings]\nlr = "0.1"', "fedavg.lr needs a number, not '0.1'."),
        ('method = "fedavg"\n[engine]\nkernel = "true"', "engine.kernel needs true or false, not 'true'."),
        ('method = "fedavg"\nrounds = inf', "rounds needs a whole number, not inf."),
        ('method = "fedavg"\nrounds = true', "rounds needs a whole number, not True."),
        ("method = 3", "method needs text, not 3."),
        ("rounds = 3", "Name a method"),
        ('method = "fedavg"\nscenario = "rotated-digits"', "scenario must be a table ([scenario])"),
        ('method = "fedavg"\nsettings = 3', "settings must be a table ([settings])"),
        ('method = "fedavg"\n[settings]\nk = 3', "There is no setting of fedavg 'k'"),
        ('method = "fedavg"\n[faults]\njoins = [[1]]', "faults.joins needs 2 values"),
        ('method = "fedavg"\n[scenario]\nclients = "many"', "scenario.clients needs a whole number, not 'many'."),
    ],
)
def test_a_bad_file_of_settings(text: str, says: str, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text, encoding="latin-1")
    assert says in refused("run", "--config", "run.toml")
    if "clients" not in text and "Name a method" not in says:
        assert says.split("(")[0] in refused("run", "--config", "run.toml", "--clients", 4, "--set", "batch=8")


MODELS = {
    "without the function": ("x = 1", "net.py has no 'build' to take a model from."),
    "no function": ("build = 3", "The model is of type int"),
    "of no module": ("def build(): return 3", "net.py:build() must return a torch.nn.Module, not a int."),
    "with arguments": ("def build(shape): return shape", "net.py:build() fails: TypeError"),
    "with a mistake": ("def build(", "net.py, which has the model, cannot be imported: SyntaxError"),
    "that fails": ("1 / 0", "net.py, which has the model, cannot be imported: ZeroDivisionError"),
    "of another shape": (
        "from torch import nn\ndef build(): return nn.Linear(3, 10)", "The model fails on a batch of shape (2, 1, 8, 8)"
    ),
    "of a tuple": (
        "from torch import nn\nclass Net(nn.Linear):\n def forward(self, x): return super().forward(x), x\n"
        "def build(): return nn.Sequential(nn.Flatten(), Net(64, 10))",
        "The model returns a tuple; let its forward return one tensor, a row for each sample.",
    ),
    "without parameters": (
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten())",
        "The model has no parameters, so nothing can be learnt; give it a layer with weights.",
    ),
    "of too few classes": (
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))",
        "The model has 3 outputs but the data have 10 classes; give it 10 outputs.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says"), MODELS.values(), ids=MODELS)
def test_a_model_file(text: str, says: str, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(text)
    assert says in refused("run", "fedavg", *SMALL, "--model", "net.py:build")


def test_a_model_file_that_is_fine(coterie: Command, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
    )
    said = coterie("run", "fedavg", *SMALL, "--model", f"{tmp_path / 'net.py'}:build", "--out", tmp_path / "run")
    assert said.code == 0, said.err


def write_npz(folder: Path) -> None:
    folder.mkdir()
    for client in tiny_digits().ids[:3]:
        data = tiny_digits().client(client).train
        np.savez(folder / f"{client}.npz", x=data.x.numpy(), y=data.y.numpy())


def test_own_data_that_are_fine(coterie: Command, tmp_path: Path) -> None:
    write_npz(tmp_path / "mine")
    said = coterie(
        "run", "local", "--data", tmp_path / "mine", "--model", "digits-mlp", "--rounds", 1, "--out", tmp_path / "run"
    )
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["clients"], result["ari"], result["truth"]) == (3, None, None)


def test_own_data_that_are_broken(refused: Callable[..., str], tmp_path: Path) -> None:
    own: tuple[object, ...] = ("run", "fedavg", "--data", "mine", "--rounds", 1)
    write_npz(tmp_path / "mine")
    assert "Your own data need a model: --model NAME" in refused(*own)
    own = (*own, "--model", "digits-mlp")
    assert "shape a named scenario, not your own data; leave them out." in refused(*own, "--clients", 3)
    assert "this method needs them" in refused("run", "oracle", *own[2:])
    victim = tmp_path / "mine" / "c1.npz"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    assert "c1.npz" in refused(*own)
    broken = "cannot be read: it is damaged, or not an .npz file of plain arrays; write it again with numpy.savez."
    for garbage in (b"garbage", b"", whole[:-30]):
        victim.write_bytes(garbage)
        assert refused(*own) == f"mine/c1.npz {broken}"
    np.savez(victim, x=np.array([{}, {}]), y=np.zeros(2, np.int64))
    assert refused(*own) == f"mine/c1.npz {broken}"
    np.savez(victim, a=np.zeros(3))
    assert "c1.npz holds a; give x and y" in refused(*own)
    np.savez(victim, x=np.zeros((4, 1, 8, 8), np.uint8), y=np.array([0, 1, -1, 2]))
    assert "Client c1 has the label -1; give integers from 0 up," in refused(*own)
    np.savez(victim, x=np.full((4, 8, 8), np.nan), y=np.zeros(4, np.int64))
    assert "The inputs of client c1 hold NaN or infinity" in refused(*own)
    shutil.rmtree(tmp_path / "mine")
    (tmp_path / "mine").mkdir()
    assert "mine" in refused(*own)


def test_a_corrupt_or_truncated_data_file(refused: Callable[..., str], tmp_path: Path) -> None:
    from tests.data.tiny import write_idx_set

    write_idx_set(tmp_path / "data" / "mnist")
    arguments = ("run", "fedavg", "--scenario", "rotated-mnist", "--root", "data", "--clients", 4, "--rounds", 1)
    victim = tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz"
    whole = victim.read_bytes()
    for damage in (whole[:-200], b"not a gzip file", gzip.compress(gzip.decompress(whole)[:-100]), b""):
        victim.write_bytes(damage)
        assert "train-images-idx3-ubyte.gz" in refused(*arguments)
    victim.unlink()
    assert "train-images-idx3-ubyte" in refused(*arguments)


def test_an_output_folder_that_holds_something(coterie: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    assert coterie("run", "fedavg", *SMALL, "--out", "one").code == 0
    says = refused("run", "ifca", *SMALL, "--set", "k=2", "--out", "one")
    assert says == "one already holds a run that is finished; choose another --out."
    (tmp_path / "one" / "result.json").rename(tmp_path / "result.json")
    says = refused("run", "ifca", *SMALL, "--set", "k=2", "--out", "one")
    assert says == "one already holds something; choose another --out, or go on with it: coterie resume one."
    (tmp_path / "result.json").rename(tmp_path / "one" / "result.json")
    assert "holds a single run; choose another --out" in refused("compare", "fedavg", "local", *SMALL, "--out", "one")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for taken in ("mine", "mine/thesis.tex"):
        says = refused("run", "fedavg", *SMALL, "--out", taken)
        assert says == f"{taken} already holds something; choose another --out."
    assert refused("report", "mine") == "mine is neither a run nor a comparison; name another folder."
    assert coterie("compare", "fedavg", "local", *SMALL, "--out", "two").code == 0
    assert "fedavg-seed0 holds a run with other settings; choose another --out." in refused(
        "compare", "fedavg", "local", *SMALL, "--set", "lr=0.3", "--out", "two"
    )


def test_a_damaged_checkpoint(coterie: Command, refused: Callable[..., str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert coterie("run", "fedavg", *SMALL, "--out", run).code == 0
    (run / "result.json").unlink()
    (state,) = (run / "checkpoint").glob("state-*")
    whole = state.read_bytes()
    state.write_bytes(whole[:-1])
    assert "cannot be read" in refused("resume", run)
    state.write_bytes(whole)
    latest = run / "checkpoint" / "latest.json"
    text = latest.read_text()
    for damage in (
        "",
        "[]",
        text[:-5],
        text.replace('"next_round": 0', '"next_round": "none"'),
        text.replace("0.", "x"),
    ):
        latest.write_text(damage)
        assert "cannot be read" in refused("resume", run)
    latest.write_text(text)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('method = "fedavg"', 'method = "scaffold"'))
    assert "is of fedavg, not of scaffold; run scaffold with another --out" in refused("resume", run)
    (run / "config.toml").write_text("nonsense")
    assert "config.toml is not a readable TOML file" in refused("resume", run)
    (run / "config.toml").write_text(config)
    assert coterie("resume", run).code == 0


def test_a_refusal_by_a_method_leaves_the_folder_free(coterie: Command, tmp_path: Path) -> None:
    """What a method refuses only once it has seen its clients must not cost the name of the folder."""
    for k, code in ((7, 2), (2, 0)):
        arguments = (*SMALL, "--set", f"k={k}", "--set", "min_share=0", "--out", tmp_path / "run")
        assert coterie("run", "ifca", *arguments).code == code


def test_a_model_that_nobody_can_judge(coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client's loss is NaN: the run ends with a sentence that says why."""

    def spoilt(c: Cohort, models: Stack, part: str = "test") -> Scores:
        nothing = torch.full((len(c),), torch.nan, dtype=torch.float64)
        return Scores(nothing, torch.zeros(len(c), dtype=torch.float64), torch.ones(len(c), dtype=torch.float64))

    monkeypatch.setattr("coterie.methods.served.evaluate", spoilt)
    said = coterie("run", "fedavg", *SMALL, "--out", tmp_path / "run")
    assert said.code == 2
    assert said.err.strip() == "coterie: fedavg: every client's loss is NaN or infinite; try a smaller lr."
