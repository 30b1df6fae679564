//! The figure `fairring` with other inputs, and numbers that are checked by hand.

use super::{
    machines::{FairringSums, Library, machines},
    *,
};
use crate::figures::{
    figure::{Figure, How},
    tests::figures,
};

/// The figure with these inputs.
fn fairring(args: &[&str]) -> Figure {
    figures(&[&["--only", "fairring"], args].concat()).remove(0)
}

fn inputs(args: &[&str]) -> FairringInputs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        inputs: FairringInputs,
    }
    <Line as clap::Parser>::try_parse_from([&["fairring"], args].concat()).unwrap().inputs
}

#[test]
fn gpus_of_a_machine_divide_eight() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        _inputs: FairringInputs,
    }
    let refused = <Line as clap::Parser>::try_parse_from(["fairring", "--fairring-gpus", "3"]);
    assert!(refused.err().unwrap().to_string().contains("write 1, 2, 4 or 8"));
}

/// The whole figure: one constant is fitted to NCCL, and what is not bound to the constant comes out as by hand.
#[test]
fn the_constant_brings_nccl_to_its_efficiency() {
    let figure = fairring(&[]);
    let fitted: Vec<_> = figure.claims.iter().filter(|claim| claim.how == How::Fitted).collect();
    let [only] = fitted[..] else { panic!("{fitted:?}") };
    assert!(
        only.said.starts_with("NCCL's highest") && (only.ours.value.unwrap() - 68.0).abs() < 0.5,
        "{only:?}"
    );
    assert!(figure.fitted.unwrap().to.ends_with("is 68 %"));
    let ours = |said: &str| &figure.claims.iter().find(|claim| claim.said.contains(said)).unwrap().ours;
    // 2 (64 - 1) rounds.
    assert_eq!(ours("successive rounds").value, Some(126.0));
    // 2 (M - 1) / M / 8 of 2 and 32 machines.
    assert_eq!(ours("What each GPU sends").words, "from 0.125 K to 0.242 K");
    assert_eq!(ours("already faster").words, "faster");
    assert_eq!(ours("Google's BERT").words, "steps per second, 64 GPUs");
    assert_eq!(ours("are 1.6 GB").value, Some(64.0 * 25.0 * 1_048_576.0 / 1e9));
}

/// With messages that cost nothing cards are busy all the time: by hand 2 (N - 1) / N K and 2 (M - 1) / M K at 50 GB/s.
#[test]
fn without_costs_of_messages_only_bytes_count() {
    let inputs = inputs(&["--fairring-nvlink", "5000"]);
    let machines = machines(&inputs, 0);
    let mut sums = FairringSums::new(&machines, inputs.trained().unwrap().buckets[0].kind);
    let bytes = 100 << 20;
    let mut busy = |library| seconds(sums.cost(library, 8, bytes).unwrap().busy);
    let by_hand = |share: f64| share * bytes as f64 / 50e9;
    let near = |ours: f64, by_hand: f64| (ours / by_hand - 1.0).abs() < 0.02;
    assert!(near(busy(Library::Nccl), by_hand(2.0 * 63.0 / 64.0)), "{}", busy(Library::Nccl));
    assert!(near(busy(Library::Fairring), by_hand(2.0 * 7.0 / 8.0)), "{}", busy(Library::Fairring));
}

/// Sentences that explain a difference hold where the input that they name is another.
#[test]
fn free_messages_leave_what_bytes_alone_gain() {
    let figure = fairring(&["--fairring-message-us=0", "--fairring-most-gpus=64"]);
    let find = |said: &str| figure.claims.iter().find(|claim| claim.said.contains(said)).unwrap();
    for said in ["At 100 MiB", "There Fairring is around 50 %"] {
        let claim = find(said);
        // (63 / 64) / (7 / 8) = 1.125: bytes in the cards.
        assert!(claim.ours.value.unwrap() < 12.7, "{claim:?}");
        assert!(claim.why.as_ref().unwrap().starts_with("By bytes alone it gains 12.5 %"), "{claim:?}");
    }
    let sweet = find("the sweet spot");
    assert_eq!(sweet.ours.value, Some(2.0), "one slice is in a machine while another is between machines");
    assert!(sweet.why.as_ref().unwrap().ends_with("busy all the time."), "{sweet:?}");
}
