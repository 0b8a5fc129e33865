"""Tables as own data: what CSV and Parquet files may look like, and one sentence for each thing that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.data import from_path
from coterie.data.encoding import new_inputs
from coterie.data.folders import from_file
from coterie.data.own import OwnPopulation
from coterie.data.schema import Column, schema_of
from coterie.data.split import training_rows
from coterie.data.tables import DataTable, read_csv, read_table

ROWS = "age,town,y\n1,Ulm,no\n2,Rome,yes\n3,Ulm,no\n4,Ulm,yes\n5,Rome,no\n"


def put(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / f"{name}.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def own(path: Path, **options: Any) -> OwnPopulation:
    population = from_path(path, **options)
    assert isinstance(population, OwnPopulation)
    return population


def everything(population: OwnPopulation, client: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows of a client, training and test, in the order of their first input."""
    data = population.client(client)
    x, y = torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
    order = x[:, 0].argsort()
    return x[order], y[order]


def test_a_folder_of_csv_files(tmp_path: Path) -> None:
    """Client b lacks "Ulm" and has its columns in another order: it has the same inputs as a, age, Rome, Ulm.

    Sorted, the categories are Rome, Ulm; the classes no, yes. So a's first row, 1 Ulm no, is (1, 0, 1) and class 0.
    """
    put(tmp_path, a=ROWS, b="y,town,age\nyes,Rome,7\nno,Rome,8\n")
    population = own(tmp_path, normalise="none")
    assert tuple(population.ids) == ("a", "b")
    assert population.shape == (3,)
    schema = schema_of(population)
    assert schema.columns == (Column("age"), Column("town", ("Rome", "Ulm")))
    assert (schema.class_names, schema.target, schema.layout) == (("no", "yes"), "y", "rows")
    x, y = everything(population, "a")
    assert x.tolist() == [[1, 0, 1], [2, 1, 0], [3, 0, 1], [4, 0, 1], [5, 1, 0]]
    assert y.tolist() == [0, 1, 0, 1, 0]
    assert everything(population, "b")[0].tolist() == [[7, 1, 0], [8, 1, 0]]


def test_new_rows_are_read_as_those_of_the_run(tmp_path: Path) -> None:
    """A new table may lack the target, have other columns and towns that no client had: those have no category."""
    schema = schema_of(own(put(tmp_path / "in", a=ROWS, b=ROWS)))
    new = read_csv(put(tmp_path, new="id,town,age\n9,Rome,1.5\n8,Oslo,2\n") / "new.csv")
    assert new_inputs(new, schema).tolist() == [[1.5, 1, 0], [2, 0, 0]]
    for text, said in [
        ("town\nUlm\n", "no column 'age'"),
        ("age,town\n,Ulm\n", "Column 'age' of .* lacks 1 values"),
        ("age,town\nold,Ulm\n", "has 'old' where numbers belong"),
    ]:
        with pytest.raises(CoterieError, match=said):
            new_inputs(read_csv(put(tmp_path, new=text) / "new.csv"), schema)


def test_one_table_with_a_client_column(tmp_path: Path) -> None:
    rows = "".join(f"{'ä/b' if i % 2 else 10 - i % 4},{i},{i % 3}\n" for i in range(24))
    put(tmp_path, all=f"hospital ward,dose,y\n{rows}")
    population = own(tmp_path / "all.csv", client="hospital ward")
    assert tuple(population.ids) == ("10", "8", "ä/b")
    assert schema_of(population).client == "hospital ward"
    assert population.shape == (1,)
    assert everything(population, "10")[0][:, 0].tolist() == [0, 4, 8, 12, 16, 20]
    with pytest.raises(CoterieError, match="is one table; say which of its columns names the clients: --client-column"):
        from_path(tmp_path / "all.csv")
    with pytest.raises(CoterieError, match="no column 'ward'; its columns are 'hospital ward', 'dose', 'y'"):
        from_path(tmp_path / "all.csv", client="ward")
    with pytest.raises(CoterieError, match="leave --client-column out"):
        from_path(tmp_path, client="hospital ward")


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfa,y\r\n1,0\r\n2,1\r\n\r\n3,0\r\n4,1\r\n5,0\r\n",
        "a;y\n1;0\n2;1\n3;0\n4;1\n5;0\n",
        "a\ty\n1\t0\n2\t1\n3\t0\n4\t1\n5\t0",
        '"a","y"\n"1","0"\n" 2","1"\n3,0\n4,1\n5,0\n',
        "a,y\n1e0,0\n2.0,1\n+3,0\n4,1\n5,0\n",
    ],
)
def test_usual_ways_to_write_csv(text: str | bytes, tmp_path: Path) -> None:
    population = own(put(tmp_path, c=text), normalise="none")
    x, y = everything(population, "c")
    assert x[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert y.tolist() == [0, 1, 0, 1, 0]
    assert population.classes == 2


def test_commas_and_lines_in_quotes(tmp_path: Path) -> None:
    text = 'x,y\n1,"a, b"\n2,"say ""c"""\n3,"a, b"\n'
    assert schema_of(own(put(tmp_path, c=text))).class_names == ("a, b", 'say "c"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,y\n", "a line of names and no rows"),
        ("1,2\n3,4\n", "first line of .* holds numbers alone"),
        ("a,y\n1,0\n2\n", "Line 3 of .* has 1 fields and the first line has 2"),
        ("a,y\n1,0\n2,1,7\n", "has 3 fields"),
        (",a,y\n0,1,0\n1,2,1\n", r"Column 1 of .* has no name; .*index=False"),
        ("Unnamed: 0,a,y\n0,1,0\n1,2,1\n", r"Column 1 of .* has no name; .*index=False"),
        ("a,a,y\n0,1,0\n1,2,1\n", "two columns 'a'"),
        ("a,y\n1,0\nx,1\n3,0\n", "Column 'a' holds numbers, but .* has 'x' in it"),
        ("a;y\n1,5;0\n2,5;1\n3,5;0\n", "has '1,5' in it; write numbers with a decimal point"),
        ("a;y\n1,5;0\n2;1\n3;0\n", "write numbers with a decimal point"),
        ("a,y\n1,0\ninf,1\n3,0\n", "holds infinity"),
        ("a,b\n1,0\n2,1\n", "none of the columns target, label, y; say which column is to be predicted"),
        ("label,y\n1,0\n2,1\n", "has both label and y; say which"),
        ("y\n1\n2\n", "no column beside 'y'; the inputs need at least one"),
        ("a,y\n1,0\n", "Client c has one sample and needs two"),
        ("a,y\n1,\n2,0\n3,1\n", "Column 'y' lacks 1 of 3 values"),
        ('a,y\n"1,0\n2,1\n', "cannot be read"),
        (b"a,y\n1,caf\xe9\n2,b\n", "is not UTF-8 .*save it again with the encoding UTF-8"),
        (b"PK\x03\x04\x00\x00", "is not UTF-8|no rows|holds numbers|is empty"),
        ("a,y\n" + "".join(f"w{i},0\n" for i in range(200)), "text with 200 different values"),
        (
            "a,y\n" + "".join(f"{i},{i * 7}\n" for i in range(200)),
            "200 different whole numbers, which may be classes or",
        ),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_one_sentence(text: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=said) as caught:
        from_path(put(tmp_path, c=text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("a,y\n1,0\n2,1\n", "lacks the column 'b'"),
        ("a,b,c,y\n1,1,1,0\n2,1,1,1\n", "has a column 'c'"),
        ("a,b,y\n1,x,0\n2,z,1\n", "Column 'b' holds numbers, but .*d.csv has 'x' in it"),
        ("a,b,y\n1,,0\n2,,1\n", "Column 'b' lacks 2 of 5 values .client d: 2."),
        ("a,b,y\n1,1,no\n2,2,yes\n", r"Column 'y' holds words in .*d.csv and numbers in .*c.csv"),
    ],
)
def test_clients_whose_tables_do_not_fit_together(other: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=said):
        from_path(put(tmp_path, c="a,b,y\n1,1,0\n2,1,1\n3,4,0\n", d=other))


def test_columns_can_be_ignored(tmp_path: Path) -> None:
    put(tmp_path, c="id,a,y\nx7,1,0\nx8,2,1\nx9,3,1\n")
    population = own(tmp_path, ignore=("id",))
    assert [column.name for column in schema_of(population).columns] == ["a"]
    with pytest.raises(CoterieError, match="no column 'nr' to ignore"):
        from_path(tmp_path, ignore=("nr",))


def test_classes_that_are_numbers_keep_their_names(tmp_path: Path) -> None:
    """Classes 1, 2, 10 are the numbers 0, 1, 2 to a model and 1, 2, 10 to the user."""
    population = own(put(tmp_path, c="a,y\n1,10\n2,1\n3,2\n4,10\n"))
    assert schema_of(population).class_names == ("1", "2", "10")
    assert everything(population, "c")[1].tolist() == [2, 0, 1, 2]
    assert schema_of(own(put(tmp_path, c="a,y\n1,0\n2,1\n3,2\n"))).class_names == ()


def test_a_label_that_is_written_in_two_ways_is_refused(tmp_path: Path) -> None:
    """In one file or between two; zeros that all labels have, of an input, or of a number to predict, are no matter."""
    one, padded = "a,y\n1,7\n2,8\n3,7\n4,8\n", "a,y\n1,007\n2,008\n3,007\n4,008\n"
    for files in ({"c": padded + "5,7\n"}, {"c": padded, "d": one}, {"c": one, "d": padded}):
        with pytest.raises(CoterieError, match="has the label '7', which is also written '007'; write one class in"):
            from_path(put(tmp_path, **files))
    for files in ({"c": padded + "5,07\n"}, {"c": padded, "d": padded.replace("00", "0")}):
        with pytest.raises(CoterieError, match=r"has the label '0+7', which is also written '0+7'; write one class in"):
            from_path(put(tmp_path, **files))
    assert schema_of(from_path(put(tmp_path, c=padded, d=padded))).class_names == ("7", "8")
    inputs = "a,y\n007,1\n7,0\n8,1\n9,0\n"
    assert schema_of(from_path(put(tmp_path, c=inputs, d=inputs))).classes == 2
    numbers = put(tmp_path, c=padded, d=one)
    assert schema_of(from_path(numbers, task="regression")).task == "regression"


def test_missing_values(tmp_path: Path) -> None:
    """The mean is that of the training rows, and only of the values that are there."""
    rows = [(str(i), "NA" if i == 4 else str(10 * i)) for i in range(10)]
    text = "a,b,y\n" + "".join(f"{a},{b},{int(a) % 2}\n" for a, b in rows)
    put(tmp_path, c=text)
    with pytest.raises(CoterieError, match=r"Column 'b' lacks 1 of 10 values .*scenario.missing=mean .*=drop"):
        from_path(tmp_path)
    dropped = everything(own(tmp_path, missing="drop", normalise="none"), "c")[0]
    assert dropped[:, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    population = own(tmp_path, missing="mean", normalise="none")
    train = training_rows("c", 10, 0)
    want = float(np.mean([10 * i for i in train if i != 4]))
    filled = everything(population, "c")[0]
    assert filled[4].tolist() == pytest.approx([4, want])
    assert schema_of(population).columns[1].fill == pytest.approx(want)
    new = DataTable({"a": np.array([1.0]), "b": np.array([np.nan])}, "new")
    assert new_inputs(new, schema_of(population)).tolist() == [pytest.approx([1, want])]
    put(tmp_path, c="a,b,y\n1,,0\n2,,1\n")
    with pytest.raises(CoterieError, match="Column 'b' has no values"):
        from_path(tmp_path, missing="mean")
    with pytest.raises(CoterieError, match="leaves none"):
        from_path(tmp_path, missing="drop")
    put(tmp_path, c="a,y\n1,\n2,0\n3,1\n4,1\n")
    with pytest.raises(CoterieError, match="what is predicted"):
        from_path(tmp_path, missing="mean")
    assert len(everything(own(tmp_path, missing="drop"), "c")[0]) == 3


def test_missing_text_has_no_category(tmp_path: Path) -> None:
    population = own(put(tmp_path, c="a,t,y\n1,u,0\n2,?,1\n3,v,1\n"), missing="mean", normalise="none")
    assert everything(population, "c")[0].tolist() == [[1, 1, 0], [2, 0, 0], [3, 0, 1]]


def test_tokens_in_a_table(tmp_path: Path) -> None:
    population = own(put(tmp_path, c="w0,w1,y\n5,6,0\n7,8,1\n9,1,1\n"), layout="tokens")
    assert population.client("c").train.x.dtype == torch.int64
    assert population.normalise == Normalise()
    put(tmp_path, c="w0,w1,y\n5,6.5,0\n7,8,1\n9,1,1\n")
    with pytest.raises(CoterieError, match=r"Column 'w1' of .* holds no whole numbers"):
        from_path(tmp_path, layout="tokens")
    with pytest.raises(CoterieError, match="A table holds rows or tokens, not series"):
        from_path(tmp_path, layout="series")


def test_several_kinds_of_files_or_two_of_one_client(tmp_path: Path) -> None:
    put(tmp_path, a=ROWS)
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 2)), y=np.arange(4))
    with pytest.raises(CoterieError, match=r"holds \.csv and \.npz files; keep those of one kind"):
        from_path(tmp_path)
    (tmp_path / "b.npz").unlink()
    (tmp_path / "a.CSV").write_text(ROWS)
    with pytest.raises(CoterieError, match="two files of client a"):
        from_path(tmp_path)
    (tmp_path / "a.CSV").unlink()
    (tmp_path / "n").mkdir()
    np.savez(tmp_path / "n" / "a.npz", x=np.zeros((4, 2)), y=np.arange(4))
    with pytest.raises(CoterieError, match=r"target says something about tables, and .* holds no tables"):
        from_path(tmp_path / "n", target="y")


def test_one_client_alone_has_the_same_formats(tmp_path: Path) -> None:
    put(tmp_path, a="b,y\n1,3\n2,4\n3,3\n")
    alone = from_file(tmp_path / "a.csv", "ward 7")
    assert tuple(alone.ids) == ("ward 7",)
    assert schema_of(alone).class_names == ("3", "4")
    wordy = from_file(put(tmp_path, a=ROWS) / "a.csv", "a")  # its words, until all clients have agreed on theirs
    assert schema_of(wordy).columns[1].categories == ("Rome", "Ulm")
    assert wordy.reread is not None
    assert wordy.reread((Column("age"), Column("town", ("Bern", "Rome", "Ulm")))).shape == (4,)
    from PIL import Image

    for kind in ("cat", "dog"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((4, 4), 9 * number, np.uint8)).save(tmp_path / "images" / kind / f"{number}.png")
    pictures = from_file(tmp_path / "images", "a")
    assert (pictures.shape, schema_of(pictures).class_names) == ((3, 4, 4), ("cat", "dog"))


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    put(tmp_path / "csv", a=ROWS)
    (tmp_path / "parquet").mkdir()
    table = arrow.table({"age": [1, 2, 3, 4, 5], "town": ["Ulm", "Rome", "Ulm", "Ulm", "Rome"], "y": list("nynyn")})
    table = table.set_column(2, "y", arrow.array(["no", "yes", "no", "yes", "no"]).dictionary_encode())
    parquet.write_table(table, tmp_path / "parquet" / "a.parquet")
    one, other = own(tmp_path / "csv"), own(tmp_path / "parquet")
    assert schema_of(one) == schema_of(other)
    assert torch.equal(one.client("a").train.x, other.client("a").train.x)
    numbered = table.append_column("__index_level_0__", arrow.array(range(len(table))))  # as pandas writes an index
    parquet.write_table(numbered, tmp_path / "parquet" / "a.parquet")
    assert schema_of(own(tmp_path / "parquet")) == schema_of(one)
    (tmp_path / "parquet" / "a.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(CoterieError, match="damaged, or not a Parquet file"):
        from_path(tmp_path / "parquet")
    whole = arrow.table({"n": arrow.array([1, None]), "b": [True, False], "u": arrow.array([1, 2], arrow.uint64())})
    parquet.write_table(whole, tmp_path / "n.parquet")
    read = read_table(tmp_path / "n.parquet").columns
    assert np.isnan(read["n"][1])
    assert read["b"].tolist() == [1, 0]
    parquet.write_table(arrow.table({"x": [[1, 2], [3]], "y": [0, 1]}), tmp_path / "n.parquet")
    with pytest.raises(CoterieError, match=r"Column 'x' of .* holds values of type"):
        read_table(tmp_path / "n.parquet")
