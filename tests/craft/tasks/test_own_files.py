"""The user's own files: every format gives the same rows, every mistake of a file is named with its place."""

import json

import pytest

from craft.tasks.files import DataError, read_rows
from craft.tasks.splits import load_splits
from orchestrator.review.own_data import describe_skipped
from tests.craft.tasks.tickets import ROWS, tickets, write


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "title,queue\nx,y\n", "a.csv has no column 'body'; its columns are: title, queue"),
        ("b.csv", "title,body,queue\na,b,c\na,b\n", "b.csv, line 3: 2 cells where the header names 3"),
        ("c.csv", 'title,body,queue\na,"b"x,c\n', "c.csv, line 2: broken CSV"),
        ("d.csv", "title,body,body,queue\na,b,c,d\n", "d.csv, line 1: column 'body' is named twice"),
        ("e.csv", "title,body,queue\n", "e.csv holds no rows"),
        ("g.jsonl", '{"title": "a", "body": "b", "queue": "c"}\n\n{"title": \n', "g.jsonl, line 3, column"),
        ("h.jsonl", "[1]\n", "h.jsonl, line 1: expected an object, found list"),
        ("i.json", '[{"title": "a"},\n {"title" "b"}]', "i.json, line 2, column"),
        ("j.json", '{"title": "a"}', "j.json: expected a list of records, found dict"),
        ("k.parquet", "no parquet", "k.parquet is not a parquet file"),
        ("l.txt", "a", "l.txt: files of rows end in .csv"),
        ("m.csv", "title,body,queue\na,b,c\na,b,c\n", "column 'queue' holds 1 different labels; classification needs 2"),
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
        ("x.jsonl", '[{"title": "a"},\n{"title" "b"}]', "x.jsonl, line 2, column"),
        ("ya.jsonl", '{"title": "a"}\n{"queue": 1, "queue": 2}\n', "ya.jsonl, line 2: the key 'queue' is given twice"),
        ("yb.json", '[{"title": "a"},\n {"m": [{"k": {"r": 1, "r": 1}}]}]', "yb.json, line 2: the key 'r' is given twice"),
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
        ("mark.csv", "\ufefftext,label\na,b\n", "a"),
        ("mark.json", '\ufeff[{"text": "a"}]', "a"),
        pytest.param("long.csv", f"text,label\n{'b' * 200_000},x\n", "b" * 200_000, id="long.csv"),
        ("lines.json", '{"text": "a"}\n{"text": "b"}\n', "a"),
        ("list.jsonl", '[\n{"text": "a"},\n{"text": "b"}]', "a"),
        ("list_in_a_line.jsonl", '[{"text": "a"}, {"text": "b"}]', "a"),
    ],
)
def test_files_as_spreadsheets_and_people_write_them_are_read(tmp_path, name, content, text):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    for encoding in (None, "UTF8"):
        rows = read_rows(tmp_path / name, encoding)
        assert rows.column("text")[0] == text
        assert "" not in rows.columns


@pytest.mark.parametrize(("title", "message"), [(5, "holds 5; text is expected"), ("\ud83d", "holds half a surrogate pair")])
def test_text_that_is_not_text_is_named(tmp_path, title, message):
    file = write(tmp_path / "train.jsonl", [*ROWS, {"title": title, "body": "b", "queue": "help"}])
    with pytest.raises(DataError, match=rf"train\.jsonl, line 61: column 'title' {message}"):
        tickets(file)


def test_a_missing_file_says_what_lies_beside(tmp_path):
    write(tmp_path / "trian.csv", ROWS)
    with pytest.raises(DataError, match=r"no file .*train\.csv; its folder holds: trian\.csv"):
        tickets(tmp_path / "train.csv")


TEXTS = {
    "cp1252": "Schöne Grüße, das Gerät fällt aus – „kaputt“",
    "mac_roman": "Le café est fermé à côté",
    "cp850": "El niño no funcionó",
    "cp1250": "Zażółć gęślą jaźń proszę",
    "cp1251": "Не работает доставка",
    "koi8_r": "Где моя посылка",
    "cp1253": "Πού είναι το δέμα μου",
    "shift_jis": "荷物が届きません",
    "gb18030": "我的包裹在哪里",
    "euc_kr": "내 소포가 어디에 있나요",
    "utf-16": "Schöne Grüße",
    "utf-16-le": "the kettle is broken",
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_file_that_is_no_utf_8_names_its_line_and_the_likely_encoding(tmp_path, encoding, suffix):
    file, words = tmp_path / f"a{suffix}", TEXTS[encoding]
    # The first 1,000 rows are ASCII, so that the line is not found in the first block that is read.
    texts = ["fine"] * 1000 + [words]
    table = ["t,u", *(f'"{text}",b' for text in texts)]
    lines = table if suffix == ".csv" else [json.dumps({"t": text}, ensure_ascii=False) for text in texts]
    file.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    with pytest.raises(DataError, match=r"Save the file as UTF-8$"):
        read_rows(file)
    with pytest.raises(DataError) as caught:
        read_rows(file, skip=False)
    message, number = str(caught.value), 1 if encoding.startswith("utf-16") else len(lines)
    assert f"a{suffix}, line {number}: not UTF-8 text" in message
    assert f"suggest --encoding {encoding}" in message
    if not encoding.startswith("utf-16"):
        assert words[:20] in message
    assert read_rows(file, encoding).column("t")[-1] == words
    with pytest.raises(DataError, match="encoding: got 'utf8000'"):
        read_rows(file, "utf8000")


def test_chinese_is_not_taken_for_korean(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\n我要退货,b\n这个产品坏了,a\n请尽快处理我的订单,a\n".encode("gb18030"))
    with pytest.raises(DataError, match=r"likely gb18030, in which it reads '我要退货,b'"):
        read_rows(tmp_path / "a.csv")


def test_another_encoding_than_the_files_is_refused_with_the_likelier_one(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\nDas Gerät fällt aus,b\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"cannot be read as ascii; cp1252 is likelier"):
        read_rows(tmp_path / "a.csv", "ascii")


def test_all_rows_that_cannot_be_used_are_named_at_once_or_left_out(tmp_path):
    bad = [{"body": ""}, {"queue": ""}, {"queue": "N/A"}, {"title": "\u200b\ufeff", "queue": ""}]
    file = write(tmp_path / "train.csv", [*ROWS, *(ROWS[0] | cells for cells in bad), *([ROWS[0] | {"body": " \u3000"}] * 9)])
    with pytest.raises(DataError) as caught:
        tickets(file)
    message = str(caught.value)
    for part in ("line 122: column 'body' holds ''; text is expected", "line 124: column 'queue' holds ''",
                 "line 126: column 'queue' holds", "13 of 73 rows", "column 'body': 10", "column 'queue': 3",
                 "column 'title': 1", "skip_bad: true"):  # fmt: skip
        assert part in message
    assert message.count("column 'body' holds") == 5, "the first five of a kind"
    task, data = tickets(file, skip_bad=True)
    splits = load_splits(task, data)
    assert sum(map(len, (splits.train, splits.search, splits.reported[""]))) == len(ROWS)
    assert task.labels == ("help", "sales", "spam")
    assert [*describe_skipped(data.custom["tickets"])] == [f"13 of 73 rows of {file} are left out, because they cannot be used"]


def test_labels_of_the_validation_file_that_training_lacks_are_named_at_once_or_left_out(tmp_path):
    train = str(write(tmp_path / "train.jsonl", ROWS))
    dev = str(write(tmp_path / "dev.jsonl", [*ROWS, *[ROWS[0] | {"queue": "new"}] * 2]))
    with pytest.raises(DataError, match="2 of 62 rows of"):
        load_splits(*tickets(train, validation=dev))
    assert len(load_splits(*tickets(train, validation=dev, skip_bad=True)).reported[""]) == 60


@pytest.mark.parametrize(
    ("name", "content", "bad"),
    [
        ("a.csv", "t,u\na,b\nc\nd,e\nf,g,h\n", (3, 5)),
        ("a.jsonl", '{"t": "a"}\n{"t": \n{"t": "d"}\n[1]\n', (2, 4)),
        ("a.json", '[{"t": "a"}, 5, {"t": "d"}, null]', (2, 4)),
    ],
)
def test_lines_that_are_no_rows_are_named_at_once_or_left_out(tmp_path, name, content, bad):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_rows(tmp_path / name)
    assert all(f"{'record' if name == 'a.json' else 'line'} {number}" in str(caught.value) for number in bad)
    assert "2 of 4 rows" in str(caught.value)
    assert "skip_bad" not in str(caught.value), "a table that is judged has no such setting"
    with pytest.raises(DataError, match="skip_bad: true"):
        read_rows(tmp_path / name, skip=False)
    rows = read_rows(tmp_path / name, skip=True)
    assert (rows.column("t"), rows.skipped) == (["a", "d"], 2)
