"""The user's own files: every format gives the same rows, every mistake is named with its place."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from craft.data_settings import CustomTask, DataSettings
from craft.tasks import custom, expand_tasks, find_task
from craft.tasks.files import DataError, read_rows
from craft.tasks.metrics import compute_metrics
from craft.tasks.splits import load_splits

ROWS = [
    {"title": f"title, {row}", "body": f'a "body"\n{row}', "queue": ("sales", "help", "spam")[row % 3]} for row in range(60)
]


def write(path, rows):
    if path.suffix == ".csv":
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def tickets(path, **given):
    block = {"train": str(path), "text": ["title", "body"], "label": "queue"} | given
    data = DataSettings(custom={"tickets": CustomTask(**block)})
    return find_task("custom/tickets", data), data


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    reference, data = tickets(write(tmp_path / "reference.jsonl", ROWS))
    expected = load_splits(reference, data)
    task, data = tickets(write(tmp_path / f"train{suffix}", ROWS))
    found = load_splits(task, data)
    assert task.labels == ("help", "sales", "spam")
    assert found.fingerprint == expected.fingerprint
    assert found.train.remove_columns("row")[:] == expected.train.remove_columns("row")[:]
    every = {row.pop("row"): row for split in (found.train, found.search, found.reported[""]) for row in split}
    # A row's number is that of error messages: its line in a CSV (two for each row here, and the header's), or its own.
    assert every[11 if suffix == ".csv" else 5] == {"text": ROWS[4]["title"], "text_pair": ROWS[4]["body"], "label": 0}
    assert len(every) == len(ROWS), "each row has a number of its own"


def test_without_validation_a_seeded_tenth_is_reported(tmp_path):
    task, data = tickets(write(tmp_path / "train.csv", ROWS))
    splits = load_splits(task, data)
    parts = [set(split["text"][:]) for split in (splits.train, splits.search, splits.reported[""])]
    assert [len(part) for part in parts] == [48, 6, 6]
    assert len(set.union(*parts)) == 60
    assert sorted(splits.reported[""]["label"][:]) == [0, 0, 1, 1, 2, 2]


def test_with_validation_that_file_is_reported(tmp_path):
    path = write(tmp_path / "train.csv", ROWS)
    task, data = tickets(path, validation=str(write(tmp_path / "dev.jsonl", ROWS[:5])))
    splits = load_splits(task, data, protocol="customary")
    assert splits.reported[""]["text"][:] == [row["title"] for row in ROWS[:5]]
    assert len(splits.train) == 60


def test_regression(tmp_path):
    rows = [{"text": f"text {row}", "stars": row / 2} for row in range(40)]
    path = write(tmp_path / "train.csv", rows)
    data = DataSettings(custom={"stars": CustomTask(train=str(path), text="text", label="stars", kind="regression")})
    task = find_task("custom/stars", data)
    splits = load_splits(task, data)
    assert (task.kind, task.labels, task.primary) == ("regression", (), "pearson")
    assert sorted([*splits.train["label"], *splits.search["label"], *splits.reported[""]["label"]]) == [
        row / 2 for row in range(40)
    ]


@pytest.mark.parametrize("number", [1e300, 10**400, -(10**400), "1e999", "9" * 5000])
def test_a_number_beyond_float32_is_named(tmp_path, number):
    path = write(tmp_path / "train.jsonl", [{"text": f"text {row}", "stars": (row, number)[row == 7]} for row in range(40)])
    data = DataSettings(custom={"stars": CustomTask(train=str(path), text="text", label="stars", kind="regression")})
    with pytest.raises(DataError, match=r"line 8: column 'stars' holds .*; a model computes in float32.*3\.4e\+38"):
        load_splits(find_task("custom/stars", data), data)


@pytest.mark.parametrize(
    ("cells", "given", "labels", "numbers"),
    [
        ([0, 1, 2, 1], None, ("0", "1", "2"), [0, 1, 2, 1]),
        ([-1, 1, 10, 2], None, ("-1", "1", "2", "10"), [0, 1, 3, 2]),
        (["1", "0", "1", "0"], ("bad", "good"), ("bad", "good"), [1, 0, 1, 0]),
        (["good", "bad", "good", "good"], ("bad", "good"), ("bad", "good"), [1, 0, 1, 1]),
        ([1.0, 0.0, 1.0, 0.0], None, ("0", "1"), [1, 0, 1, 0]),
        (["1.0", 1, "1", 0.0, "0", "-0.0"], None, ("0", "1"), [1, 1, 1, 0, 0, 0]),
        (["1.0", "1.1", "1", "1.1"], ("1.0", "1.1"), ("1", "1.1"), [0, 1, 0, 1]),
        (["01", "1", "2", "1"], None, ("01", "1", "2"), [0, 1, 2, 1]),
        (["NA", "EU", "NA", "EU"], ("NA", "EU"), ("NA", "EU"), [0, 1, 0, 1]),
        (["[urgent]", "(b)", "{x}", "[urgent]"], None, ("(b)", "[urgent]", "{x}"), [1, 0, 2, 1]),
    ],
)
def test_labels_by_name_or_number(tmp_path, cells, given, labels, numbers):
    rows = [{"text": f"t{row}", "label": cell} for row, cell in enumerate(cells)]
    path = str(write(tmp_path / "train.jsonl", rows))
    data = DataSettings(custom={"x": CustomTask(train=path, validation=path, text="text", label="label", labels=given)})
    task = find_task("custom/x", data)
    assert task.labels == labels
    assert load_splits(task, data, protocol="customary").reported[""]["label"][:] == numbers


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "title,queue\nx,y\n", "a.csv has no column 'body'; its columns are: title, queue"),
        ("b.csv", "title,body,queue\na,b,c\na,b\n", "b.csv, line 3: 2 cells where the header names 3"),
        ("c.csv", 'title,body,queue\na,"b"x,c\n', "c.csv, line 2: broken CSV"),
        ("d.csv", "title,body,body,queue\na,b,c,d\n", "d.csv, line 1: column 'body' is named twice"),
        ("e.csv", "title,body,queue\n", "e.csv holds no rows"),
        ("f.csv", "", "f.csv holds no rows"),
        ("g.jsonl", '{"title": "a", "body": "b", "queue": "c"}\n\n{"title": \n', "g.jsonl, line 3, column"),
        ("h.jsonl", "[1]\n", "h.jsonl, line 1: expected an object, found list"),
        ("i.json", '[{"title": "a"},\n {"title" "b"}]', "i.json, line 2, column"),
        ("j.json", '{"title": "a"}', "j.json: expected a list of records, found dict"),
        ("k.parquet", "no parquet", "k.parquet is not a parquet file"),
        ("l.txt", "a", "l.txt: files of examples end in .csv"),
        ("m.csv", "title,body,queue\na,b,c\na,b,c\n", "column 'queue' holds 1 different labels; classification needs 2"),
        ("n.csv", "title,body,queue\na,b,c\na,b,\n", "n.csv, line 3: column 'queue' holds ''; a label is expected"),
        ("o.csv", "title,body,queue\na,b,c\na,b,  \n", "o.csv, line 3: column 'queue' holds '  '; a label is expected"),
        ("p.csv", "title,body,queue\na,b,nan\na,b,c\n", "p.csv, line 2: column 'queue' holds 'nan'; a label is expected"),
        ("q.jsonl", '{"title": "a", "body": "b", "queue": ' + "9" * 5000 + "}", "q.jsonl, line 1: a number is too long"),
        (
            "r.jsonl",
            '{"title": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "r.jsonl, line 1: lists or objects are nested too deeply",
        ),
        ("s.json", "[" * 100_000, "s.json: lists or objects are nested too deeply"),
        ("t.csv", 'title,body,queue\na,b,c\n"a,b,c\n' + "a,b,c\n" * 5, "t.csv, line 3: broken CSV in the row that begins here"),
        (
            "u.csv",
            'title,body,queue\na,"b,c\na,b,c"\n',
            "u.csv, line 2: 2 cells where the header names 3 (the row ends",
        ),
        ("v.csv", "title,body,queue,,\na,b,c,,d\n", "v.csv, line 2: 5 cells where the header names 3"),
        ("w.json", '{"title": "a"}\n{"title": \n', "w.json, line 2, column"),
        ("x.jsonl", '[{"title": "a"},\n{"title" "b"}]', "x.jsonl, line 2, column"),
        ("ya.jsonl", '{"title": "a"}\n{"queue": 1, "queue": 2}\n', "ya.jsonl, line 2: the key 'queue' is given twice"),
        ("yb.json", '[{"title": "a"},\n {"m": [{"k": {"r": 1, "r": 1}}]}]', "yb.json, line 2: the key 'r' is given twice"),
        ("yc.json", '{"title": "a"}\n\n{"queue": 1, "queue": 2}\n', "yc.json, line 3: the key 'queue' is given twice"),
        ("za.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n", "za.csv is a pointer of Git LFS"),
        ("zb.jsonl", "\ufeff\n <!-- x -->\n<!DOCTYPE HTML>\n<p>Log in</p>", "zb.jsonl is a web page"),
        ("zc.parquet", '<?xml version="1.0"?>\n<html></html>', "zc.parquet is a web page"),
        ("zd.csv", "/annex/objects/SHA256E-s9--12.csv\n", "zd.csv is a pointer of git-annex"),
        ("ze.csv", "PK\x03\x04 sheet", "ze.csv is a zip archive or a spreadsheet"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        tickets(tmp_path / name)
    assert message in str(caught.value)


LETTERS = "".join(f"the kettle {row} is fine,{'ab'[row % 2]}\n" for row in range(8))
STARS = "".join(f"the kettle {row} is fine,{row % 5 + 1}\n" for row in range(8))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (f'text,label\n"the lamp,a\nthe chair,b\nsaid the paper",b\n{LETTERS}', 2),
        (f'text,label\nfine,a\n"the lamp,a\r\n\r\nsaid the paper",b\n{LETTERS}', 3),
        (f'text;label\n"the lamp;a\nsaid the paper";b\n{LETTERS.replace(",", ";")}', 2),
        ('label,text\na,x\nb,y\na,"the lamp\nb,the chair\na,said the paper"\n', 4),
        ('id,text,label\n1,x,a\n2,y,b\n3,"the lamp,a\n4,the chair,b\n5,said the paper",b\n', 4),
        (f'text,stars\n{STARS}"the lamp,3\nthe chair,4\nsaid the paper",5\n', 10),
    ],
)
def test_a_quote_that_swallows_rows_is_refused_where_it_opened(tmp_path, content, line):
    (tmp_path / "a.csv").write_text(content, encoding="utf-8", newline="")
    with pytest.raises(DataError, match=rf"a\.csv, line {line}: the quote that opens column 'text' closes in line"):
        read_rows(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("greeting.csv", f'text,label\n"Dear Ann,\nhow are you",a\n{LETTERS}', "Dear Ann,\nhow are you"),
        ("letter.csv", f'text,label\n"Dear Ann, Bob,\n\nyours, a\nEve",a\n{LETTERS}', "Dear Ann, Bob,\n\nyours, a\nEve"),
        ("comma.csv", f'text,stars\n"I paid 3,5\nfine",3\n{STARS}', "I paid 3,5\nfine"),
        ("table.csv", f'text,stars\n"name,age\nAnn,3\nwho is it?",3\n{STARS}', "name,age\nAnn,3\nwho is it?"),
        ("code.csv", 'text,response\n"1,2\n3,4\nsum it","4,6"\nhello,hi\n', "1,2\n3,4\nsum it"),
        ("letter.tsv", 'text\tlabel\n"The lamp\ta\nis fine"\tb\n', '"The lamp'),
        ("semicolon.csv", "text;label\na, b;x\n", "a, b"),
        ("tab.csv", 'text\tlabel\n"a\tb"\tx\n', "a\tb"),
        ("empty_columns.csv", "text,label,,\na,b,,\nc,d\ne,f,\n", "a"),
        ("empty_columns.tsv", "text\tlabel\t\na\tb\t\n", "a"),
        ("lines.json", '{"text": "a"}\n{"text": "b"}\n', "a"),
        ("list.jsonl", '[\n{"text": "a"},\n{"text": "b"}]', "a"),
        ("list_in_a_line.jsonl", '[{"text": "a"}, {"text": "b"}]', "a"),
    ],
)
def test_files_as_spreadsheets_and_people_write_them_are_read(tmp_path, name, content, text):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    rows = read_rows(tmp_path / name)
    assert rows.column("text")[0] == text
    assert "" not in rows.columns


@pytest.mark.parametrize(("title", "message"), [(5, "holds 5; text is expected"), ("\ud83d", "holds half a surrogate pair")])
def test_text_that_is_not_text_is_named(tmp_path, title, message):
    task, data = tickets(write(tmp_path / "train.jsonl", [*ROWS, {"title": title, "body": "b", "queue": "help"}]))
    with pytest.raises(DataError, match=rf"train\.jsonl, line 61: column 'title' {message}"):
        load_splits(task, data)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (["door"], "holds ['door']; a label is expected, one for each row"),
        ({"door": 1}, "holds {'door': 1}; a label is expected, one for each row"),
        ([0, 1, 0], "holds [0, 1, 0]; a label is expected, one for each row"),
        ("['door', 'window']", "a label is expected, one for each row"),
        ("[0 1 0]", "a label is expected, one for each row"),
        ("{'door'}", "a label is expected, one for each row"),
        ("('door', 'window')", "a label is expected, one for each row"),
        ("b'door'", "a label is expected, one for each row"),
        (None, "holds nothing; a label is expected"),
        *((word, f"holds '{word}'; a label is expected. If {word} is a class") for word in ("None", "null", "N/A", "NA", "-")),
    ],
)
@pytest.mark.parametrize("named", [None, ("help", "sales", "spam")])
def test_a_label_cell_holds_one_label(tmp_path, cell, message, named):
    path = write(tmp_path / "train.jsonl", [*ROWS, {"title": "a", "body": "b", "queue": cell}])
    with pytest.raises(DataError) as caught:
        tickets(path, labels=named)
    assert "train.jsonl, line 61: column 'queue' holds" in str(caught.value)
    assert message in str(caught.value)


def test_labels_of_bytes_are_refused(tmp_path):
    rows = [{"title": "a", "body": "b", "queue": label} for label in (b"door", b"window")]
    with pytest.raises(DataError, match=r"row 1: column 'queue' holds b'door'; a label is expected, one for each row"):
        tickets(write(tmp_path / "train.parquet", rows))


def test_names_of_rows_are_no_labels(tmp_path):
    path = write(tmp_path / "train.csv", [row | {"queue": f"n{number}"} for number, row in enumerate(ROWS)])
    with pytest.raises(DataError, match="column 'queue' holds 60 different labels in 60 rows: is it the label"):
        tickets(path)


def test_the_plan_counts_and_doubts_classes(tmp_path):
    counts = {"Household": 30, "knowledge": 9, "house hold": 6, "caf\u00e9": 5, "cafe\u0301": 5, "none": 5, "01": 6, "1.0": 5}
    cells = [name for name, count in {**counts, "none|knowledge": 1}.items() for _ in range(count)]
    path = write(tmp_path / "train.csv", [{"title": f"{row}", "body": "b", "queue": cell} for row, cell in enumerate(cells)])
    task, data = tickets(path)
    first, *doubts = custom.describe_classes(task, data.custom["tickets"])
    assert first.startswith("9 classes: Household 30, knowledge 9, 01 6, house hold 6, 1 5, ")
    assert [doubt.partition(" are ")[0] for doubt in doubts[:3]] == [
        "'01' and '1'",
        "'Household' and 'house hold'",
        "'cafe\u0301' and 'caf\u00e9'",
    ]
    assert doubts[3] == "of fewer than 5 rows, too few to learn and score: none|knowledge 1"
    assert doubts[4].startswith("class 'none'")
    assert doubts[5].startswith("'none|knowledge' joins other classes (none, knowledge)")
    assert len(doubts) == 6


def test_large_numbers_are_classes_of_their_own(tmp_path):
    names = [10**15, 10**15 + 1, 2**53, 2**53 + 1, "9" * 5000 + ".0", "1e-400", "1e-401"]
    rows = [{"title": f"{row}", "body": "b", "queue": names[row % len(names)]} for row in range(70)]
    task, data = tickets(write(tmp_path / "train.jsonl", rows))
    _, *doubts = custom.describe_classes(task, data.custom["tickets"])
    assert (len(task.labels), doubts) == (7, [])


@pytest.mark.parametrize("text", ["", "  ", "\u200b\ufeff", "\u3000\n"])
@pytest.mark.parametrize("part", ["train", "validation"])
def test_an_empty_text_is_named(tmp_path, text, part):
    files = {name: [*ROWS, ROWS[0] | {"body": text}] if name == part else ROWS for name in ("train", "validation")}
    paths = {name: str(write(tmp_path / f"{name}.jsonl", rows)) for name, rows in files.items()}
    task, data = tickets(paths["train"], validation=paths["validation"])
    with pytest.raises(DataError, match=rf"{part}\.jsonl, line 61: column 'body' holds .*text is expected, and this cell is"):
        load_splits(task, data)


def test_equal_texts_are_on_one_side_of_every_split(tmp_path):
    rows = [{"text": f"text {row % 20}" + " " * (row % 2), "label": "ab"[row % 2]} for row in range(200)]
    block = {"train": str(write(tmp_path / "train.csv", rows)), "text": "text", "label": "label"}
    data = DataSettings(custom={"x": CustomTask(**block, reported=0.3)})
    splits = load_splits(find_task("custom/x", data), data)
    parts = [{text.strip() for text in split["text"]} for split in (splits.train, splits.search, splits.reported[""])]
    assert list(map(len, parts)) == [12, 2, 6]
    assert len(set.union(*parts)) == 20
    assert splits.notes == []
    usual = DataSettings(custom={"x": CustomTask(**block)})
    assert len(load_splits(find_task("custom/x", usual), usual).reported[""]) == 20
    twice = DataSettings(custom={"x": CustomTask(**block, validation=block["train"])})
    splits = load_splits(find_task("custom/x", twice), twice, eval_examples=50)
    assert splits.notes == ["50 of 50 reported rows are training rows too (equal texts): their score may be learnt by heart"]
    with pytest.raises(ValueError, match="reported is the share of train"):
        CustomTask(**block, validation=block["train"], reported=0.2)


@pytest.mark.parametrize(
    "other",
    ["THE Caf\u00e9 , is fine.", " the cafe\u0301, is  fine .", "the cafe, is \uff46ine.", "the cafe, is\u00a0fi\u200bne."],
)
def test_texts_that_many_tokenizers_read_as_equal_are_on_one_side(tmp_path, other):
    rows = [
        {"text": text, "label": "ab"[row % 2]}
        for row in range(30)
        for text in (f"the caf\u00e9, is fine. {row}", f"{other} {row}")
    ]
    block = CustomTask(train=str(write(tmp_path / "train.csv", rows)), text="text", label="label")
    data = DataSettings(custom={"x": block})
    splits = load_splits(find_task("custom/x", data), data)
    parts = [{text.split()[-1] for text in split["text"]} for split in (splits.train, splits.search, splits.reported[""])]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 30


@pytest.mark.parametrize(
    ("training", "validation", "named"),
    [
        ([1, 2], [0, 1], None),
        ([2, 3, 4, 5], [1, 2, 3], None),
        ([1.5, 2.5], [0, 1.5], None),
        (["a", "b"], ["0", "a"], None),
        (["1", "2"], ["0", "1"], ["1", "2"]),
    ],
)
def test_a_number_that_names_no_class_is_no_position(tmp_path, training, validation, named):
    def file(name, cells):
        return str(write(tmp_path / name, [{"text": f"t{row}", "label": cell} for row, cell in enumerate(cells * 5)]))

    block = CustomTask(
        train=file("a.jsonl", training), validation=file("b.jsonl", validation), text="text", label="label", labels=named
    )
    data = DataSettings(custom={"x": block})
    with pytest.raises(
        DataError, match=rf"b\.jsonl, line 1: column 'label' holds '?{validation[0]}'?; allowed are: {training[0]}, "
    ):
        load_splits(find_task("custom/x", data), data)


def test_odd_files_that_are_in_order_are_read(tmp_path):
    long = [row | {"body": "b" * 200_000} for row in ROWS[:3]]
    assert read_rows(write(tmp_path / "long.csv", long)).column("body")[0] == "b" * 200_000
    (tmp_path / "mark.json").write_text(json.dumps(ROWS), encoding="utf-8-sig")
    assert read_rows(tmp_path / "mark.json").column("queue")[0] == "sales"


def test_a_label_unknown_to_training_is_named(tmp_path):
    validation = write(tmp_path / "dev.csv", [ROWS[0], ROWS[1] | {"queue": "billing"}])
    task, data = tickets(write(tmp_path / "train.csv", ROWS), validation=str(validation))
    with pytest.raises(DataError, match=r"dev\.csv, line 5: column 'queue' holds 'billing'; allowed are: help, sales, spam"):
        load_splits(task, data)


def test_a_missing_file_says_what_lies_beside(tmp_path):
    write(tmp_path / "trian.csv", ROWS)
    with pytest.raises(DataError, match=r"no file .*train\.csv; its folder holds: trian\.csv"):
        tickets(tmp_path / "train.csv")


def test_latin_1_is_refused_with_its_byte(tmp_path):
    (tmp_path / "a.csv").write_bytes("title,body,queue\ncafé,b,c\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv is not UTF-8 text: byte 20"):
        read_rows(tmp_path / "a.csv")


def test_a_spreadsheets_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    (tmp_path / "a.csv").write_bytes("title,queue\na,b\n".encode("utf-8-sig"))
    assert read_rows(tmp_path / "a.csv").column("title") == ["a"]


def test_metrics_are_checked_against_the_kind(tmp_path):
    path = write(tmp_path / "train.csv", ROWS)
    assert tickets(path, metric="macro_f1")[0].primary == "macro_f1"
    with pytest.raises(
        ValueError, match=r"data\.custom\.tickets\.metric: metric 'pearson' does not fit; allowed are: accuracy"
    ):
        tickets(path, metric="pearson")
    with pytest.raises(ValueError, match="unknown metric 'acuracy'"):
        tickets(path, metric="acuracy")


def test_the_suite_custom_is_all_of_the_users_tasks(tmp_path):
    path = str(write(tmp_path / "train.csv", ROWS))
    block = CustomTask(train=path, text="title", label="queue")
    data = DataSettings(custom={"a": block, "b": block})
    assert expand_tasks(["custom", "toy/sentiment"], data) == ["custom/a", "custom/b", "toy/sentiment"]
    with pytest.raises(ValueError, match="unknown task 'custom/c'"):
        find_task("custom/c", data)
    assert custom.row("a", block).text == ("title",)


def test_f1_is_that_of_the_rarer_class_or_of_the_one_that_is_named(tmp_path):
    rows = [{"text": f"t{row}", "label": ("rare", "usual")[row % 10 > 0]} for row in range(100)]
    path = str(write(tmp_path / "train.csv", rows))

    def scores(**settings):
        block = CustomTask(train=path, text="text", label="label", metric="f1", **settings)
        task = find_task("custom/x", DataSettings(custom={"x": block}))
        labels = np.array([row % 10 > 0 for row in range(100)]).astype(int)
        return compute_metrics(task, np.ones(100, dtype=int), labels)["score"], next(custom.describe_classes(task, block))

    assert scores() == (0.0, "2 classes: usual 90, rare 10; f1 is that of 'rare'")
    assert scores(positive="usual") == (pytest.approx(100 * 180 / 190), "2 classes: usual 90, rare 10; f1 is that of 'usual'")
    assert scores(labels=("usual", "rare"))[1].endswith("'rare'")
    with pytest.raises(ValueError, match=r"data\.custom\.x\.positive: got 'odd'; allowed are: rare, usual"):
        scores(positive="odd")
