//! What is read, and what is refused with which words.

use std::fs;
use std::io;

use serde_json::json;

use super::*;
use crate::job::NewJob;
use crate::repository::{Archive, Repository};
use crate::{MemoryRepository, Money};

fn read(text: &[u8], format: Format) -> Vec<Result<NewUnit, String>> {
    let source = UnitSource::from_reader(io::Cursor::new(text.to_vec()), format).unwrap();
    source.map(|read| read.map(|placed| placed.unit).map_err(|bad| bad.to_string())).collect()
}

#[test]
fn a_line_of_json_is_a_unit_with_all_that_it_says() {
    let line = br#"{"id":"a","prompt":"p","payload":{"x":1},"template":"t","type":"page","priority":7,"max_retries":1,
        "timeout_seconds":1.5,"max_cost":"0.25","workspace_dir":"/w","output_files":["o"],"max_iterations":3,"affinity_key":"k",
        "resume_session":"s","idempotent":true}"#;
    let line: Vec<u8> = line.iter().copied().filter(|&byte| byte != b'\n').collect();
    let mut expected = NewUnit::new("a")
        .prompt("p")
        .payload(json!({ "x": 1 }))
        .template("t")
        .unit_type("page")
        .priority(7)
        .max_retries(1)
        .timeout(std::time::Duration::from_millis(1_500))
        .workspace_dir("/w")
        .output_file("o")
        .max_iterations(3)
        .affinity_key("k")
        .resume_session("s")
        .idempotent();
    expected.options.max_cost = Some(Money::from_nanos(250_000_000));
    assert_eq!(read(&line, Format::JsonLines), [Ok(expected)]);
    assert_eq!(read(b"{\"id\":17}", Format::JsonLines), [Ok(NewUnit::new("17"))], "a number is a name too");
}

#[test]
fn blank_lines_marks_and_missing_line_ends_are_no_trouble() {
    let text = b"\xef\xbb\xbf{\"id\":\"a\"}\r\n\n   \n{\"id\":\"b\"}";
    assert_eq!(read(text, Format::JsonLines), [Ok(NewUnit::new("a")), Ok(NewUnit::new("b"))]);
    assert_eq!(read(b"", Format::JsonLines), []);
}

#[test]
fn a_bad_line_says_where_and_why_and_the_next_one_follows() {
    let text = b"nonsense\n{\"id\":\"a\"}\n{\"prompt\":\"x\"}\n{\"id\":\"\"}\n{\"id\":\"b\",\"timeout_seconds\":-1}\n\
                 {\"id\":\"c\",\"max_cost\":\"free\"}\n[1]\n{\"id\":\"\xff\"}\n{\"id\":\"d\"} {\n{\"id\":[]}\n{\"id\":\"z\"}\n\
                 {\"id\":\"e\"\n17\n{\"id\":\"f\",\"priority\":\"high\"}\n{\"id\":\"g\",\"id\":\"h\"}\n";
    let reasons: Vec<String> = read(text, Format::JsonLines).into_iter().filter_map(Result::err).collect();
    let expected = [
        "line 1: it is no JSON, from column 2 on",
        "line 3: missing field `id`",
        "line 4: the id `` is empty",
        "line 5: `timeout_seconds` is no time that can be waited",
        "line 6: `max_cost`: `free` is not an amount of dollars with at most nine decimals",
        "line 7: it is a list, not an object with an `id`",
        "line 8: it is not UTF-8",
        "line 9: it is no JSON: trailing characters, at column 12",
        "line 10: `id`: the id is neither a text nor a whole number",
        "line 12: it is no JSON: it ends in the middle",
        "line 13: invalid type: integer `17`, expected an object with an `id`",
        "line 14: `priority`: invalid type: string \"high\", expected a whole number",
        "line 15: duplicate field `id`",
    ];
    assert_eq!(reasons.len(), expected.len(), "{reasons:#?}");
    for (reason, expected) in reasons.iter().zip(expected) {
        assert_eq!(reason, expected);
    }
}

#[test]
fn a_file_that_is_one_list_is_told_and_none_of_its_lines_taken_for_a_unit() {
    let text = b"\n[\n{\"id\":\"a\",\"prompt\":\"x\"},\n{\"id\":\"b\",\"prompt\":\"y\"}\n]\n";
    let read = read(text, Format::JsonLines);
    assert_eq!(read.len(), 1);
    assert!(read[0].as_ref().unwrap_err().starts_with("line 2: it is one list, of which nothing was read"), "{read:?}");
}

#[test]
fn a_line_that_is_too_long_is_left_out_and_takes_no_memory() {
    struct Endless(usize);
    impl io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = buffer.len().min(self.0);
            buffer[..count].fill(b'x');
            self.0 -= count;
            Ok(count)
        }
    }
    use io::Read as _;
    let text = Endless(LENGTH_LIMIT_BYTES + 1).chain(&b"\n{\"id\":\"a\"}\n"[..]);
    let source = UnitSource::from_reader(BufReader::new(text), Format::JsonLines).unwrap();
    let read: Vec<_> = source.map(|read| read.map(|placed| placed.unit.id).map_err(|bad| bad.to_string())).collect();
    assert_eq!(read, [Err("line 1: it is longer than 67108864 bytes".to_owned()), Ok("a".to_owned())]);

    let row = (&b"id,prompt\na,b\nc,\""[..]).chain(Endless(2 * LENGTH_LIMIT_BYTES));
    let source = UnitSource::from_reader(BufReader::new(row), Format::Csv).unwrap();
    let read: Vec<_> = source.map(|read| read.map(|placed| placed.unit.id).map_err(|bad| bad.to_string())).collect();
    assert_eq!(read.len(), 2);
    let told = "line 3: a quote opens here and is not closed within 67108864 bytes: nothing from here on was read";
    assert_eq!(read[1], Err(told.to_owned()));
}

#[test]
fn a_row_of_a_table_is_a_unit_and_its_other_columns_are_its_payload() {
    let text = b"\xef\xbb\xbfid, prompt ,country,note\na,Greet.,Peru,\"one,\n\"\"two\"\"\"\nb,,Chad,\n";
    let first = NewUnit::new("a").prompt("Greet.").payload(json!({ "country": "Peru", "note": "one,\n\"two\"" }));
    let second = NewUnit::new("b").payload(json!({ "country": "Chad", "note": "" }));
    assert_eq!(read(text, Format::Csv), [Ok(first), Ok(second)]);
    assert_eq!(read(b"id,prompt\n", Format::Csv), []);
}

#[test]
fn a_bad_row_says_where_and_why_and_a_bad_header_ends_it() {
    let read = read(b"id,prompt\na,b,c\n\xff,x\n,x\nd,x\ne\n", Format::Csv);
    let reasons: Vec<String> = read.into_iter().filter_map(Result::err).collect();
    let expected = [
        "line 2: it has 3 fields, the header has 2",
        "line 3: its `id` is not UTF-8",
        "line 4: the id `` is empty",
        "line 6: it has 1 field, the header has 2",
    ];
    assert_eq!(reasons, expected);
    for (header, expected) in [
        ("name,prompt\n", "it has no column `id`, but: name, prompt"),
        ("id,x,x\n", "it has the column `x` twice"),
        ("", "it is empty"),
        ("id,\"prompt\n", "line 1: a quote opens here and is never closed: nothing from here on was read"),
    ] {
        let error = UnitSource::from_reader(header.as_bytes(), Format::Csv).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn a_quote_that_is_never_closed_is_told_with_the_line_it_opens_on_and_takes_nothing_in() {
    let text = b"id,prompt,note\na,b,c\nd,\"two\nlines\",\"open\ne,f,g\nh,i,j\n";
    let told = "line 4: a quote opens here and is never closed: nothing from here on was read";
    let first = NewUnit::new("a").prompt("b").payload(json!({ "note": "c" }));
    assert_eq!(read(text, Format::Csv), [Ok(first), Err(told.to_owned())]);
}

#[test]
fn lines_are_counted_whatever_ends_them_and_whether_or_not_anything_is_on_them() {
    for end in ["\n", "\r\n", "\r"] {
        let text = ["\u{feff}\"id\",prompt", "", "a,b", "", "", "c,\"two", "lines\"", "d", "e,f", "g"].join(end);
        let source = UnitSource::from_reader(io::Cursor::new(text), Format::Csv).unwrap();
        let lines = source.map(|read| match read {
            Ok(Placed { place: Place::Line(line), unit }) => (line, unit.prompt.unwrap()),
            Ok(placed) => panic!("{placed:?}"),
            Err(bad) => (0, bad.to_string()),
        });
        let bad = |line: u64| (0, format!("line {line}: it has 1 field, the header has 2"));
        let expected = [(3, "b".to_owned()), (6, format!("two{end}lines")), bad(8), (9, "f".to_owned()), bad(10)];
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{end:?}");
    }
}

#[test]
fn a_quote_inside_of_a_field_is_a_sign_like_any_other() {
    let text = b"id,prompt\na,5\" disk\nb,\"say \"\"hi\"\"\" now\nc,\"\"\n";
    let expected = [
        Ok(NewUnit::new("a").prompt("5\" disk")),
        Ok(NewUnit::new("b").prompt("say \"hi\" now")),
        Ok(NewUnit::new("c")),
    ];
    assert_eq!(read(text, Format::Csv), expected);
}

#[test]
fn what_a_line_says_of_its_retries_counts_also_if_it_is_the_default() {
    let retries = |text: &str, format: Format| -> Vec<u32> {
        let source = UnitSource::from_reader(io::Cursor::new(text.to_owned()), format).unwrap().max_retries(9);
        source.map(|read| read.unwrap().unit.max_retries).collect()
    };
    let lines = "{\"id\":\"a\"}\n{\"id\":\"b\",\"max_retries\":3}\n{\"id\":\"c\",\"max_retries\":0}\n";
    assert_eq!(retries(lines, Format::JsonLines), [9, 3, 0]);
    assert_eq!(retries("id,prompt\na,b\n", Format::Csv), [9]);
}

#[test]
fn a_file_in_a_folder_is_a_unit_named_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("m")).unwrap();
    write("z.txt", b"last");
    write("a.md", b"first");
    write("m/b.txt", b"below");
    write("m/bad.txt", b"\xff");
    write(".hidden", b"no");
    std::os::unix::fs::symlink(folder.path(), folder.path().join("m/round")).unwrap();
    let source = || UnitSource::open(folder.path(), None).unwrap();
    let prompts: Vec<_> = source().filter_map(Result::ok).map(|placed| placed.unit).collect();
    let expected = [
        NewUnit::new("a.md").prompt("first"),
        NewUnit::new("m/b.txt").prompt("below"),
        NewUnit::new("z.txt").prompt("last"),
    ];
    assert_eq!(prompts, expected);
    let bad: Vec<String> = source().filter_map(Result::err).map(|bad| bad.reason).collect();
    assert_eq!(bad, ["it is not UTF-8", "it is no file"]);
    let payload = source().for_template().next().unwrap().unwrap().unit;
    assert_eq!(payload, NewUnit::new("a.md").payload(json!({ "path": "a.md", "text": "first" })));
}

#[test]
fn what_cannot_be_opened_says_so() {
    let error = UnitSource::open("/no/such/file.jsonl", None).unwrap_err();
    assert_eq!(error.to_string(), "units cannot be read from `/no/such/file.jsonl`");
    assert!(error.source().is_some());
    let file = tempfile::NamedTempFile::with_suffix(".dat").unwrap();
    let error = UnitSource::open(file.path(), None).unwrap_err().to_string();
    assert!(error.ends_with("so its format must be given"), "{error}");
    assert!(UnitSource::open(file.path(), Some(Format::JsonLines)).is_ok());
}

#[test]
fn the_same_source_again_adds_only_what_is_new() {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("j")).unwrap().id;
    let lines = |count: usize| {
        let lines = (0..count).map(|number| format!("{{\"id\":\"{number}\",\"prompt\":\"go\"}}\n"));
        lines.collect::<String>()
    };
    let fed = |text: String| {
        let source = UnitSource::from_reader(io::Cursor::new(text), Format::JsonLines).unwrap();
        feed(&repository, job, source, |_, _| true).unwrap()
    };
    let first = fed(lines(1_200));
    assert_eq!((first.added, first.known), (1_200, 0));
    let second = fed(lines(1_201));
    assert_eq!((second.added, second.known, second.total()), (1, 1_200, 1_201));
    assert_eq!(repository.counts(job).unwrap().pending, 1_201);
}

#[test]
fn one_unit_that_cannot_be_stored_takes_none_with_it_and_whoever_has_enough_ends_it() {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("j")).unwrap().id;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let text = format!(
        "{{\"id\":\"a\",\"prompt\":\"x\"}}\n{{\"id\":\"b\",\"payload\":{deep}}}\n{{\"id\":\"c\",\"prompt\":\"x\"}}\n"
    );
    let source = |text: &str| UnitSource::from_reader(io::Cursor::new(text.to_owned()), Format::JsonLines).unwrap();
    let mut told = Vec::new();
    let fed = feed(&repository, job, source(&text), |_, trouble| {
        told.extend(trouble.map(|trouble| trouble.to_string()));
        true
    });
    let fed = fed.unwrap();
    assert_eq!((fed.added, fed.bad), (2, 1), "{told:?}");
    assert!(told[0].starts_with("line 2: "), "{told:?}");

    let ended = feed(&repository, job, source("{}\n{\"id\":\"d\"}\n"), |_, trouble| trouble.is_none());
    assert!(matches!(ended, Err(FeedError::Ended(fed)) if fed.bad == 1 && fed.added == 0));
}
