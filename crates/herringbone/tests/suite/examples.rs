//! The programs of `examples`, as their pages start them: a process for each rank.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Lines, Read},
    process::{Child, ChildStdout, Command, Output, Stdio},
};

const TOKEN: &str = "a token of the examples";

/// An example, which cargo has built beside this test.
fn example(name: &str) -> Command {
    let built = env::current_exe().unwrap();
    let path = built.parent().unwrap().with_file_name("examples").join(name);
    assert!(path.exists(), "no {}; cargo build --examples makes it", path.display());
    let mut command = Command::new(path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("HERRINGBONE_TOKEN", TOKEN);
    command
}

/// The last line that each rank says, in the order of ranks.
#[track_caller]
fn last_words(name: &str, size: u32, settings: &[(&str, &str)]) -> Vec<String> {
    // Nobody else meets there: loopback has 16 million addresses, and this process uses only its own.
    let process = std::process::id();
    let store = format!("127.{}.{}.{size}:7070", process >> 8 & 255, process & 255);
    let start = |rank: u32| {
        let rank = rank.to_string();
        let mut command = example(name);
        command.env("RANK", rank).env("WORLD_SIZE", size.to_string()).env("HERRINGBONE_STORE", &store);
        command.envs(settings.iter().copied()).env("HERRINGBONE_TIMEOUT_S", "20").spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..size).map(start).collect();
    let said = |rank: Child| {
        let Output { status, stdout, stderr } = rank.wait_with_output().unwrap();
        assert!(status.success(), "{name}: {status}\n{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().lines().last().unwrap_or_default().to_owned()
    };
    ranks.into_iter().map(said).collect()
}

#[test]
fn processes_fit_one_line_to_the_points_of_all() {
    let expected = ["rank 0 of 2: y = 3.00 x + 1.00", "rank 1 of 2: y = 3.00 x + 1.00"];
    assert_eq!(last_words("all_reduce", 2, &[]), expected);
}

#[test]
fn named_operations_are_run_in_one_order() {
    let expected = ["rank 0 of 3: 8 sums", "rank 1 of 3: 8 sums", "rank 2 of 3: 8 sums"];
    assert_eq!(last_words("named", 3, &[]), expected);
}

#[test]
fn rows_on_a_server_of_the_same_program_reach_their_targets() {
    let mut command = example("tables");
    let Output { status, stdout, stderr } = command.env_remove("HERRINGBONE_TABLES").output().unwrap();
    assert!(status.success(), "{status}\n{}", String::from_utf8_lossy(&stderr));
    let expected = "rank 0 of 1: step 40, at most 0.000 from the targets\n";
    assert_eq!(String::from_utf8_lossy(&stdout), expected);
}

#[test]
fn workers_move_rows_on_a_server_with_an_optimizer_of_its_own_beside() {
    let mut server = example("own_optimizer").arg("127.0.0.1:0").spawn().unwrap();
    let mut first = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let address = first.trim().strip_prefix("listening on ").expect("where the server listens");
    let said = last_words("tables", 2, &[("HERRINGBONE_TABLES", address)]);
    server.kill().unwrap();
    server.wait().unwrap();
    let moved = "step 40, at most 0.000 from the targets";
    assert_eq!(said, [0, 1].map(|rank| format!("rank {rank} of 2: {moved}")));
}

#[test]
fn a_reducer_adds_up_for_workers_and_ends_when_it_is_told() {
    let mut reducer =
        example("reducers").args(["serve", "127.0.0.1:0"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reducer.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let address = first.trim().strip_prefix("listening at ").expect("where the reducer listens");
    let settings = [("HERRINGBONE_REDUCERS", address), ("HERRINGBONE_ALGORITHM", "reduction_server")];
    let moved = "a sum of 6; 1048576 bytes to reducers, 1048576 from them";
    let expected = [0, 1, 2, 3].map(|rank| format!("rank {rank}: {moved}"));
    assert_eq!(last_words("reducers", 4, &settings), expected);
    drop(reducer.stdin.take());
    let mut last = String::new();
    lines.read_to_string(&mut last).unwrap();
    assert_eq!(last, "served 1 jobs\n");
    assert!(reducer.wait().unwrap().success());
}

/// Ranks that learn boosted trees, each of which is started again by hand after it was killed.
struct Boosting {
    store: String,
    ranks: Vec<Child>,
    lines_of_first: Lines<BufReader<ChildStdout>>,
}

impl Boosting {
    const RANKS: u32 = 3;

    fn start(port: u16) -> Self {
        let process = std::process::id();
        let store = format!("127.{}.{}.1:{port}", process >> 8 & 255, process & 255);
        let mut ranks: Vec<Child> = (0..Self::RANKS).map(|rank| Self::process(&store, rank, 0)).collect();
        let lines_of_first = BufReader::new(ranks[0].stdout.take().unwrap()).lines();
        Self { store, ranks, lines_of_first }
    }

    fn process(store: &str, rank: u32, attempt: u32) -> Child {
        let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/digits/digits.txt");
        let mut command = example("rabit_boosting");
        command.args([digits, "1"]).env("RANK", rank.to_string()).env("WORLD_SIZE", Self::RANKS.to_string());
        command.env("HERRINGBONE_STORE", store).env("HERRINGBONE_TIMEOUT_S", "20");
        command.env("DMLC_NUM_ATTEMPT", attempt.to_string()).spawn().unwrap()
    }

    /// Kills a rank and starts it again once so many trees are there.
    fn kill(&mut self, rank: u32, trees: u32, attempt: u32) {
        let has_come = |line: String| {
            let number = line.strip_prefix("tree ")?.split(' ').next()?.parse::<u32>().ok()?;
            (number >= trees).then_some(())
        };
        self.lines_of_first.by_ref().map_while(Result::ok).find_map(has_come).expect("rank 0 learns on");
        let process = &mut self.ranks[rank as usize];
        process.kill().unwrap();
        process.wait().unwrap();
        *process = Self::process(&self.store, rank, attempt);
        if rank == 0 {
            self.lines_of_first = BufReader::new(process.stdout.take().unwrap()).lines();
        }
    }

    /// What each rank says last.
    fn last_words(mut self) -> Vec<String> {
        let first = self.lines_of_first.map_while(Result::ok).last().unwrap_or_default();
        let others = self.ranks.split_off(1).into_iter().map(|rank| {
            let Output { status, stdout, stderr } = rank.wait_with_output().unwrap();
            assert!(status.success(), "{status}\n{}", String::from_utf8_lossy(&stderr));
            String::from_utf8(stdout).unwrap().lines().last().unwrap_or_default().to_owned()
        });
        let others: Vec<String> = others.collect();
        assert!(self.ranks.remove(0).wait().unwrap().success());
        [first].into_iter().chain(others).collect()
    }
}

#[test]
fn boosted_trees_are_the_same_if_processes_are_killed() {
    let whole = Boosting::start(7071).last_words();
    assert!(
        whole[0].contains("of the digits are known") && whole.iter().all(|line| *line == whole[0]),
        "{whole:?}"
    );
    let drawn = RandomState::new().hash_one(0);
    let mut killed = Boosting::start(7072);
    for (attempt, trees) in (1..).zip([60, 120, 180]) {
        killed.kill((drawn >> (8 * attempt)) as u32 % Boosting::RANKS, trees, attempt);
    }
    assert_eq!(killed.last_words(), whole, "{drawn:x}");
}
