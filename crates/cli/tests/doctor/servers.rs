//! Reducers and table servers that answer, do not, or are something else.

use super::{BINARY, lines};
use herringbone::core::session::handshake::{NONCE_BYTES, Policy, Server, Versions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

const TOKEN: &str = "a token of the tests";

/// A server that ends with the test.
struct Serving {
    child: Child,
    address: String,
    _rest: BufReader<ChildStdout>,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", args)
    }

    fn start_at(listen: &str, args: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", listen]).args(args).env("HERRINGBONE_TOKEN", TOKEN);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut rest = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        rest.read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address, _rest: rest }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What answers one caller after another, at an address.
fn stranger(answer: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || listener.incoming().for_each(|stream| answer(&mut stream.unwrap())));
    address
}

fn received(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let length = stream.read(&mut bytes).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

/// The doctor's exit code, and the level, sentence and command of each finding of a check.
fn called(check: &str, set: &[(&str, &str)]) -> (i32, Vec<[String; 3]>) {
    let (code, rows) = lines("exec \"$@\"", &[], set);
    let text = |row: &serde_json::Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let found = rows.iter().filter(|row| row["check"] == check);
    (code, found.map(|row| ["level", "says", "command"].map(|name| text(row, name))).collect())
}

#[test]
fn each_reducer_is_called_and_has_a_line_of_its_own() {
    let serving = Serving::start(&[]);
    let http = stranger(|stream| {
        received(stream);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").ok();
    });
    let old = stranger(|stream| {
        let policy = Policy { versions: Versions { min: 1, max: 2 }, job: None, world: None };
        let mut server = Server::new(TOKEN.as_bytes(), [7; NONCE_BYTES], policy);
        server.receive(&received(stream)).unwrap_err();
        stream.write_all(&server.transmit().unwrap()).ok();
    });
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = hung.local_addr().unwrap().to_string();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let reducers = [&*serving.address, &http, &old, &silent, &closed, "no.such.host.invalid:7070"].join(",");
    let set = [("HERRINGBONE_REDUCERS", &*reducers), ("HERRINGBONE_TOKEN", TOKEN)];
    let (code, rows) = called("reducer", &set);
    let expected = [
        ("ok", "answers and has this token; protocol version", ""),
        ("warning", "does not speak Herringbone", "ss -ltnp"),
        (
            "warning",
            "runs another release: the other side refused: no common protocol version",
            "herringbone --version",
        ),
        ("warning", "does not answer within 2 s", "ss -ltnp"),
        ("warning", "nothing listens at", "herringbone serve --listen"),
        ("warning", "cannot be looked up", "herringbone settings REDUCERS"),
    ];
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for ([level, says, command], (expected, part, begins)) in rows.iter().zip(expected) {
        assert!(level == expected && says.contains(part) && command.starts_with(begins), "{rows:?}");
    }
    assert_eq!(code, 0, "jobs start without reducers");
}

#[test]
fn a_wrong_token_and_a_server_without_tables_are_told_apart() {
    let serving = Serving::start(&[]);
    let at = &*serving.address;
    let wrong = [("HERRINGBONE_REDUCERS", at), ("HERRINGBONE_TOKEN", "another token of tests")];
    let (code, rows) = called("reducer", &wrong);
    assert!(code == 0 && rows[0][0] == "warning" && rows[0][1].contains("rejects this token"), "{rows:?}");
    assert_eq!(rows[0][2], "herringbone settings TOKEN TOKEN_FILE");
    let forced = [wrong[0], wrong[1], ("HERRINGBONE_ALGORITHM", "reduction_server")];
    let (code, rows) = called("reducer", &forced);
    assert!(code == 1 && rows[0][1].ends_with("HERRINGBONE_ALGORITHM needs it"), "{rows:?}");
    let (code, rows) = called("table server", &[("HERRINGBONE_TABLES", at), ("HERRINGBONE_TOKEN", TOKEN)]);
    assert!(code == 1 && rows[0][1].contains("without tables"), "{rows:?}");
    let twice = format!("{at},{at}");
    let (_, rows) = called("reducer", &[("HERRINGBONE_REDUCERS", &twice), ("HERRINGBONE_TOKEN", TOKEN)]);
    assert!(rows[1][1].contains("are the same process"), "{rows:?}");
}

#[test]
fn a_table_server_answers() {
    let serving = Serving::start(&["--tables"]);
    let set = [("HERRINGBONE_TABLES", &*serving.address), ("HERRINGBONE_TOKEN", TOKEN)];
    let (code, rows) = called("table server", &set);
    assert!(code == 0 && rows[0][0] == "ok", "{rows:?}");
}

#[test]
fn a_table_server_that_is_down_stops_no_job_if_another_has_copies() {
    // Two ports that were free a moment ago. In the range that the system draws from another process could take them.
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [up, down] = ports.map(|port| port.local_addr().unwrap().to_string());
    let both = format!("{up},{down}");
    for (replicas, expected) in [("1", (0, "warning")), ("0", (1, "wrong"))] {
        let _serving = Serving::start_at(&up, &["--tables", "--servers", &both, "--replicas", replicas]);
        let set = [("HERRINGBONE_TABLES", &*both), ("HERRINGBONE_TOKEN", TOKEN)];
        let (code, rows) = called("table server", &set);
        assert_eq!((code, rows[1][0].as_str()), expected, "{rows:?}");
        assert!(rows[0][0] == "ok" && rows[1][1].contains("nothing listens at"), "{rows:?}");
    }
}
