//! What is printed, drawn and refused.

use super::*;
use crate::{Command, Verb};
use clap::Parser;

fn shown(args: &str) -> Result<String, Failure> {
    let command = Command::parse_from(["herringbone", "show"].into_iter().chain(args.split(' ')));
    let Verb::Show(options) = command.verb else { panic!("show is a verb") };
    let mut out = Vec::new();
    run(&options, &mut out).map(|_| String::from_utf8(out).unwrap())
}

#[test]
fn schedules_look_as_they_are_kept() {
    for (args, kept) in [
        ("--algorithm radix(2,2) --ranks 4", "radix-2-2-4"),
        ("--algorithm ring --ranks 4", "ring-4"),
        ("--algorithm tree --ranks 4 --collective reduce(2)", "tree-reduce-2-4"),
        ("--algorithm reduction_server --ranks 3 --reducers 2", "reduction_server-3x2"),
        ("--algorithm hierarchical --ranks 4 --per-host 2", "hierarchical-2x2"),
        (
            "--algorithm hierarchical(radix,reduction_server) --ranks 4",
            "hierarchical-radix-reduction_server-2x2x1",
        ),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/schedules");
        assert_eq!(shown(args).unwrap(), std::fs::read_to_string(format!("{folder}/{kept}.txt")).unwrap());
    }
}

#[test]
fn one_rank_is_its_part_of_all() {
    let args = "--algorithm reduction_server --ranks 3 --reducers 2";
    let all = shown(args).unwrap();
    let parts: Vec<String> = (0..5).map(|rank| shown(&format!("{args} --rank {rank}")).unwrap()).collect();
    let (_head, programs) = all.split_once('\n').unwrap();
    assert_eq!(parts.concat(), programs);
}

#[test]
fn json_has_the_steps_of_the_text() {
    let args = "--algorithm ring --ranks 3";
    let objects: Vec<serde_json::Value> = shown(&format!("{args} --json"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 3);
    for (rank, object) in (0_u64..).zip(&objects) {
        let text = shown(&format!("{args} --rank {rank}")).unwrap();
        let steps: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
        assert_eq!((object["rank"].as_u64(), object["steps"].clone()), (Some(rank), json!(steps)));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (args, said) in [
        ("--algorithm radix --ranks 4 --per-host 2", "--per-host has no effect on radix"),
        ("--algorithm ring --ranks 4 --reducers 2", "--reducers has no effect on ring"),
        (
            "--algorithm radix --ranks 4 --per-host 3 --fold-order hosts --rank 4",
            "--rank 4 is not one of the 4",
        ),
        ("--algorithm ring --ranks 4 --rank 4", "--rank 4 is not one of the 4 ranks"),
        ("--algorithm radix --ranks 4 --fold-order sites", "needs the site of each of 4 ranks"),
        ("--algorithm sites(radix,radix,3x2) --ranks 5", "sites of 6 ranks in all need a group of as many"),
        ("--algorithm ring --ranks 4 --collective broadcast", "ring has no broadcast: use tree"),
        ("--algorithm hierarchical(radix,doubling) --ranks 8 --per-host 3", "one node of the canonical tree"),
    ] {
        let failure = shown(args).unwrap_err();
        assert!(failure.to_string().contains(said), "{failure}");
        assert_eq!(failure.code(), 2);
    }
}

/// A file of this test alone, which goes when the test ends.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("herringbone-show-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A refused picture has not been written.
        let _removed = std::fs::remove_file(&self.0);
    }
}

fn drawn(name: &str, args: &str) -> String {
    let file = Scratch::new(name);
    shown(&format!("{args} --svg {}", file.path())).unwrap();
    file.text()
}

#[test]
fn pictures_are_those_of_the_documentation() {
    for (name, args) in [
        ("ring", "--algorithm ring --ranks 4"),
        ("reduction_server", "--algorithm reduction_server --ranks 4 --reducers 5"),
        ("tree", "--algorithm tree --ranks 6"),
    ] {
        let kept = format!("{}/../../docs/pictures/steps-{name}.svg", env!("CARGO_MANIFEST_DIR"));
        assert!(
            drawn(name, args) == std::fs::read_to_string(kept).unwrap(),
            "steps-{name}.svg is old: `make reference` draws it again; look at it"
        );
    }
}

/// The ring's first step as it is drawn: four short arrows, each a line and a head, and one that goes round.
#[test]
fn a_picture_has_the_terms_of_each_step() {
    let svg = drawn("ring-of-four", "--algorithm ring --ranks 4");
    for words in
        ["start", "step 6", ">a0<", ">a0+b0<", ">c2+d2+a2+b2<", "rank 3", "specific to this schedule"]
    {
        assert!(svg.contains(words), "{words}");
    }
    assert!(!svg.contains("step 7"));
    assert_eq!(svg.matches("<polyline").count(), 2 * 4 * 6);
    let served = drawn("served", "--algorithm reduction_server --ranks 3 --reducers 2");
    assert!(served.contains(">worker 2<") && served.contains(">reducer 1<") && !served.contains("rank 2"));
    let moved = drawn("moved", "--algorithm radix --ranks 3 --collective all_gather");
    assert!(moved.contains("nothing is added") && !moved.contains("partial sum"));
}

#[test]
fn the_schedule_of_a_file_is_shown_and_drawn() {
    let file = Scratch::new("schedule.txt");
    let text = shown("--algorithm tree --ranks 5").unwrap();
    std::fs::write(&file.0, &text).unwrap();
    assert_eq!(shown(&format!("--schedule {}", file.path())).unwrap(), text);
    let [own, other] = [
        drawn("of-file", &format!("--schedule {}", file.path())),
        drawn("of-algorithm", "--algorithm tree --ranks 5"),
    ];
    // The title differs, and with it how long the lines between the steps are.
    let shapes = |svg: &str| {
        let shapes = svg
            .lines()
            .skip(2)
            .filter(|shape| !shape.contains("step by step") && !shape.starts_with("<line"));
        shapes.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(shapes(&own) == shapes(&other), "{own}");
    // A sum without rank 4 is no all_reduce.
    std::fs::write(
        &file.0,
        text.replace(" @4:plain+", "").replace("  send u0 -> 0\n  recv c0 u0 <- 0\nrank", "rank"),
    )
    .unwrap();
    let failure =
        shown(&format!("--schedule {} --svg {}", file.path(), Scratch::new("no.svg").path())).unwrap_err();
    assert!(failure.to_string().contains("cannot be drawn as all_reduce"), "{failure}");
    std::fs::write(&file.0, "schedule workers=0 reducers=0 cut=even:1\n").unwrap();
    let failure = shown(&format!("--schedule {}", file.path())).unwrap_err();
    assert!(failure.to_string().contains("without workers"), "{failure}");
}

#[test]
fn what_has_no_room_is_refused_and_not_written() {
    for (args, said) in [
        ("--algorithm tree --ranks 17 --svg", "--svg has no room for tree: 17 ranks are more than 16"),
        (
            "--algorithm ring --ranks 16 --svg",
            "16 ranks x 16 chunks x 30 or more rounds, and the start, are more than 2048 blocks; use fewer ranks",
        ),
        ("--algorithm tree --ranks 65 --html", "--html has no room for tree: 65 ranks are more than 64"),
        // Before it is made: ring has no barrier, and an all_reduce of this many ranks does not fit in memory.
        (
            "--algorithm ring --ranks 16384 --collective barrier --html",
            "--html has no room for ring: 16384 ranks are more than 64",
        ),
        (
            "--algorithm reduction_server --ranks 4 --reducers 13 --svg",
            "--svg has no room for reduction_server: 17 ranks are more than 16",
        ),
    ] {
        let file = Scratch::new("refused");
        let failure = shown(&format!("{args} {}", file.path())).unwrap_err();
        assert!(failure.to_string().contains(said), "{failure}");
        assert_eq!(failure.code(), 2);
        assert!(!file.0.exists());
    }
    let failure = shown("--algorithm tree --ranks 4 --svg /nowhere/steps.svg").unwrap_err();
    assert!(failure.to_string().contains("cannot write /nowhere/steps.svg"), "{failure}");
}

/// The page's data are the steps; nothing of it comes from elsewhere, and no name ends an element.
#[test]
fn a_page_has_the_steps_and_needs_nothing_else() {
    let file = Scratch::new("page.html");
    shown(&format!("--algorithm ring --ranks 4 --html {}", file.path())).unwrap();
    let page = file.text();
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    let data: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(data["ranks"], json!(["rank 0", "rank 1", "rank 2", "rank 3"]));
    let steps = data["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 7);
    let text = |term: &serde_json::Value| data["terms"][term.as_u64().unwrap() as usize]["text"].clone();
    let first = &steps[1]["messages"][0];
    assert_eq!((first[0].clone(), first[1].clone(), text(&first[3])), (json!(0), json!(1), json!("a#")));
    // Rank 1's chunk 0 after the first step.
    assert_eq!(text(&steps[1]["held"][4]), "a#+b#");
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        let svg = "http://www.w3.org/2000/svg";
        assert!(!page.replace(svg, "").replace("url(#tip)", "").contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'") && page.contains("prefers-reduced-motion"));
}

#[test]
fn names_cannot_end_an_element_of_the_page() {
    let file = Scratch::new("<b>&amp.txt");
    std::fs::write(&file.0, shown("--algorithm tree --ranks 2").unwrap()).unwrap();
    let page = Scratch::new("named.html");
    shown(&format!("--schedule {} --html {}", file.path(), page.path())).unwrap();
    assert!(page.text().contains("&lt;b&gt;&amp;amp.txt") && !page.text().contains("<b>"));
}
