//! The figure `trees` with other inputs, and numbers that are checked by hand.

use super::{
    machine::{GPUS, NVLINKS, Wires},
    results::TreesResults,
    sums::{PushPullWay, TreesSums},
    *,
};
use crate::figures::{figure::Figure, tests::figures};
use herringbone::core::simulate::SECOND;

/// The figure with these inputs.
fn trees(args: &[&str]) -> Figure {
    figures(&[&["--only", "trees"], args].concat()).remove(0)
}

fn inputs(args: &[&str]) -> TreesInputs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        inputs: TreesInputs,
    }
    <Line as clap::Parser>::try_parse_from([&["trees"], args].concat()).unwrap().inputs
}

#[test]
fn the_constant_brings_resnet_to_its_number_and_one_that_cannot_says_so() {
    let figure = trees(&[]);
    let fitted: Vec<_> = figure.claims.iter().filter(|claim| claim.how == How::Fitted).collect();
    let [only] = fitted[..] else { panic!("{fitted:?}") };
    assert!(only.said.contains("ResNet-50") && only.ours.value == Some(FITTED_TO), "{only:?}");
    assert!(figure.claims.iter().filter(|claim| claim.said.starts_with("Table 1")).count() == 8);
    // A step of this length hides sums.
    let unreached = trees(&["--trees-batch", "4096"]).fitted.unwrap();
    assert!(unreached.to.contains("the nearest to 1.33 at any cost"), "{}", unreached.to);
}

/// 100 MB between GPUs 0 and others, with messages that cost nothing.
#[test]
fn times_of_one_key_are_those_of_its_busiest_link() {
    let inputs = inputs(&[]);
    let mut sums = TreesSums::new(&inputs, 0).unwrap();
    let bytes = 100_000_000;
    let mut seconds = |way| sums.cost(way, bytes).unwrap().time as f64 / SECOND as f64;
    let near = |ours: f64, by_hand: f64| (ours / by_hand - 1.0).abs() < 0.15;
    // Two NVLinks of 25 GB/s, 7/8 of the key in either half.
    assert!(near(seconds(PushPullWay::Nccl), 1.75 * 0.1 / 50.0), "{}", seconds(PushPullWay::Nccl));
    // Three copies through 10 GB/s, up and down.
    assert!(near(seconds(PushPullWay::Server), 2.0 * 0.3 / 10.0), "{}", seconds(PushPullWay::Server));
    // One copy over one NVLink, up and down.
    assert!(near(seconds(PushPullWay::SingleTree), 2.0 * 0.1 / 25.0), "{}", seconds(PushPullWay::SingleTree));
    assert!(seconds(PushPullWay::ManyTrees) < seconds(PushPullWay::SingleTree));
}

/// What a key of a server that changes shares is a mean over places that are alike, so the machine has to look the same from each GPU.
#[test]
fn the_machine_looks_alike_from_each_gpu() {
    let wires = Wires::of_machine(&inputs(&[])).unwrap();
    let switches = wires.switches.as_ref().unwrap();
    assert_eq!(switches.of_rank, [0, 0, 1, 1, 2, 2, 3, 3]);
    let from = |gpu: usize| {
        let others = || (0..GPUS as usize).filter(move |other| *other != gpu);
        let mut rates: Vec<u32> = others().map(|other| wires.links.speed(gpu, other) as u32).collect();
        rates.sort_unstable();
        let far = others().filter(|other| wires.links.speed(gpu, *other) == 0.0);
        let mut behind: Vec<usize> = far.map(|other| switches.of_rank[other]).collect();
        behind.dedup();
        (rates, behind.len())
    };
    assert_eq!(from(0).0, [0, 0, 0, 25, 25, 50, 50]);
    for gpu in 1..GPUS as usize {
        assert_eq!(from(gpu), from(0), "GPU {gpu}");
    }
}

#[test]
fn a_ring_leads_through_all_gpus_over_two_nvlinks_each() {
    let ring = [0, 3, 2, 1, 5, 6, 7, 4];
    let next = ring.iter().skip(1).chain(&ring[..1]);
    assert!(ring.iter().zip(next).all(|(from, to): (&usize, &usize)| NVLINKS[*from][*to] == 2));
}

#[test]
fn keys_are_those_of_the_published_models() {
    let results = TreesResults::of(&inputs(&["--trees-message-us", "3"])).unwrap();
    let keys: Vec<_> = results.steps.iter().map(|steps| (steps.seed.title, steps.keys)).collect();
    let of = |count, largest, [beyond, above]: [usize; 2], parameters: u64| PushedKeys {
        count,
        largest,
        beyond,
        above,
        bytes: 4 * parameters,
    };
    assert_eq!(
        keys,
        [
            ("ResNet-50", of(161, 512 * 512 * 9, [5, 0], 25_557_032)),
            ("VGG-16", of(32, 512 * 7 * 7 * 4096, [8, 2], 138_357_544)),
            ("Inception-v3", of(292, 320 * 3 * 1280 * 2, [2, 0], 27_161_264)),
            ("AlexNet", of(16, 256 * 6 * 6 * 4096, [3, 2], 61_100_840)),
        ]
    );
    assert_eq!(results.rounds, 6);
}

/// A GPU's port to PCIe decides what a server costs, and NVLinks what NCCL costs: the sentences that name them move the numbers.
#[test]
fn sentences_name_inputs_that_move_the_numbers_and_have_their_values() {
    let find = |figure: &Figure, said: &str| -> ArticleClaim {
        figure.claims.iter().find(|claim| claim.said.contains(said)).unwrap().clone()
    };
    let (few, many) = (
        trees(&["--trees-message-us=3.89"]),
        trees(&["--trees-message-us=3.89", "--trees-pcie=20", "--trees-ring-links=1"]),
    );
    let server = "ResNet-50, of many small keys: the parameter server is faster";
    assert_eq!(find(&few, server).ours.words, "slower");
    assert_eq!(find(&many, server).ours.words, "faster");
    assert!(find(&few, "VGG-16, of few keys: the parameter server is slower").agrees());
    let vgg = "Table 1, VGG-16: speed-up over";
    let value = |figure: &Figure, other: &str| find(figure, &format!("{vgg} {other}")).ours.value.unwrap();
    assert!(value(&many, "the parameter server") < 0.6 * value(&few, "the parameter server"));
    assert!(value(&many, "NCCL") > 1.5 * value(&few, "NCCL"));
    let why = |figure: &Figure, said: &str| find(figure, said).why.unwrap_or_default();
    assert!(why(&few, "Table 1, VGG-16: speed-up over the").contains("shares 10 GB/s"));
    assert!(
        why(&few, "Table 1, AlexNet: speed-up over NCCL").contains("over pairs of GPUs with two NVLinks")
    );
    assert!(why(&many, "Table 1, AlexNet: speed-up over NCCL").contains("as fast as 1 NVLinks"));
    assert!(why(&many, "One push-pull (7b)").contains("a message costs 3.89 us here"));
}
