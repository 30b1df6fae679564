use super::*;
use crate::{Command, Verb};
use clap::Parser;
use herringbone::{
    Collective, ReduceOp,
    core::{
        element::DType,
        group::Group,
        plan::{Request, choose},
    },
};
use serde_json::Value;

const MEASURED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/profiles/measured.json");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/training/vgg16.csv");

fn shown(args: &[&str]) -> Result<String, Failure> {
    let command = Command::parse_from(["herringbone", "simulate-training"].iter().chain(args));
    let Verb::SimulateTraining(options) = command.verb else { panic!("simulate-training is a verb") };
    let mut out = Vec::new();
    run(&options, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn object(args: &[&str]) -> Value {
    serde_json::from_str(&shown(&[args, &["--json"]].concat()).unwrap()).unwrap()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"))
}

fn steps(args: &[&str]) -> Vec<Value> {
    object(args)["steps"].as_array().unwrap().clone()
}

#[test]
fn one_worker_sums_nothing_and_a_faster_one_has_more_to_wait_for() {
    let rows = steps(&["--model", "vgg16", "--algorithm", "ring", "--workers", "1,4", "--gbps", "10"]);
    assert_eq!((number(&rows[0], "efficiency"), number(&rows[0], "exposed_s")), (1.0, 0.0));
    // 64 images at 154 images/s.
    assert!((number(&rows[0], "step_s") - 64.0 / 154.0).abs() < 1e-9);
    let fast =
        ["--model", "vgg16", "--algorithm", "ring", "--workers", "4", "--gbps", "10", "--rate", "7e13"];
    assert!(number(&steps(&fast)[0], "efficiency") < 0.5 * number(&rows[1], "efficiency"));
}

/// The profile's own buckets equal the rule's buckets for its moments.
#[test]
fn buckets_of_a_measured_profile_are_those_of_torchs_rule() {
    let buckets =
        |args: &[&str]| object(&[&["--model", MEASURED, "--workers", "1"], args].concat())["buckets"].clone();
    let measured = buckets(&[]);
    assert_eq!(measured[0], serde_json::json!({"bytes": 1_049_600, "ready_s": 0.006}));
    assert_eq!(measured[1], serde_json::json!({"bytes": 2_101_248, "ready_s": 0.0105}));
    assert_eq!(buckets(&["--bucket-mib", "1"]), measured);
    assert_eq!(buckets(&["--bucket-mib", "25"]).as_array().unwrap().len(), 1);
}

/// Two links of 0.5 Gbit/s: each sum of two workers is the bucket's bytes on a port, and the first begins at 11 ms of 15.5.
#[test]
fn a_step_is_what_it_is_by_hand() {
    let args =
        ["--model", MEASURED, "--workers", "2", "--algorithm", "ring", "--gbps", "0.5", "--in-flight", "1"];
    let row = &steps(&args)[0];
    let sums = number(row, "communication_s");
    // 3.15 MB at 62.5 MB/s, and less than 2 % for all else.
    let ideal = 3_150_848.0 / 62.5e6;
    assert!((1.0..1.02).contains(&(sums / ideal)), "{sums} {ideal}");
    // One sum after the other, from the moment at which the first bucket is ready.
    assert!((number(row, "exposed_s") - (0.011 + sums - 0.0155)).abs() < 1e-9, "{row}");
    assert!((number(row, "step_s") - (0.0185 + number(row, "exposed_s"))).abs() < 1e-9, "{row}");
}

/// The measured profile without sums: one worker on the two cores of its host, or four on the cores of one computer that plays all hosts.
#[test]
fn without_idle_cores_all_sums_are_exposed() {
    let folder = std::env::temp_dir();
    let file = |name: &str| folder.join(format!("herringbone-training-{}-{name}", std::process::id()));
    let (profile, constants) = (file("alone.json"), file("constants"));
    let text = std::fs::read_to_string(MEASURED).unwrap();
    std::fs::write(&profile, text.replace("\"sums\": true", "\"sums\": false")).unwrap();
    let of = |model: &str, per_host: &str, shared: &str| {
        std::fs::write(&constants, format!("port_gbit_per_s = 1\nshared_cores = {shared}\n")).unwrap();
        let args = ["--model", model, "--algorithm", "ring", "--workers", "4", "--per-host", per_host];
        let args = [&args[..], &["--in-flight", "1", "--calibration", constants.to_str().unwrap()]].concat();
        let row = steps(&args).remove(0);
        (number(&row, "step_s"), number(&row, "communication_s"), number(&row, "exposed_s"))
    };
    let alone = profile.to_str().unwrap();
    // 3 ms after the last gradient are work if nothing was summed. One core of each host is idle.
    let (step, sums, exposed) = of(alone, "1", "0");
    assert!((step - 0.0215 - exposed).abs() < 1e-9 && exposed < 0.9 * sums, "{step} {sums} {exposed}");
    assert!((of(MEASURED, "1", "0").2 - exposed).abs() < 1e-9);
    for (per_host, shared) in [("1", "2"), ("2", "0"), ("4", "0")] {
        let (step, sums, exposed) = of(alone, per_host, shared);
        assert!((exposed - sums).abs() < 1e-9, "{sums} {exposed}");
        assert!((step - 0.0215 - sums).abs() < 1e-9, "{step} {sums}");
    }
    let text = shown(&["--model", alone, "--algorithm", "ring", "--workers", "4", "--gbps", "1"]).unwrap();
    assert!(text.contains("measured without sums, on 2 cores, with 1 threads per worker"), "{text}");
    for path in [&profile, &constants] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_length_is_simulated_once_and_the_parameter_server_takes_the_reduction_servers() {
    let of = |names: &str| {
        let args = ["--model", "resnet50", "--workers", "2..8", "--gbps", "10", "--algorithm", names];
        object(&args)["simulations"].as_u64().unwrap()
    };
    // Five buckets of five lengths, for 2, 4 and 8 workers.
    assert_eq!(of("reduction_server"), 15);
    assert_eq!(of("reduction_server,parameter_server,ring"), 30);
}

#[test]
fn more_in_flight_and_faster_links_never_take_longer() {
    let step = |gbps: &str, in_flight: &str| {
        let args =
            ["--model", "resnet50", "--workers", "8", "--algorithm", "ring,parameter_server", "--gbps"];
        let rows = steps(&[&args[..], &[gbps, "--in-flight", in_flight]].concat());
        rows.iter().map(|row| number(row, "step_s")).collect::<Vec<_>>()
    };
    for [(gbps, in_flight), (more_gbps, more)] in
        [[("1", "1"), ("1", "4")], [("10", "1"), ("10", "2")], [("1", "4"), ("10", "4")]]
    {
        let (slow, fast) = (step(gbps, in_flight), step(more_gbps, more));
        assert!(slow.iter().zip(&fast).all(|(slow, fast)| slow >= fast), "{slow:?} {fast:?}");
    }
}

#[test]
fn codecs_shorten_what_has_a_coded_form_and_the_rest_is_left_out_with_a_reason() {
    let args = ["--model", "vgg16", "--workers", "4", "--gbps", "1", "--codec", "none,int8"];
    let found = object(&[&args[..], &["--algorithm", "sharded,ring,parameter_server"]].concat());
    let rows = found["steps"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{found}");
    assert!(number(&rows[1], "step_s") < 0.7 * number(&rows[0], "step_s"), "{found}");
    let alone =
        steps(&["--model", "vgg16", "--workers", "1", "--algorithm", "ring,sharded", "--codec", "int8"]);
    assert_eq!((alone.len(), &alone[0]["algorithm"]), (1, &Value::from("sharded")));
    let left_out = found["left_out"].to_string();
    assert!(
        left_out.contains("codecs are for gradients") && left_out.contains("no coded form"),
        "{left_out}"
    );
    let failure = shown(&[&args[..6], &["--codec", "int8", "--algorithm", "ring"]].concat()).unwrap_err();
    assert!(failure.to_string().contains("nothing is left to show"), "{failure}");
}

#[test]
fn a_topology_says_how_many_workers_there_are() {
    const DGX1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/dgx1.txt");
    let rows = steps(&["--model", "alexnet", "--algorithm", "trees(best)", "--topology", DGX1]);
    assert_eq!(rows[0]["workers"], 8);
    let failure = shown(&["--model", "alexnet", "--topology", DGX1, "--workers", "2,4"]).unwrap_err();
    assert!(failure.to_string().contains("--workers has 2 numbers"), "{failure}");
}

#[test]
fn options_that_do_nothing_are_refused() {
    for (args, said) in [
        (&["--model", MEASURED, "--rate", "1e12"][..], "--rate and --batch have no effect"),
        (&["--model", "vgg16", "--algorithm", "ring", "--reducers", "3"], "--reducers has no effect"),
        (&["--model", "vgg16", "--rate", "1"], "at most 1000000 are allowed"),
        (&["--model", "vgg"], "did you mean vgg16?"),
    ] {
        let failure = shown(args).unwrap_err().to_string();
        assert!(failure.contains(said), "{failure}");
    }
}

/// What a job chooses differs between small buckets and large ones, and its costs equal the costs of the algorithms that it names.
#[test]
fn the_choice_of_a_job_is_that_of_explain_for_each_bucket() {
    let args = |ways| ["--model", "resnet50", "--workers", "8", "--gbps", "1", "--algorithm", ways];
    let chosen = &steps(&args("chosen"))[0];
    let names = chosen["chosen"].as_array().unwrap();
    let buckets = object(&args("chosen"))["buckets"].as_array().unwrap().clone();
    assert_eq!(names.len(), buckets.len());
    for (name, bucket) in names.iter().zip(&buckets) {
        let group = Group::of_size(8);
        let hosts: Vec<u32> = (0..8).collect();
        let count = bucket["bytes"].as_u64().unwrap() as usize / 4;
        let of_elements =
            Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, count, &group);
        let request = Request { hosts: &hosts, ..of_elements };
        assert_eq!(*name, choose(&request).unwrap().algorithm.to_string());
    }
    let said = &steps(&args(names[0].as_str().unwrap()))[0];
    assert_eq!(number(chosen, "step_s"), number(said, "step_s"));
    // Constants decide where a job has some, and reducers are chosen only if there are some.
    let served = [&args("chosen")[..], &["--reducers", "8"]].concat();
    assert_eq!((number(chosen, "reducers"), number(&steps(&served)[0], "reducers")), (0.0, 8.0));
    assert_ne!(steps(&served)[0]["chosen"], chosen["chosen"]);
}

/// Messages that are long on their way are few: a job knows the round trip between hosts, and one host has none.
#[test]
fn a_long_way_changes_what_a_job_chooses_between_hosts() {
    let chosen = |per_host: &str, latency: &str| {
        let args = ["--model", "alexnet", "--workers", "8", "--per-host", per_host, "--latency-us", latency];
        steps(&[&args[..], &["--algorithm", "chosen", "--bucket-mib", "0.5"]].concat())[0]["chosen"].clone()
    };
    assert_ne!(chosen("1", "30"), chosen("1", "30000"));
    assert_eq!(chosen("8", "30"), chosen("8", "30000"));
}

/// `UPDATE_GOLDEN=1` writes it again.
#[test]
fn a_table_is_as_it_was() {
    let args = ["--model", "vgg16", "--workers", "1..16", "--gbps", "10", "--latency-us", "30", "--csv"];
    let found = shown(&args).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(GOLDEN).unwrap());
    assert_eq!(found.lines().count(), 1 + 8 * 5);
}

#[test]
fn the_picture_has_a_curve_for_each_way() {
    let path = std::env::temp_dir().join(format!("herringbone-training-{}.svg", std::process::id()));
    let args =
        ["--model", "resnet50", "--workers", "1..8", "--algorithm", "ring,star", "--gbps", "10", "--svg"];
    let text = shown(&[&args[..], &[path.to_str().unwrap()]].concat()).unwrap();
    let picture = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.starts_with("# ResNet-50: 64 samples per step"), "{text}");
    assert_eq!(picture.matches("<polyline").count(), 2);
    for words in ["ResNet-50: scaling efficiency by workers", "ring, 9", "star, ", "star of 8"] {
        assert!(picture.contains(words), "{words}");
    }
    // A single number of workers has a picture, too.
    shown(&["--model", "resnet50", "--workers", "4", "--algorithm", "ring", "--svg", path.to_str().unwrap()])
        .unwrap();
    let picture = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
}

/// A profile in a file of this test's own.
fn with_profile<T>(name: &str, text: &str, then: impl FnOnce(&str) -> T) -> T {
    let path = std::env::temp_dir().join(format!("herringbone-{name}-{}.json", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let found = then(path.to_str().unwrap());
    std::fs::remove_file(&path).unwrap();
    found
}

/// 5,000 parameters of 4 PiB are more bytes than 64 bits count.
#[test]
fn a_profile_of_more_bytes_than_can_be_counted_has_as_many_as_can() {
    let parameter =
        r#"{"name": "w", "shape": [1125899906842624], "dtype": "float32", "bytes": 4503599627370496}"#;
    let parameters = vec![parameter; 5000].join(",");
    let text = format!(
        r#"{{"format": "herringbone model profile", "version": 1, "name": "big", "source": "", "sample": "", "timing": "operations",
            "layers": [{{"name": "", "multiply_adds": 1000000, "parameters": [{parameters}]}}]}}"#
    );
    let args =
        |path: &str| shown(&["--model", path, "--rate", "1e9", "--algorithm", "ring", "--workers", "1,2"]);
    let text = with_profile("big", &text, args).unwrap();
    assert!(
        text.contains("17592186044416.0 MiB") && text.contains("left out: ring with 2 workers"),
        "{text}"
    );
}

#[test]
fn a_step_that_computes_nothing_has_no_efficiency() {
    let measured = std::fs::read_to_string(MEASURED).unwrap();
    let mut text = measured.clone();
    for (name, seconds) in
        [("forward", "0.005"), ("backward", "0.0105"), ("optimizer", "0.002"), ("other", "0.001")]
    {
        text = text.replace(&format!("\"{name}_seconds\": {seconds}"), &format!("\"{name}_seconds\": 0"));
    }
    assert_ne!(text, measured);
    let failure = with_profile("idle", &text, |path| shown(&["--model", path])).unwrap_err().to_string();
    assert!(failure.contains("Classifier computes nothing in a step"), "{failure}");
}

#[test]
fn a_codec_that_is_named_twice_has_one_row() {
    let codecs =
        ["--model", "vgg16", "--algorithm", "sharded", "--workers", "2", "--codec", "none,int8,none"];
    let found: Vec<_> = steps(&codecs).iter().map(|row| row["codec"].clone()).collect();
    assert_eq!(found, ["none", "int8"]);
}
