use super::*;

const TEXT: &str = "\
schedule workers=2 reducers=1 cut=even:2
rank 0
  slots plain acc
  send u0 -> 2
  recv c0 u0 <- 2
  fold c1 s1 = u1 @2:acc+
  copy s0 = u1
rank 1
rank 2
  slots plain plain acc
  finish c0 s0 = @0:plain @1:plain s1+ s2++
  send s0 -> 0 1
";

#[test]
fn text_round_trips() {
    let schedule = Schedule::parse(TEXT).unwrap();
    assert_eq!(schedule.to_string(), TEXT);
    assert_eq!(schedule.ranks(), 3);
    let coded = TEXT.replace("even:2", "blocks:2").replace("slots plain acc", "slots coded result");
    let coded =
        coded.replace("copy s0 = u1", "encode s0 = u1\n  decode c0 u0 = @2:result\n  decode c1 u1 = s1");
    assert_eq!(Schedule::parse(&coded).unwrap().to_string(), coded);
    let merging = Schedule::parse(&coded.replace("u1 = s1", "u1 = s1+")).unwrap_err().to_string();
    assert!(merging.contains("expected a source without +, found \"s1+\""), "{merging}");
    let empty = "schedule workers=0 reducers=0 cut=given:0\n";
    assert_eq!(empty.parse::<Schedule>().unwrap().to_string(), empty);
}

#[test]
fn layout_and_comments_mean_nothing() {
    let loose = TEXT.replace("  ", "\t").replace('\n', "\r\n\n # a comment\n").replace("u0 ->", "u0\t -> ");
    assert_eq!(Schedule::parse(&loose).unwrap(), Schedule::parse(TEXT).unwrap());
}

#[test]
fn errors_say_where() {
    let cases = [
        ("workers=2", "workers=two", "line 1 column 18: expected at most 64 ranks, found \"two\""),
        ("reducers=1", "reducers=63", "line 1 column 29: expected at most 64 ranks, found \"63\""),
        (" cut=even:2", "", "line 1 column 30: expected cut=, found the end"),
        (
            "even:2",
            "even:65537",
            "line 1 column 40: expected even:chunks, blocks:chunks, weighted:weights, weighted_blocks:weights or given:parts, at most 65536",
        ),
        ("rank 1", "rank 2", "line 8 column 6: expected the ranks in order, found \"2\""),
        (
            "rank 1",
            "slots acc\nrank 1",
            "line 8 column 1: expected send, recv, fold, finish, copy, encode, decode or rank",
        ),
        ("plain acc", "plain äcc", "line 3 column 15: expected plain, acc, coded or result, found \"äcc\""),
        (
            "c1 s1",
            "c1 x1",
            "line 6 column 11: expected a place: u and a chunk, or s and a slot, found \"x1\"",
        ),
        ("c1 s1", "1 s1", "line 6 column 8: expected a chunk, found \"1\""),
        ("-> 2", "->", "line 4 column 13: expected a rank, found the end"),
        ("-> 2", "-> +2", "line 4 column 14: expected a rank, found \"+2\""),
        ("-> 2", "-> 4294967296", "line 4 column 14: expected a rank, found \"4294967296\""),
        ("<- 2", "<- 2 3", "line 5 column 19: expected the end of the line, found \"3\""),
        ("@2:acc+", "@2:bcc+", "line 6 column 22: expected plain, acc, coded or result, found \"bcc\""),
        ("@2:acc+", "@2", "line 6 column 19: expected a source: a place or @rank:form"),
        ("-> 0 1", "-> 0 1\nrank 3", "line 13 column 1: expected no more ranks than in the first line"),
        ("rank 1\n", "", "line 8 column 6: expected the ranks in order, found \"2\""),
    ];
    for (from, to, message) in cases {
        let error = Schedule::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let error = Schedule::parse(&TEXT[..TEXT.find("rank 1").unwrap()]).unwrap_err();
    assert_eq!(error.to_string(), "line 8 column 1: expected another rank, found the end");
    assert_eq!((error.line(), error.column()), (8, 1));
    let merges = TEXT.replace("@2:acc+", &format!("u0{}", "+".repeat(256)));
    assert!(Schedule::parse(&merges).unwrap_err().to_string().contains("at most 255 +"));
}

/// Any word in place of any other: the text is refused, or written and read back the same.
#[test]
fn any_text_is_read_or_refused() {
    let words: Vec<&str> = TEXT.split_inclusive([' ', '\n']).collect();
    let (mut read, mut refused) = (0, 0);
    for at in 0..words.len() {
        for word in &words {
            let mut text = words.clone();
            text[at] = word;
            match Schedule::parse(&text.concat()) {
                Ok(schedule) => {
                    assert_eq!(Schedule::parse(&schedule.to_string()), Ok(schedule));
                    read += 1;
                }
                Err(error) => {
                    assert!(error.line() <= TEXT.lines().count() + 1);
                    refused += 1;
                }
            }
        }
    }
    assert!(read > 500 && refused > 2000, "{read} read, {refused} refused");
}
