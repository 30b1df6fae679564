//! What a rank makes of the silence of others.

use crate::a_roster;
use herringbone_core::session::{
    control::Message,
    watch::{Effect, GroupEvent, RankPatience, TICK, Watch},
};
use std::time::Duration;

/// Rank 0 leaves as a rank, decides on for the others, and hangs: nobody decides any more.
#[test]
fn a_hub_that_hangs_while_it_leaves_is_missed() {
    let silence = Duration::from_secs(6);
    let patience = RankPatience { silence, linger: Duration::from_secs(10) };
    let mut watch = Watch::new(1, a_roster(3, &[]), [0], patience, Duration::ZERO);
    watch.message(0, Message::Leave { rank: 0 });
    let mut now = Duration::ZERO;
    let mut missed = Vec::new();
    while now < 2 * silence {
        now += TICK;
        watch.tick(now);
        while let Some(effect) = watch.next_effect() {
            if matches!(effect, Effect::Groups(GroupEvent::NoHub)) {
                missed.push(now);
            }
        }
    }
    assert_eq!(missed, [silence]);
}
